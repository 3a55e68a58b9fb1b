--! name    = "first_in_line"
--! doc     = "Which waiting job was first among those that may run on the same nodes, from when to when: by priority, unknown ones last, then by how long it waits, then by its name. Jobs that a limit, a hold or a dependency keeps back do not stand in line."
--! question = "Which job is first in line, and for whom do the others wait?"
--! example  = "SELECT pool, job_id, gpus_milli / 1000.0 AS gpus, priority, from_time FROM first_in_line WHERE to_time IS NULL ORDER BY pool"
--! sources = ["waits", "pending_reasons", "job_events", "node_capacity"]
--! once    = true
--! [columns]
--! cluster     = "Cluster."
--! pool        = "Pool of the job; NULL where it names none and may run on every node."
--! job_id      = "Job."
--! waited_from = "When its wait began."
--! gpus_milli  = "Thousandths of a GPU asked for."
--! priority    = "Its priority as it was told last; NULL if it was not."
--! from_time   = "From when on it was first."
--! to_time     = "Until when; NULL while it is."
WITH priorities AS (
    SELECT cluster, job_id, event_time AS at, max(priority) AS priority
    FROM job_events
    WHERE priority IS NOT NULL AND step_id IS NULL
    GROUP BY cluster, job_id, event_time
), ends AS (
    SELECT cluster, job_id, waited_from, max(coalesce(to_time, as_of)) AS known_to FROM waits GROUP BY cluster, job_id, waited_from
), eligible_in AS (
    SELECT w.cluster, w.job_id, w.waited_from, max(e.event_time) AS at
    FROM ends w
    JOIN job_events e ON e.cluster = w.cluster AND e.job_id = w.job_id AND e.event_time >= w.waited_from AND e.event_time < w.known_to
    WHERE e.kind = 'ELIGIBLE' AND e.step_id IS NULL
    GROUP BY w.cluster, w.job_id, w.waited_from
), standing AS (
    -- Of a job that was requeued each wait has its own time at which it became eligible.
    SELECT w.cluster, w.job_id, coalesce(w.pool, '') AS pool, w.waited_from, w.gpus_milli, w.from_time AS told_from,
           greatest(w.from_time, coalesce(CASE WHEN w.attempt IS NULL THEN w.eligible_time ELSE e.at END, w.from_time)) AS from_time, w.to_time
    FROM waits w
    LEFT JOIN eligible_in e ON e.cluster = w.cluster AND e.job_id = w.job_id AND e.waited_from = w.waited_from
    LEFT JOIN pending_reasons r ON r.scheduler = 'slurm' AND r.reason = w.reason
    WHERE w.gpus_milli > 0 AND coalesce(r.layer, 3) IN (2, 3)
), prior AS (
    SELECT s.cluster, s.job_id, s.told_from, latest(p.priority, p.at) AS priority
    FROM standing s JOIN priorities p ON p.cluster = s.cluster AND p.job_id = s.job_id AND p.at <= s.told_from
    GROUP BY s.cluster, s.job_id, s.told_from
), ranked AS (
    SELECT s.*, p.priority,
           CAST(row_number() OVER (PARTITION BY s.cluster
                                   ORDER BY p.priority DESC NULLS LAST, s.waited_from, s.job_id, s.told_from) AS BIGINT) AS rank
    FROM standing s
    LEFT JOIN prior p ON p.cluster = s.cluster AND p.job_id = s.job_id AND p.told_from = s.told_from
    WHERE coalesce(s.from_time < s.to_time, true)
), places AS (
    SELECT DISTINCT cluster, node, unnest(string_to_array(pool, ',')) AS pool FROM node_capacity WHERE pool <> ''
), open_clusters AS (
    SELECT DISTINCT cluster FROM node_capacity WHERE coalesce(pool, '') = ''
), pools AS (
    SELECT DISTINCT cluster, pool FROM ranked
), together AS (
    -- Who may take a node from whom. A node in no pool serves all: then the whole cluster stands in
    -- one line.
    SELECT a.cluster, a.pool AS line, b.pool
    FROM pools a
    JOIN pools b ON b.cluster = a.cluster
    LEFT JOIN open_clusters o ON o.cluster = a.cluster
    WHERE a.pool = b.pool OR a.pool = '' OR b.pool = '' OR o.cluster IS NOT NULL
    UNION
    SELECT a.cluster, a.pool, b.pool FROM places a JOIN places b ON b.cluster = a.cluster AND b.node = a.node
), lines AS (
    SELECT DISTINCT t.cluster, CASE WHEN o.cluster IS NULL THEN t.line ELSE '' END AS line, t.pool
    FROM together t LEFT JOIN open_clusters o ON o.cluster = t.cluster
), first_of AS (
    SELECT l.cluster, l.line, unnest(least_in_force(r.rank, r.from_time, r.to_time)) AS f
    FROM ranked r JOIN lines l ON l.cluster = r.cluster AND l.pool = r.pool
    GROUP BY l.cluster, l.line
), firsts AS (
    SELECT cluster, line, f['rank'] AS rank, f['from_time'] AS from_time, f['to_time'] AS to_time FROM first_of
)
SELECT r.cluster, nullif(r.pool, '') AS pool, r.job_id, r.waited_from, r.gpus_milli, r.priority, f.from_time, f.to_time
FROM firsts f
JOIN ranked r ON r.cluster = f.cluster AND r.rank = f.rank
LEFT JOIN open_clusters o ON o.cluster = f.cluster
-- First among those that it competes with; in the line of another pool it is first only there.
WHERE f.line = CASE WHEN o.cluster IS NULL THEN r.pool ELSE '' END
