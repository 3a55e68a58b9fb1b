--! name    = "wait_pool_fits"
--! doc     = "Free GPUs of a job's pool while it waited: one row per open wait and state of the pool (pool_fit_before), for the number of GPUs that the job needs on one node."
--! question = "How many nodes had room for a job while it waited?"
--! example  = "SELECT at, nodes, free_gpus_milli / 1000 AS free_gpus, largest_free_gpus FROM wait_pool_fits WHERE job_id = '4711' ORDER BY at"
--! sources = ["open_wait_hours", "pool_fit_before", "observed_waits"]
--! [columns]
--! cluster            = "Cluster."
--! job_id             = "Job."
--! from_time          = "Start of the stretch of the wait."
--! known_to           = "End of the stretch, or the time up to which the cluster was observed."
--! at                 = "Start of this state of the pool, or of the stretch."
--! nodes              = "Nodes with at least as many GPUs free as the job needs on one."
--! free_gpus_milli    = "Free in the pool, thousandths of a GPU."
--! largest_free_gpus  = "Most whole GPUs free on one node."
--! free_nodes         = "Nodes with at least one whole GPU free."
--! usable_gpus_milli  = "On nodes where jobs may start, held or free, thousandths of a GPU."
--! present_gpus_milli = "On all nodes, including nodes that are down or drained, thousandths of a GPU."
--! assumed_gpus_milli = "Assumed held by jobs whose nodes are not known, as in node_free, thousandths of a GPU."
WITH clipped AS (
    -- One row per state of a pool, clipped to the observed time.
    SELECT f.*, greatest(f.from_time, o.from_time) AS clip_from, least(coalesce(f.to_time, o.to_time), o.to_time) AS clip_to
    FROM pool_fit_before f JOIN observed_waits o ON o.cluster = f.cluster
), pool_hours AS (
    -- One row per state of a pool and hour that it touches.
    SELECT *, unnest(window_starts(clip_from, clip_to, 3600000, clip_from, clip_to)) AS hour FROM clipped WHERE clip_from < clip_to
)
SELECT w.cluster, w.job_id, w.from_time, w.known_to, greatest(p.clip_from, w.from_time) AS at,
       p.nodes, p.free_gpus_milli, p.largest_free_gpus, p.free_nodes, p.usable_gpus_milli, p.present_gpus_milli, p.assumed_gpus_milli
FROM open_wait_hours w
JOIN pool_hours p ON p.cluster = w.cluster AND p.pool = coalesce(w.pool, '') AND p.gpus = w.gpus_per_node AND p.hour = w.hour
-- A wait and a state that share several hours meet once: in the first of them.
WHERE p.clip_from < w.known_to AND p.clip_to > w.from_time AND w.hour = window_of(greatest(p.clip_from, w.from_time), 3600000)
