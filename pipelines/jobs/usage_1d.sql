--! name    = "usage_1d"
--! doc     = "GPU time held and waited for, per UTC day, by cluster, pool, team, user and how the attempt ended."
--! question = "How many GPU-hours did each team use and wait for, day by day?"
--! example  = "SELECT window_start, team, sum(gpu_ms_held) / 3600000 AS gpu_hours, sum(gpu_ms_queued) / 3600000 AS gpu_hours_queued FROM usage_1d WHERE window_start >= now() - INTERVAL '7 days' GROUP BY window_start, team ORDER BY window_start, gpu_hours DESC"
--! sources = ["usage_1h"]
--! rolls_up = "usage_1h"
--! window  = "1d"
--! extent  = { time = "window_start" }
--! key     = ["window_start", "cluster", "pool", "team", "user_name", "final_state"]
--! [columns]
--! window_start  = "Start of the UTC day."
--! cluster       = "Cluster."
--! pool          = "Partition, queue or node pool."
--! team          = "Account, group or virtual cluster."
--! user_name     = "User who submitted the jobs."
--! final_state   = "How the attempt ended; NULL while it lasts."
--! gpu_ms_held   = "GPU x ms held in the window."
--! gpu_ms_queued = "GPU x ms requested and waited for in the window."
SELECT window_start, cluster, pool, team, user_name, final_state,
       sum(gpu_ms_held)   AS gpu_ms_held,
       sum(gpu_ms_queued) AS gpu_ms_queued
FROM usage_1h
GROUP BY window_start, cluster, pool, team, user_name, final_state
