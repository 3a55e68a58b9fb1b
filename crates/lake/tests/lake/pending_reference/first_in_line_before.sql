--! name    = "first_in_line_before"
--! doc     = "The first job in line among the jobs that compete for the same nodes. Order: priority (unknown priorities last), start of the wait, job id. Jobs that a limit, a hold or a dependency keeps back are not in line."
--! question = "Which job is first in line in each pool?"
--! example  = "SELECT pool, job_id, gpus_milli / 1000.0 AS gpus, priority, from_time FROM first_in_line WHERE to_time IS NULL ORDER BY pool"
--! sources = ["eligible_waits", "node_capacity"]
--! once    = true
--! [columns]
--! cluster     = "Cluster."
--! pool        = "Pool of the job; NULL if it names none and may run on every node."
--! job_id      = "Job."
--! waited_from = "Start of its wait."
--! gpus_milli  = "Thousandths of a GPU requested."
--! priority    = "Priority as last reported; NULL if not reported."
--! from_time   = "Time from which the job was first in line."
--! to_time     = "End; NULL while it lasts."
WITH candidates AS (
    -- One row per stretch of a wait in which the job competes for GPUs, from when it is eligible.
    SELECT w.cluster, w.job_id, coalesce(w.pool, '') AS pool, w.waited_from, w.gpus_milli, w.priority, w.from_time AS told_from,
           greatest(w.from_time, coalesce(w.eligible_from, w.from_time)) AS from_time, w.to_time
    FROM eligible_waits w
    WHERE w.gpus_milli > 0 AND coalesce(w.reason_layer, 3) IN (2, 3)
), ranked AS (
    -- The same rows, in the order of the line over the whole cluster.
    SELECT s.*,
           CAST(row_number() OVER (PARTITION BY s.cluster
                                   ORDER BY s.priority DESC NULLS LAST, s.waited_from, s.job_id, s.told_from) AS BIGINT) AS rank
    FROM candidates s
    WHERE coalesce(s.from_time < s.to_time, true)
), node_pools AS (
    -- One row per node and pool.
    SELECT DISTINCT cluster, node, unnest(string_to_array(pool, ',')) AS pool FROM node_capacity WHERE pool <> ''
), open_clusters AS (
    -- One row per cluster with a node in no pool, which serves all pools.
    SELECT DISTINCT cluster FROM node_capacity WHERE coalesce(pool, '') = ''
), pools AS (
    -- One row per pool of waiting jobs.
    SELECT DISTINCT cluster, pool FROM ranked
), shared_pools AS (
    -- One row per pair of pools whose jobs compete for nodes.
    SELECT a.cluster, a.pool AS line, b.pool
    FROM pools a
    JOIN pools b ON b.cluster = a.cluster
    LEFT JOIN open_clusters o ON o.cluster = a.cluster
    WHERE a.pool = b.pool OR a.pool = '' OR b.pool = '' OR o.cluster IS NOT NULL
    UNION
    SELECT a.cluster, a.pool, b.pool FROM node_pools a JOIN node_pools b ON b.cluster = a.cluster AND b.node = a.node
), lines AS (
    -- One row per line and pool in it. A cluster with a node in no pool has one line.
    SELECT DISTINCT t.cluster, CASE WHEN o.cluster IS NULL THEN t.line ELSE '' END AS line, t.pool
    FROM shared_pools t LEFT JOIN open_clusters o ON o.cluster = t.cluster
), first_structs AS (
    -- One row per line and time, as a struct of the first rank.
    SELECT l.cluster, l.line, unnest(least_in_force(r.rank, r.from_time, r.to_time)) AS f
    FROM ranked r JOIN lines l ON l.cluster = r.cluster AND l.pool = r.pool
    GROUP BY l.cluster, l.line
), firsts AS (
    -- The same rows as columns.
    SELECT cluster, line, f['rank'] AS rank, f['from_time'] AS from_time, f['to_time'] AS to_time FROM first_structs
)
SELECT r.cluster, nullif(r.pool, '') AS pool, r.job_id, r.waited_from, r.gpus_milli, r.priority, f.from_time, f.to_time
FROM firsts f
JOIN ranked r ON r.cluster = f.cluster AND r.rank = f.rank
LEFT JOIN open_clusters o ON o.cluster = f.cluster
-- A job counts in the line of its own pool only.
WHERE f.line = CASE WHEN o.cluster IS NULL THEN r.pool ELSE '' END
