--! name    = "job_steps"
--! doc     = "Steps inside jobs. Steps use their job's GPUs and never add to its GPU time."
--! question = "What ran inside a job, step by step?"
--! example  = "SELECT step_id, step_name, gpus_milli / 1000.0 AS gpus, from_time, to_time, final_state, exit_code FROM job_steps WHERE job_id = '4711' ORDER BY from_time"
--! sources = ["job_events"]
--! per     = ["cluster", "job_id"]
--! key     = ["cluster", "job_id", "attempt_id", "step_id"]
--! [columns]
--! cluster     = "Cluster."
--! job_id      = "Job."
--! attempt_id  = "Attempt of the job, as in attempts."
--! step_id     = "Step."
--! step_name   = "Name of the step."
--! gpus_milli  = "Thousandths of a GPU that the step used, out of its job's."
--! from_time   = "Start."
--! to_time     = "End; NULL while it runs."
--! final_state = "How it ended."
--! exit_code   = "Exit code."
SELECT cluster, job_id, attempt_id, step_id,
       latest(job_name, event_time) AS step_name,
       latest(gpus_milli, event_time) AS gpus_milli,
       min(event_time) FILTER (WHERE kind = 'STARTED') AS from_time,
       max(event_time) FILTER (WHERE kind = 'ENDED') AS to_time,
       latest(final_state, event_time) AS final_state,
       latest(exit_code, event_time) AS exit_code
FROM job_events
WHERE step_id IS NOT NULL AND kind NOT IN ('DEVICE_HELD', 'DEVICE_RELEASED')
GROUP BY cluster, job_id, attempt_id, step_id
