--! name    = "attempt_steps"
--! doc     = "Attempts of jobs that report steps: start of the first step, and the step that an earlier attempt had reached."
--! question = "How long did each attempt of a training job take to its first step?"
--! example  = "SELECT job_id, attempt, from_time, first_step_time, ms_between(from_time, first_step_time) / 1000 AS starting_s FROM attempt_steps WHERE from_time >= now() - INTERVAL '7 days' ORDER BY starting_s DESC NULLS LAST LIMIT 20"
--! sources = ["attempts", "training_1m"]
--! [columns]
--! cluster         = "Cluster."
--! job_id          = "Job."
--! attempt         = "Number of the attempt, from 0."
--! from_time       = "Time at which the attempt began to hold GPUs."
--! to_time         = "Time at which it released them; NULL while it holds them."
--! first_step_time = "Start of its first step; NULL if none was reported."
--! redone_step     = "Highest step that an earlier attempt reached, from minutes that ended before this attempt began. Steps up to this one are redone. NULL if there is none."
WITH reports AS (
    -- One row per job and minute with reports.
    SELECT cluster, job_id, window_start, min(first_step_unix_ms) AS first_ms, max(last_step_unix_ms) AS last_ms,
           max(step_max) AS step_max
    FROM training_1m
    GROUP BY cluster, job_id, window_start
)
SELECT a.cluster, a.job_id, a.attempt, a.from_time, a.to_time,
       plus_ms(window_of(a.from_time, 1),
               min(r.first_ms) FILTER (WHERE r.first_ms >= unix_ms(a.from_time)
                                         AND coalesce(r.first_ms < unix_ms(a.to_time), true)) - unix_ms(a.from_time)) AS first_step_time,
       -- A minute with steps of this attempt does not tell which of its steps came before.
       max(r.step_max) FILTER (WHERE a.attempt > 0 AND r.last_ms < unix_ms(a.from_time))                            AS redone_step
FROM attempts a
JOIN reports r ON r.cluster = a.cluster AND r.job_id = a.job_id
WHERE a.from_time IS NOT NULL
GROUP BY a.cluster, a.job_id, a.attempt, a.from_time, a.to_time
