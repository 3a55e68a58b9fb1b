--! name    = "pool_usage_1h"
--! doc     = "Quota, held, queued and idle GPU time per UTC hour, integrated from pool samples."
--! question = "How much of each quota was held, idle, or waited for?"
--! example  = "SELECT owner, pool, sum(gpu_ms_quota) / 3600000 AS quota_gpu_hours, sum(gpu_ms_held) / 3600000 AS held_gpu_hours, sum(gpu_ms_idle) / 3600000 AS idle_gpu_hours, sum(gpu_ms_queued) / 3600000 AS queued_gpu_hours FROM pool_usage_1h WHERE window_start >= now() - INTERVAL '7 days' GROUP BY owner, pool ORDER BY idle_gpu_hours DESC"
--! sources = ["pool_samples"]
--! window  = "1h"
--! extent  = { from = "event_time", to = "plus_ms(event_time, interval_ms)" }
--! key     = ["window_start", "cluster", "owner", "pool"]
--! [columns]
--! window_start  = "Start of the UTC hour."
--! cluster       = "Cluster."
--! owner         = "Team or virtual cluster."
--! pool          = "Pool."
--! ms_sampled    = "ms of the hour that samples cover. The rest is unknown, not idle."
--! gpu_ms_quota  = "GPU x ms of quota."
--! gpu_ms_held   = "GPU x ms held by running jobs."
--! gpu_ms_queued = "GPU x ms requested by waiting jobs."
--! gpu_ms_idle   = "GPU x ms of quota that was not held; 0 where more than the quota was held."
SELECT window_start, cluster, owner, pool,
       sum(ms_between(clip_from, clip_to))                                                          AS ms_sampled,
       coalesce(sum(gpu_ms(quota_gpus_milli, event_time, clip_from, clip_to)), 0)                   AS gpu_ms_quota,
       coalesce(sum(gpu_ms(held_gpus_milli, event_time, clip_from, clip_to)), 0)                    AS gpu_ms_held,
       coalesce(sum(gpu_ms(queued_gpus_milli, event_time, clip_from, clip_to)), 0)                  AS gpu_ms_queued,
       coalesce(sum(gpu_ms(greatest(quota_gpus_milli - held_gpus_milli, 0), event_time, clip_from, clip_to)), 0) AS gpu_ms_idle
FROM pool_samples
GROUP BY window_start, cluster, owner, pool
