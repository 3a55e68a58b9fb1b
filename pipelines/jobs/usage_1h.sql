--! name    = "usage_1h"
--! doc     = "GPU time held and waited for, per UTC hour, by cluster, pool, team, user and how the attempt ended."
--! question = "At which hours are GPUs held, and at which are they waited for?"
--! example  = "SELECT date_part('hour', window_start) AS hour_utc, sum(gpu_ms_held) / 3600000 AS gpu_hours, sum(gpu_ms_queued) / 3600000 AS gpu_hours_queued FROM usage_1h WHERE window_start >= now() - INTERVAL '7 days' GROUP BY date_part('hour', window_start) ORDER BY hour_utc"
--! sources = ["job_intervals"]
--! window  = "1h"
--! extent  = { from = "from_time", to = "coalesce(to_time, as_of)" }
--! key     = ["window_start", "cluster", "pool", "team", "user_name", "final_state"]
--! [columns]
--! window_start  = "Start of the UTC hour."
--! cluster       = "Cluster."
--! pool          = "Partition, queue or node pool."
--! team          = "Account, group or virtual cluster."
--! user_name     = "User who submitted the jobs."
--! final_state   = "How the attempt ended; NULL while it lasts."
--! gpu_ms_held   = "GPU x ms held in the window."
--! gpu_ms_queued = "GPU x ms requested and waited for in the window."
SELECT window_start, cluster, pool, team, user_name, final_state,
       coalesce(sum(gpu_ms(gpus_milli, from_time, clip_from, clip_to)) FILTER (WHERE kind = 'held'), 0)   AS gpu_ms_held,
       coalesce(sum(gpu_ms(gpus_milli, from_time, clip_from, clip_to)) FILTER (WHERE kind = 'queued'), 0) AS gpu_ms_queued
FROM job_intervals
GROUP BY window_start, cluster, pool, team, user_name, final_state
