--! name    = "attempts"
--! doc     = "One row per attempt of a job to run, and one for a job that has not started; folded from its events."
--! sources = ["job_events"]
--! per     = ["cluster", "job_id"]
--! key     = ["cluster", "job_id", "attempt_id"]
--! [columns]
--! cluster       = "Cluster."
--! job_id        = "Job."
--! attempt_id    = "The source's attempt index, or start time in ms where it has none; NULL for a job that has not started."
--! attempt       = "Number of the attempt in order of start, from 0; NULL for a job that has not started."
--! is_final      = "1 for the last attempt so far, else 0."
--! team          = "Account, group or virtual cluster."
--! user_name     = "User who submitted the job."
--! pool          = "Partition, queue or node pool."
--! qos           = "Quality of service."
--! job_name      = "Name given by the user."
--! gpus_milli    = "Thousandths of a GPU: held, or asked for if the job has not started."
--! gpu_model     = "GPU model held or asked for."
--! node          = "Node, where the attempt ran on one known node; else NULL."
--! nodes         = "All nodes, comma separated, where known."
--! node_count    = "Number of nodes."
--! submit_time   = "When the job entered the queue."
--! eligible_time = "From when on the job waited for capacity only, where the source tells."
--! queued_from   = "When this wait began: submission, or the end of the attempt before."
--! queued_to     = "When this wait ended: start of the attempt, or end of a job that never started; NULL while it waits."
--! from_time     = "When the attempt began to hold GPUs."
--! to_time       = "When it released them; NULL while it holds them."
--! final_state   = "How the attempt ended; NULL while it runs."
--! exit_code     = "Exit code."
--! as_of         = "While something is still open: up to when the cluster was observed."
--! gpu_ms_held   = "GPU x ms held, up to as_of while it runs."
--! gpu_ms_queued = "GPU x ms asked for and waited, from queued_from to queued_to or as_of."
WITH folded AS (
    SELECT cluster, job_id, attempt_id,
           min(event_time) FILTER (WHERE kind = 'SUBMITTED') AS submit_time,
           max(event_time) FILTER (WHERE kind = 'ELIGIBLE')  AS eligible_time,
           min(event_time) FILTER (WHERE kind = 'STARTED')   AS from_time,
           max(event_time) FILTER (WHERE kind = 'ENDED')     AS to_time,
           latest(team, event_time)                          AS team,
           latest(user_name, event_time)                     AS user_name,
           latest(pool, event_time)                          AS pool,
           latest(qos, event_time)                           AS qos,
           latest(job_name, event_time)                      AS job_name,
           latest(gpus_milli, event_time)                    AS gpus_milli,
           latest(gpu_model, event_time)                     AS gpu_model,
           latest(nodes, event_time)                         AS nodes,
           latest(node_count, event_time)                    AS node_count,
           latest(final_state, event_time)                   AS final_state,
           latest(exit_code, event_time)                     AS exit_code,
           max(as_of)                                        AS as_of
    FROM job_events
    WHERE kind <> 'OBSERVED' AND step_id IS NULL
    GROUP BY cluster, job_id, attempt_id
), placed AS (
    SELECT *,
           count(attempt_id) OVER job                     AS attempts,
           CAST(row_number() OVER in_order AS BIGINT) - 1 AS attempt,
           lag(to_time) OVER in_order                     AS previous_end,
           max(submit_time) OVER job                      AS job_submit_time,
           max(eligible_time) OVER job                    AS job_eligible_time,
           max(team) OVER job                             AS job_team,
           max(user_name) OVER job                        AS job_user_name,
           max(pool) OVER job                             AS job_pool,
           max(qos) OVER job                              AS job_qos,
           max(job_name) OVER job                         AS job_job_name,
           max(gpu_model) OVER job                        AS job_gpu_model,
           max(gpus_milli) OVER job                       AS job_gpus_milli
    FROM folded
    WINDOW job AS (PARTITION BY cluster, job_id),
           in_order AS (PARTITION BY cluster, job_id ORDER BY from_time NULLS LAST, attempt_id)
), timed AS (
    SELECT cluster, job_id, attempt_id,
           CASE WHEN from_time IS NOT NULL THEN attempt END                          AS attempt,
           CASE WHEN attempts = 0 OR attempt = attempts - 1 THEN 1 ELSE 0 END        AS is_final,
           coalesce(team, job_team)                                                  AS team,
           coalesce(user_name, job_user_name)                                        AS user_name,
           coalesce(pool, job_pool)                                                  AS pool,
           coalesce(qos, job_qos)                                                    AS qos,
           coalesce(job_name, job_job_name)                                          AS job_name,
           coalesce(gpus_milli, job_gpus_milli)                                      AS gpus_milli,
           coalesce(gpu_model, job_gpu_model)                                        AS gpu_model,
           CASE WHEN node_count = 1 THEN nodes END                                   AS node,
           nodes, node_count,
           job_submit_time                                                           AS submit_time,
           job_eligible_time                                                         AS eligible_time,
           coalesce(previous_end, job_submit_time)                                   AS queued_from,
           coalesce(from_time, to_time)                                              AS queued_to,
           from_time,
           CASE WHEN from_time IS NOT NULL THEN to_time END                          AS to_time,
           CASE WHEN to_time IS NOT NULL THEN final_state END                        AS final_state,
           exit_code,
           CASE WHEN to_time IS NULL THEN as_of END                                  AS as_of
    FROM placed
    WHERE attempts = 0 OR attempt_id IS NOT NULL
)
SELECT *,
       coalesce(gpu_ms(gpus_milli, from_time, from_time, coalesce(to_time, as_of)), 0)       AS gpu_ms_held,
       coalesce(gpu_ms(gpus_milli, queued_from, queued_from, coalesce(queued_to, as_of)), 0) AS gpu_ms_queued
FROM timed
