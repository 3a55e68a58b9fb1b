--! name    = "goodput_attempts"
--! doc     = "Where the GPU time of each attempt of a job that reports steps went: classes that add up to gpu_ms_held exactly. goodput has them for whole jobs and defines each class."
--! question = "What did each restart of a training job cost in startup and redone steps?"
--! example  = "SELECT job_id, attempt, from_time, held_gpu_ms / 1000 AS gpu_s, (startup_gpu_ms + recovery_gpu_ms) / 1000 AS starting_gpu_s, redone_gpu_ms / 1000 AS redone_gpu_s FROM goodput_attempts WHERE attempt > 0 AND from_time >= now() - INTERVAL '7 days' ORDER BY redone_gpu_s DESC LIMIT 20"
--! sources = ["step_parts", "attempts"]
--! [columns]
--! cluster                    = "Cluster."
--! job_id                     = "Job."
--! attempt                    = "Number of the attempt, from 0."
--! run                        = "Number of the run that it belongs to."
--! ranks                      = "Ranks that reported in it. Each stands for an equal part of the attempt's GPUs; silent ranks are assumed to behave like these."
--! reports                    = "Reports of steps."
--! held_gpu_ms                = "GPU x ms held, up to as_of while it runs."
--! startup_gpu_ms             = "See goodput, as for all following columns."
--! recovery_gpu_ms            = "Before the first step of a later run, and before a rank went back."
--! restore_gpu_ms             = "Loading a checkpoint."
--! redone_gpu_ms              = "In steps done before."
--! checkpoint_gpu_ms          = "Saving a checkpoint."
--! data_stall_gpu_ms          = "Waiting for input."
--! communication_stall_gpu_ms = "In collectives that computing does not hide."
--! productive_gpu_ms          = "The rest of steps not done before."
--! other_gpu_ms               = "Between steps and after the last one."
--! from_time                  = "Time at which the attempt began to hold GPUs."
--! to_time                    = "Time at which it released them; NULL while it holds them."
WITH attempt_parts AS (
    -- One row per attempt with reports.
    SELECT cluster, job_id, attempt,
           count(DISTINCT rank) AS ranks, count(*) AS reports,
           sum(CASE before WHEN 'startup' THEN before_us ELSE 0 END)  AS startup_us,
           sum(CASE before WHEN 'recovery' THEN before_us ELSE 0 END) AS recovery_us,
           sum(restore_us) AS restore_us, sum(redone_us) AS redone_us, sum(checkpoint_us) AS checkpoint_us,
           sum(data_stall_us) AS data_stall_us, sum(communication_stall_us) AS communication_stall_us,
           sum(productive_us) AS productive_us
    FROM step_parts
    WHERE attempt IS NOT NULL
    GROUP BY cluster, job_id, attempt
), reporting_jobs AS (
    -- One row per job with reports.
    SELECT DISTINCT cluster, job_id FROM attempt_parts
), timed_attempts AS (
    -- One row per attempt of such a job, with its whole time over all ranks.
    SELECT a.cluster, a.job_id, a.attempt, a.run, a.gpu_ms_held, a.from_time, a.to_time,
           coalesce(p.ranks, 0) AS ranks, coalesce(p.reports, 0) AS reports,
           greatest(coalesce(p.ranks, 1), 1) * 1000 * ms_between(a.from_time, coalesce(a.to_time, a.as_of)) AS all_us,
           p.startup_us, p.recovery_us, p.restore_us, p.redone_us, p.checkpoint_us, p.data_stall_us,
           p.communication_stall_us, p.productive_us
    FROM attempts a
    JOIN reporting_jobs r ON r.cluster = a.cluster AND r.job_id = a.job_id
    LEFT JOIN attempt_parts p ON p.cluster = a.cluster AND p.job_id = a.job_id AND p.attempt = a.attempt
    WHERE a.from_time IS NOT NULL
), complete_parts AS (
    -- The same rows; an attempt without a step was starting all the time.
    SELECT cluster, job_id, attempt, run, ranks, reports, gpu_ms_held, from_time, to_time, all_us,
           CASE WHEN ranks = 0 AND run = 0 THEN all_us ELSE coalesce(startup_us, 0) END  AS startup_us,
           CASE WHEN ranks = 0 AND run > 0 THEN all_us ELSE coalesce(recovery_us, 0) END AS recovery_us,
           restore_us, coalesce(redone_us, 0) AS redone_us, checkpoint_us, data_stall_us, communication_stall_us,
           coalesce(productive_us, 0) AS productive_us
    FROM timed_attempts
), boundaries AS (
    -- The same rows, with the ends of the classes laid one after the other. Differences of these
    -- ends, scaled to GPU time, add up exactly.
    SELECT *,
           startup_us + recovery_us AS to_2,
           startup_us + recovery_us + coalesce(restore_us, 0) AS to_3,
           startup_us + recovery_us + coalesce(restore_us, 0) + redone_us AS to_4,
           startup_us + recovery_us + coalesce(restore_us, 0) + redone_us + coalesce(checkpoint_us, 0) AS to_5,
           startup_us + recovery_us + coalesce(restore_us, 0) + redone_us + coalesce(checkpoint_us, 0)
               + coalesce(data_stall_us, 0) AS to_6,
           startup_us + recovery_us + coalesce(restore_us, 0) + redone_us + coalesce(checkpoint_us, 0)
               + coalesce(data_stall_us, 0) + coalesce(communication_stall_us, 0) AS to_7,
           startup_us + recovery_us + coalesce(restore_us, 0) + redone_us + coalesce(checkpoint_us, 0)
               + coalesce(data_stall_us, 0) + coalesce(communication_stall_us, 0) + productive_us AS to_8,
           -- Avoids a division by zero for an attempt of no length.
           greatest(all_us, 1) AS whole_us
    FROM complete_parts
)
SELECT cluster, job_id, attempt, run, ranks, reports, gpu_ms_held AS held_gpu_ms,
       part_of(gpu_ms_held, 0, startup_us, whole_us)                                              AS startup_gpu_ms,
       part_of(gpu_ms_held, startup_us, to_2, whole_us)                                           AS recovery_gpu_ms,
       CASE WHEN restore_us IS NOT NULL THEN part_of(gpu_ms_held, to_2, to_3, whole_us) END       AS restore_gpu_ms,
       part_of(gpu_ms_held, to_3, to_4, whole_us)                                                 AS redone_gpu_ms,
       CASE WHEN checkpoint_us IS NOT NULL THEN part_of(gpu_ms_held, to_4, to_5, whole_us) END    AS checkpoint_gpu_ms,
       CASE WHEN data_stall_us IS NOT NULL THEN part_of(gpu_ms_held, to_5, to_6, whole_us) END    AS data_stall_gpu_ms,
       CASE WHEN communication_stall_us IS NOT NULL THEN part_of(gpu_ms_held, to_6, to_7, whole_us) END AS communication_stall_gpu_ms,
       part_of(gpu_ms_held, to_7, to_8, whole_us)                                                 AS productive_gpu_ms,
       part_of(gpu_ms_held, to_8, whole_us, whole_us)                                             AS other_gpu_ms,
       from_time, to_time
FROM boundaries
