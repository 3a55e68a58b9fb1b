--! name    = "first_in_line"
--! version = 2
--! doc     = "The first job in line among the jobs that compete for the same nodes, cut at UTC days. Pools compete if a node was in both on that day. Order: priority (unknown priorities last), start of the wait, job id. Jobs that a limit, a hold or a dependency keeps back are not in line."
--! question = "Which job is first in line in each pool?"
--! example  = "SELECT pool, job_id, gpus_milli / 1000.0 AS gpus, priority, from_time FROM first_in_line WHERE to_time IS NULL ORDER BY pool"
--! sources = ["eligible_waits", "node_capacity"]
--! window  = "1d"
--! opening = true
--! key     = ["window_start", "cluster", "pool", "job_id", "waited_from", "from_time", "to_time"]
--! [extents]
--! eligible_waits = { from = "from_time", to = "to_time" }
--! node_capacity  = { from = "from_time", to = "to_time" }
--! [columns]
--! window_start = "Start of the UTC day."
--! cluster      = "Cluster."
--! pool         = "Pool of the job; NULL if it names none and may run on every node."
--! job_id       = "Job."
--! waited_from  = "Start of its wait."
--! gpus_milli   = "Thousandths of a GPU requested."
--! priority     = "Priority as last reported; NULL if not reported."
--! from_time    = "Time from which the job was first in line."
--! to_time      = "End, at most that of the day; NULL while it lasts."
WITH candidates AS (
    -- One row per day and stretch of a wait in which the job competes for GPUs, from when it is
    -- eligible.
    SELECT window_start, cluster, job_id, coalesce(pool, '') AS pool, waited_from, gpus_milli, priority, from_time AS stretch_from,
           greatest(clip_from, coalesce(eligible_from, clip_from)) AS from_time, clip_end
    FROM eligible_waits
    WHERE gpus_milli > 0 AND coalesce(reason_layer, 3) IN (2, 3)
), ranked AS (
    -- The same rows, in the order of the line over the whole cluster.
    SELECT *,
           CAST(row_number() OVER (PARTITION BY window_start, cluster
                                   ORDER BY priority DESC NULLS LAST, waited_from, job_id, stretch_from) AS BIGINT) AS rank
    FROM candidates
    WHERE coalesce(from_time < clip_end, true)
), node_pools AS (
    -- One row per day, node and pool.
    SELECT DISTINCT window_start, cluster, node, unnest(string_to_array(pool, ',')) AS pool FROM node_capacity WHERE pool <> ''
), open_clusters AS (
    -- One row per day and cluster with a node in no pool, which serves all pools.
    SELECT DISTINCT window_start, cluster FROM node_capacity WHERE coalesce(pool, '') = ''
), pools AS (
    -- One row per day and pool of waiting jobs.
    SELECT DISTINCT window_start, cluster, pool FROM ranked
), shared_pools AS (
    -- One row per pair of pools whose jobs compete for nodes.
    SELECT a.window_start, a.cluster, a.pool AS line, b.pool
    FROM pools a
    JOIN pools b ON b.window_start = a.window_start AND b.cluster = a.cluster
    LEFT JOIN open_clusters o ON o.window_start = a.window_start AND o.cluster = a.cluster
    WHERE a.pool = b.pool OR a.pool = '' OR b.pool = '' OR o.cluster IS NOT NULL
    UNION
    SELECT a.window_start, a.cluster, a.pool, b.pool
    FROM node_pools a JOIN node_pools b ON b.window_start = a.window_start AND b.cluster = a.cluster AND b.node = a.node
), lines AS (
    -- One row per line and pool in it. A cluster with a node in no pool has one line.
    SELECT DISTINCT t.window_start, t.cluster, CASE WHEN o.cluster IS NULL THEN t.line ELSE '' END AS line, t.pool
    FROM shared_pools t LEFT JOIN open_clusters o ON o.window_start = t.window_start AND o.cluster = t.cluster
), first_structs AS (
    -- One row per line and time, as a struct of the first rank.
    SELECT l.window_start, l.cluster, l.line, unnest(least_in_force(r.rank, r.from_time, r.clip_end)) AS f
    FROM ranked r JOIN lines l ON l.window_start = r.window_start AND l.cluster = r.cluster AND l.pool = r.pool
    GROUP BY l.window_start, l.cluster, l.line
), firsts AS (
    -- The same rows as columns.
    SELECT window_start, cluster, line, f['rank'] AS rank, f['from_time'] AS from_time, f['to_time'] AS to_time FROM first_structs
)
SELECT r.window_start, r.cluster, nullif(r.pool, '') AS pool, r.job_id, r.waited_from, r.gpus_milli, r.priority, f.from_time, f.to_time
FROM firsts f
JOIN ranked r ON r.window_start = f.window_start AND r.cluster = f.cluster AND r.rank = f.rank
LEFT JOIN open_clusters o ON o.window_start = f.window_start AND o.cluster = f.cluster
-- A job counts in the line of its own pool only.
WHERE f.line = CASE WHEN o.cluster IS NULL THEN r.pool ELSE '' END
