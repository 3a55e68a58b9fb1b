--! name    = "lasting_jobs"
--! once    = true
--! doc     = "Jobs with a hold of a device that has no reported end, or that ended after the last hours of those began: all that growth_minutes has to look at for holds that last."
--! question = "Which jobs may have used a device in the last hour of the holds that last?"
--! example  = "SELECT job_id FROM lasting_jobs ORDER BY job_id LIMIT 20"
--! sources = ["gpu_holds", "lasting_holds"]
--! [columns]
--! cluster = "Cluster."
--! job_id  = "Job."
SELECT DISTINCT cluster, job_id
FROM gpu_holds
WHERE is_repeated = 0 AND from_time IS NOT NULL
  AND (to_time IS NULL OR to_time > (SELECT min(plus_ms(known_to, -3660000)) FROM lasting_holds WHERE job_end_time IS NULL))
