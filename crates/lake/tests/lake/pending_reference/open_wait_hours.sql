--! name    = "open_wait_hours"
--! doc     = "Waits whose constraint the scheduler leaves open, hour by hour: one row per stretch of eligible_waits and UTC hour. Pending compares them with pools and quotas hour by hour, so that a wait meets what changed while it lasted without comparing every wait with all history."
--! question = "During which hours did jobs wait for a constraint that the scheduler left open?"
--! example  = "SELECT hour, count(DISTINCT job_id) AS jobs FROM open_wait_hours GROUP BY hour ORDER BY hour DESC LIMIT 24"
--! sources = ["eligible_waits", "pool_fit_before"]
--! [columns]
--! cluster       = "Cluster."
--! job_id        = "Job."
--! team          = "Account, group or virtual cluster."
--! qos           = "Quality of service."
--! pool          = "Partition, queue or node pool."
--! gpus_milli    = "Thousandths of a GPU requested."
--! gpus_per_node = "Whole GPUs that the job needs on one node, as `gpus` of pool_fit_before: a share of a GPU needs one GPU; 1 if the shape is not known."
--! from_time     = "Start of the stretch."
--! known_to      = "End of the stretch, or the time up to which the cluster was observed."
--! hour          = "Start of the UTC hour."
WITH pool_sizes AS (
    -- One row per pool.
    SELECT DISTINCT cluster, pool, largest_node_gpus FROM pool_fit_before
)
SELECT w.cluster, w.job_id, w.team, w.qos, w.pool, w.gpus_milli,
       least(coalesce((w.asked_gpus_per_node_milli + 999) / 1000, 1), s.largest_node_gpus + 1) AS gpus_per_node,
       w.from_time, w.known_to,
       unnest(window_starts(w.from_time, w.known_to, 3600000, w.from_time, w.known_to)) AS hour
FROM eligible_waits w
LEFT JOIN pool_sizes s ON s.cluster = w.cluster AND s.pool = coalesce(w.pool, '')
WHERE w.is_open = 1 AND w.gpus_milli > 0 AND w.from_time < w.known_to
