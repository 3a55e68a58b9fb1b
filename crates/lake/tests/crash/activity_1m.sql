--! name    = "activity_1m"
--! doc     = "Activity of several topics by minute: as cheap as possible, so that many crashes can be tested."
--! sources = ["attempts", "steps", "gpu_1m"]
--! window  = "1m"
--! key     = ["window_start", "cluster", "job_id", "node"]
--! [extents]
--! attempts = { from = "from_time", to = "to_time" }
--! steps    = { from = "event_time", to = "plus_ms(event_time, duration_us / 1000)" }
--! gpu_1m   = { time = "window_start" }
--! [columns]
--! window_start = "Start of the UTC minute."
--! cluster      = "Cluster."
--! job_id       = "Job; empty where nobody says."
--! node         = "Node; empty where nobody says."
--! gpu_ms       = "GPU x ms that attempts held."
--! step_ms      = "Time in steps, of all ranks."
--! sampled_us   = "Time that samples speak of."
SELECT window_start, cluster, job_id, node, sum(gpu_ms) AS gpu_ms, sum(step_ms) AS step_ms, sum(sampled_us) AS sampled_us
FROM (
    SELECT window_start, cluster, job_id, coalesce(node, '') AS node, gpu_ms(gpus_milli, from_time, clip_from, clip_to) AS gpu_ms, 0 AS step_ms, 0 AS sampled_us FROM attempts WHERE from_time IS NOT NULL
    UNION ALL
    SELECT window_start, cluster, job_id, coalesce(node, ''), 0, ms_between(clip_from, clip_to), 0 FROM steps
    UNION ALL
    SELECT window_start, cluster, '', node, 0, 0, us_sampled FROM gpu_1m
)
GROUP BY window_start, cluster, job_id, node
