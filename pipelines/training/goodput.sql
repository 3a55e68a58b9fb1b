--! name    = "goodput"
--! doc     = "Where the GPU time of jobs that report training steps went, all attempts of a job in one row. The nine classes add up to held_gpu_ms exactly. Also ETTR, numerator and denominator. Classes follow Google's ml-goodput-measurement (badput types) and Llama 3's effective training time; ETTR follows Kokolis et al., arXiv 2410.21680."
--! question = "How much of the GPU time of training jobs was productive, and where did the rest go?"
--! example  = "SELECT team, sum(held_gpu_ms) / 3600000 AS gpu_hours, round(100.0 * sum(productive_gpu_ms) / nullif(sum(held_gpu_ms), 0), 1) AS productive_percent, round(100.0 * sum(ettr_numerator_gpu_ms) / nullif(sum(ettr_denominator_gpu_ms), 0), 1) AS ettr_percent, sum(redone_gpu_ms) / 3600000 AS redone_gpu_hours FROM goodput GROUP BY team ORDER BY gpu_hours DESC"
--! sources = ["goodput_attempts", "step_parts", "steps", "attempts"]
--! [columns]
--! cluster                    = "Cluster."
--! job_id                     = "Job."
--! team                       = "Account, group or virtual cluster."
--! user_name                  = "User who submitted the job."
--! pool                       = "Pool of the last attempt."
--! attempts                   = "Attempts that held GPUs; NULL if the scheduler reported none, in which case only the reports are known."
--! runs                       = "Runs that they belong to. A resize does not start a new run."
--! reports                    = "Reports of steps."
--! reports_unplaced           = "Part of the reports that name no attempt and started while none held GPUs; they are in no class."
--! dropped                    = "Reports that clients dropped before they were sent; the time of their steps is in other_gpu_ms."
--! ranks_min                  = "Fewest ranks that reported in any attempt with reports. Silent ranks are assumed to behave like the others."
--! world_max_ranks            = "Largest world size in a report."
--! held_gpu_ms                = "GPU x ms held, over all attempts, up to as_of while one runs. The next nine columns add up to it."
--! productive_gpu_ms          = "In steps, less the classes below: computing, or anything that reports do not separate."
--! startup_gpu_ms             = "Held before the first step of the job's first run."
--! recovery_gpu_ms            = "Held before the first step of a later run, or before a rank went back to an earlier step: restart after a failure, requeue or preemption. The wait between attempts holds nothing; it is in queued_again_gpu_ms."
--! restore_gpu_ms             = "Loading a checkpoint inside a step, as reported. NULL if never reported, as the next three; the time is then in other classes."
--! redone_gpu_ms              = "In steps whose number an earlier attempt, or the rank itself, had already reached; without restore."
--! checkpoint_gpu_ms          = "Saving a checkpoint."
--! data_stall_gpu_ms          = "Waiting for input."
--! communication_stall_gpu_ms = "In collectives that computing does not hide."
--! other_gpu_ms               = "Between steps and after the last one: evaluation, shutdown, steps whose reports are missing."
--! queued_gpu_ms              = "GPU x ms requested and waited for, over all waits, up to as_of while one lasts. The first wait counts from when the job was eligible, if reported. Not held."
--! queued_again_gpu_ms        = "Part of it in waits after the first: between attempts."
--! ettr_numerator_gpu_ms      = "Time of progress: productive_gpu_ms and the stalls in such steps. Startup, recovery, restore, redone steps, checkpoints and other are excluded."
--! ettr_denominator_gpu_ms    = "held_gpu_ms + queued_gpu_ms: time in which the run could have made progress. ETTR is numerator / denominator; summing both over jobs gives the fleet's."
WITH reporting_jobs AS (
    -- One row per job that reports steps.
    SELECT cluster, job_id, count(*) AS reports, max(world_size) AS world_max_ranks FROM steps GROUP BY cluster, job_id
), dropped_reports AS (
    -- One row per job. The client of each attempt counts from its own start.
    SELECT cluster, job_id, sum(dropped) AS dropped
    FROM (SELECT cluster, job_id, attempt_id, rank, max(dropped) AS dropped FROM steps GROUP BY cluster, job_id, attempt_id, rank)
    GROUP BY cluster, job_id
), unplaced_reports AS (
    -- One row per job with reports outside its attempts.
    SELECT cluster, job_id, count(*) AS reports_unplaced FROM step_parts WHERE attempt IS NULL GROUP BY cluster, job_id
), job_totals AS (
    -- One row per job: its attempts added up.
    SELECT cluster, job_id, count(*) AS attempts, count(DISTINCT run) AS runs, min(ranks) FILTER (WHERE ranks > 0) AS ranks_min,
           sum(held_gpu_ms) AS held_gpu_ms, sum(productive_gpu_ms) AS productive_gpu_ms, sum(startup_gpu_ms) AS startup_gpu_ms,
           sum(recovery_gpu_ms) AS recovery_gpu_ms, sum(restore_gpu_ms) AS restore_gpu_ms, sum(redone_gpu_ms) AS redone_gpu_ms,
           sum(checkpoint_gpu_ms) AS checkpoint_gpu_ms, sum(data_stall_gpu_ms) AS data_stall_gpu_ms,
           sum(communication_stall_gpu_ms) AS communication_stall_gpu_ms, sum(other_gpu_ms) AS other_gpu_ms
    FROM goodput_attempts
    GROUP BY cluster, job_id
), attempt_waits AS (
    -- One row per wait, with the time from when the job was eligible.
    SELECT cluster, job_id, team, user_name, pool, is_final, attempt,
           CASE WHEN queued_from IS NULL THEN 0
                -- For a job that was queued again, the latest time of eligibility may belong to a
                -- later wait.
                WHEN queued_from = submit_time AND eligible_time > queued_from
                     AND eligible_time <= coalesce(queued_to, as_of, eligible_time)
                THEN gpu_ms(asked_gpus_milli, queued_from, eligible_time, coalesce(queued_to, as_of))
                ELSE gpu_ms_queued END AS queued_gpu_ms,
           CASE WHEN queued_from > submit_time THEN gpu_ms_queued ELSE 0 END AS queued_again_gpu_ms
    FROM attempts
), job_waits AS (
    -- One row per job: its waits added up.
    SELECT cluster, job_id, max(team) AS team, max(user_name) AS user_name, max(pool) FILTER (WHERE is_final = 1) AS pool,
           sum(queued_gpu_ms) AS queued_gpu_ms, sum(queued_again_gpu_ms) AS queued_again_gpu_ms
    FROM attempt_waits
    GROUP BY cluster, job_id
)
SELECT t.cluster, t.job_id, w.team, w.user_name, w.pool, u.attempts, u.runs, t.reports,
       coalesce(n.reports_unplaced, 0) AS reports_unplaced, l.dropped, u.ranks_min, t.world_max_ranks,
       u.held_gpu_ms, u.productive_gpu_ms, u.startup_gpu_ms, u.recovery_gpu_ms, u.restore_gpu_ms, u.redone_gpu_ms,
       u.checkpoint_gpu_ms, u.data_stall_gpu_ms, u.communication_stall_gpu_ms, u.other_gpu_ms,
       w.queued_gpu_ms, w.queued_again_gpu_ms,
       u.productive_gpu_ms + coalesce(u.data_stall_gpu_ms, 0) + coalesce(u.communication_stall_gpu_ms, 0) AS ettr_numerator_gpu_ms,
       u.held_gpu_ms + w.queued_gpu_ms AS ettr_denominator_gpu_ms
FROM reporting_jobs t
LEFT JOIN dropped_reports l ON l.cluster = t.cluster AND l.job_id = t.job_id
LEFT JOIN unplaced_reports n ON n.cluster = t.cluster AND n.job_id = t.job_id
LEFT JOIN job_totals u ON u.cluster = t.cluster AND u.job_id = t.job_id
LEFT JOIN job_waits w ON w.cluster = t.cluster AND w.job_id = t.job_id
