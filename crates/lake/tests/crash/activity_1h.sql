--! name    = "activity_1h"
--! doc     = "activity_1m added up."
--! sources = ["activity_1m"]
--! window  = "1h"
--! key     = ["window_start", "cluster", "job_id", "node"]
--! [extents]
--! activity_1m = { time = "window_start" }
--! [columns]
--! window_start = "Start of the window, UTC."
--! cluster      = "Cluster."
--! job_id       = "Job."
--! node         = "Node."
--! gpu_ms       = "GPU x ms that attempts held."
--! step_ms      = "Time in steps, of all ranks."
--! sampled_us   = "Time that samples speak of."
SELECT window_start, cluster, job_id, node, sum(gpu_ms) AS gpu_ms, sum(step_ms) AS step_ms, sum(sampled_us) AS sampled_us
FROM activity_1m
GROUP BY window_start, cluster, job_id, node
