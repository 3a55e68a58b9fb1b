--! name    = "start_time_1m"
--! stored  = false
--! doc     = "Time of attempts before their first step, per UTC minute; of the first six hours of an attempt at most: what takes longer is no start."
--! sources = ["attempt_steps"]
--! window  = "1m"
--! key     = ["window_start", "cluster", "job_id"]
--! [extents]
--! attempt_steps = { from = "from_time", to = "to_time" }
SELECT window_start, cluster, job_id, max(attempt) AS attempt,
       sum(greatest(ms_between(greatest(clip_from, plus_ms(first_step_time, -21600000)), least(clip_to, first_step_time)), 0)) AS starting_ms,
       sum(ms_between(clip_from, clip_to)) AS attempt_ms
FROM attempt_steps
WHERE first_step_time IS NOT NULL
GROUP BY window_start, cluster, job_id
