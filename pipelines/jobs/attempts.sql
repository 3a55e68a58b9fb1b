--! name    = "attempts"
--! version = 3
--! doc     = "One row per attempt of a job to run, and one per job that has not started, derived from the job's events."
--! question = "How did attempts to run end, and how much GPU time went into each kind of end?"
--! example  = "SELECT final_state, count(*) AS attempts, sum(gpu_ms_held) / 3600000 AS gpu_hours FROM attempts WHERE from_time >= now() - INTERVAL '7 days' GROUP BY final_state ORDER BY gpu_hours DESC"
--! sources = ["job_facts", "job_events"]
--! per     = ["cluster", "job_id"]
--! key     = ["cluster", "job_id", "attempt_id"]
--! [columns]
--! cluster       = "Cluster."
--! job_id        = "Job."
--! attempt_id    = "Attempt index of the source, or the start time in ms where the source has none; NULL for a job that has not started."
--! attempt       = "Number of the attempt in order of start, from 0; NULL for a job that has not started."
--! is_only       = "1 if the job has no other attempt, else 0."
--! is_final      = "1 for the last attempt so far, else 0."
--! run           = "Number of the run that the attempt belongs to, from 0; NULL for a job that has not started. Attempts that a resize separates belong to one run."
--! is_lost       = "1 if another run followed or is waited for, else 0."
--! team          = "Account, group or virtual cluster."
--! user_name     = "User who submitted the job."
--! pool          = "Partition, queue or node pool."
--! qos           = "Quality of service."
--! job_name      = "Name given by the user."
--! gpus_milli    = "Thousandths of a GPU held, or requested if the job has not started."
--! asked_gpus_milli = "Thousandths of a GPU requested."
--! gpu_model     = "GPU model held or requested."
--! node          = "Node, if the attempt ran on one known node; else NULL."
--! nodes         = "All nodes, comma separated, where known."
--! node_count    = "Number of nodes."
--! submit_time   = "Time at which the job entered the queue."
--! eligible_time = "Time from which the job waited for capacity only, where the source reports it."
--! queued_from   = "Start of this wait: submission, or end of the previous attempt. NULL after a resize, which is not a wait."
--! queued_to     = "End of this wait: start of the attempt, or end of a job that never started. NULL while it waits, and after a resize."
--! from_time     = "Time at which the attempt began to hold GPUs."
--! to_time       = "Time at which it released them; NULL while it holds them."
--! final_state   = "How the attempt ended; NULL while it runs. RESIZED: the job continues on other devices, as the next attempt of the run."
--! exit_code     = "Exit code."
--! as_of         = "While anything is open: time up to which the cluster was observed."
--! gpu_ms_held   = "GPU x ms held, up to as_of while it runs."
--! gpu_ms_queued = "GPU x ms requested and waited for, from queued_from to queued_to or as_of."
WITH facts AS (
    -- One row per job; waits_again if it went back to the queue after its last attempt: it was
    -- requeued, left the queue, was submitted again, or was seen waiting.
    SELECT *,
           last_attempt_id IS NOT NULL
               AND (gave_up_time IS NOT NULL OR coalesce(attempt_state = 'REQUEUED' AND to_time >= last_from_time, false)
                    OR coalesce(last_queued_time > last_from_time AND last_queued_time >= to_time, false))
               AS waits_again
    FROM job_facts
), retried_jobs AS (
    -- One row per job with more than one attempt or wait. They are few; only they need an order.
    SELECT * FROM facts WHERE waits_again OR first_attempt_id < last_attempt_id
), started_attempts AS (
    -- One row per attempt of such a job.
    SELECT e.cluster, e.job_id, e.attempt_id,
           min(e.event_time) FILTER (WHERE e.kind = 'STARTED') AS from_time,
           max(e.event_time) FILTER (WHERE e.kind = 'ENDED')   AS to_time,
           latest(e.pool, e.event_time)                        AS pool,
           latest(e.gpus_milli, e.event_time)                  AS gpus_milli,
           latest(e.gpu_model, e.event_time)                   AS gpu_model,
           latest(e.nodes, e.event_time)                       AS nodes,
           latest(e.node_count, e.event_time)                  AS node_count,
           latest(e.final_state, e.event_time)                 AS final_state,
           latest(e.exit_code, e.event_time)                   AS exit_code,
           max(e.as_of)                                        AS as_of
    FROM retried_jobs j
    JOIN job_events e ON e.cluster = j.cluster AND e.job_id = j.job_id AND e.kind NOT IN ('DEVICE_HELD', 'DEVICE_RELEASED')
    GROUP BY e.cluster, e.job_id, e.attempt_id, e.step_id
    -- Leaves out steps and events outside an attempt. Filtering these few groups is cheaper than
    -- filtering every event before the join.
    HAVING count(e.attempt_id) > 0 AND count(e.step_id) = 0
), ordered_attempts AS (
    -- The same rows, in order of start, with the attempts before and after.
    SELECT *,
           CAST(row_number() OVER by_start AS BIGINT) - 1 AS attempt,
           lead(attempt_id) OVER by_start                 AS next_attempt_id,
           lag(to_time) OVER by_start                     AS previous_end,
           coalesce((lag(final_state) OVER by_start) = 'RESIZED', false) AS resized
    FROM started_attempts
    WINDOW by_start AS (PARTITION BY cluster, job_id ORDER BY from_time NULLS LAST, attempt_id)
), numbered_runs AS (
    -- The same rows, with the number of the run: a resize does not start a new one.
    SELECT *,
           sum(CASE WHEN resized THEN 0 ELSE 1 END) OVER (PARTITION BY cluster, job_id ORDER BY attempt) - 1 AS run,
           sum(CASE WHEN resized THEN 0 ELSE 1 END) OVER (PARTITION BY cluster, job_id) - 1                  AS last_run
    FROM ordered_attempts
), all_attempts AS (
    -- One row per attempt of any job, and one per wait that no attempt has followed.
    SELECT cluster, job_id, last_attempt_id AS attempt_id,
           CASE WHEN from_time IS NOT NULL THEN 0 END AS attempt,
           1 AS is_only, 1 AS is_final,
           CASE WHEN from_time IS NOT NULL THEN 0 END AS run, 0 AS is_lost,
           team, user_name, pool, qos, job_name, gpus_milli, coalesce(asked_gpus_milli, gpus_milli) AS asked_gpus_milli,
           gpu_model, nodes, node_count, submit_time, eligible_time,
           submit_time AS queued_from,
           coalesce(from_time, left_time) AS queued_to,
           from_time,
           CASE WHEN last_attempt_id IS NULL THEN left_time ELSE to_time END AS released,
           CASE WHEN last_attempt_id IS NULL THEN final_state ELSE attempt_state END AS final_state,
           exit_code, as_of
    FROM facts
    WHERE NOT waits_again AND first_attempt_id IS NOT DISTINCT FROM last_attempt_id
    UNION ALL
    SELECT o.cluster, o.job_id, o.attempt_id,
           CASE WHEN o.from_time IS NOT NULL THEN o.attempt END,
           0, CASE WHEN o.next_attempt_id IS NULL AND NOT j.waits_again THEN 1 ELSE 0 END,
           CASE WHEN o.from_time IS NOT NULL THEN o.run END,
           CASE WHEN o.run = o.last_run AND NOT j.waits_again THEN 0 ELSE 1 END,
           j.team, j.user_name, coalesce(o.pool, j.pool), j.qos, j.job_name,
           coalesce(o.gpus_milli, j.gpus_milli), coalesce(j.asked_gpus_milli, o.gpus_milli, j.gpus_milli), coalesce(o.gpu_model, j.gpu_model), o.nodes, o.node_count,
           j.submit_time, j.eligible_time,
           CASE WHEN NOT o.resized THEN coalesce(o.previous_end, j.submit_time) END,
           CASE WHEN NOT o.resized THEN coalesce(o.from_time, o.to_time) END,
           o.from_time, o.to_time, o.final_state, o.exit_code, o.as_of
    FROM numbered_runs o
    JOIN retried_jobs j ON o.cluster = j.cluster AND o.job_id = j.job_id
    UNION ALL
    SELECT cluster, job_id, NULL AS attempt_id, NULL AS attempt, 0 AS is_only, 1 AS is_final, NULL AS run, 0 AS is_lost,
           team, user_name, pool, qos, job_name,
           coalesce(asked_gpus_milli, gpus_milli) AS gpus_milli, coalesce(asked_gpus_milli, gpus_milli) AS asked_gpus_milli,
           gpu_model, NULL AS nodes, NULL AS node_count, submit_time, eligible_time,
           to_time AS queued_from, gave_up_time AS queued_to,
           NULL AS from_time, gave_up_time AS released, gave_up_state AS final_state, exit_code, as_of
    FROM facts
    WHERE waits_again
), closed_attempts AS (
    -- The same rows; end and state only where it has ended, as_of only while it is open.
    SELECT cluster, job_id, attempt_id, attempt, is_only, is_final, run, is_lost, team, user_name, pool, qos, job_name, gpus_milli,
           asked_gpus_milli, gpu_model,
           CASE WHEN node_count = 1 THEN nodes END                 AS node,
           nodes, node_count, submit_time, eligible_time, queued_from, queued_to, from_time,
           CASE WHEN from_time IS NOT NULL THEN released END       AS to_time,
           CASE WHEN released IS NOT NULL THEN final_state END     AS final_state,
           exit_code,
           CASE WHEN released IS NULL THEN as_of END               AS as_of
    FROM all_attempts
)
SELECT *,
       coalesce(gpu_ms(gpus_milli, from_time, from_time, coalesce(to_time, as_of)), 0)       AS gpu_ms_held,
       coalesce(gpu_ms(asked_gpus_milli, queued_from, queued_from, coalesce(queued_to, as_of)), 0) AS gpu_ms_queued
FROM closed_attempts
