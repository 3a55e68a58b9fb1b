--! name    = "job_facts"
--! doc     = "All events of a job folded into one row. An intermediate step of attempts; not stored."
--! sources = ["job_events"]
--! per     = ["cluster", "job_id"]
--! key     = ["cluster", "job_id"]
--! stored  = false
SELECT cluster, job_id,
       min(attempt_id)                                                                   AS first_attempt_id,
       max(attempt_id)                                                                   AS last_attempt_id,
       min(event_time) FILTER (WHERE kind = 'SUBMITTED')                                 AS submit_time,
       max(event_time) FILTER (WHERE kind IN ('SUBMITTED', 'WAITING'))                   AS last_queued_time,
       max(event_time) FILTER (WHERE kind = 'STARTED')                                   AS last_from_time,
       max(event_time) FILTER (WHERE kind = 'ENDED' AND attempt_id IS NULL)              AS gave_up_time,
       latest(final_state, event_time) FILTER (WHERE kind = 'ENDED' AND attempt_id IS NULL) AS gave_up_state,
       latest(gpus_milli, event_time) FILTER (WHERE kind = 'SUBMITTED')                  AS asked_gpus_milli,
       max(event_time) FILTER (WHERE kind = 'ELIGIBLE')                                  AS eligible_time,
       min(event_time) FILTER (WHERE kind = 'STARTED')                                   AS from_time,
       max(event_time) FILTER (WHERE kind = 'ENDED' AND attempt_id IS NOT NULL)          AS to_time,
       max(event_time) FILTER (WHERE kind = 'ENDED')                                     AS left_time,
       latest(team, event_time)                                                          AS team,
       latest(user_name, event_time)                                                     AS user_name,
       latest(pool, event_time)                                                          AS pool,
       latest(qos, event_time)                                                           AS qos,
       latest(job_name, event_time)                                                      AS job_name,
       latest(gpus_milli, event_time) FILTER (WHERE kind <> 'WAITING')                   AS gpus_milli,
       latest(gpu_model, event_time)                                                     AS gpu_model,
       latest(nodes, event_time)                                                         AS nodes,
       latest(node_count, event_time)                                                    AS node_count,
       latest(final_state, event_time) FILTER (WHERE attempt_id IS NOT NULL)             AS attempt_state,
       latest(final_state, event_time)                                                   AS final_state,
       latest(exit_code, event_time)                                                     AS exit_code,
       max(as_of)                                                                        AS as_of
FROM job_events
-- Device events say nothing about attempts; the scheduler's own events do.
WHERE kind NOT IN ('OBSERVED', 'DEVICE_HELD', 'DEVICE_RELEASED') AND step_id IS NULL
GROUP BY cluster, job_id
