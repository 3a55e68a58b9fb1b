--! name    = "jobs"
--! doc     = "One row per job: its latest state, with all attempts folded into it."
--! question = "How long did jobs wait, and how much of their GPU time was lost to retries?"
--! example  = "SELECT team, count(*) AS jobs, CAST(percentile_cont(queue_ms, 0.5) / 1000 AS BIGINT) AS queue_p50_s, sum(gpu_ms_held) / 3600000 AS gpu_hours, round(100.0 * sum(gpu_ms_lost) / nullif(sum(gpu_ms_held), 0), 1) AS lost_percent FROM jobs WHERE submit_time >= now() - INTERVAL '7 days' GROUP BY team ORDER BY gpu_hours DESC"
--! sources = ["attempts"]
--! [columns]
--! cluster       = "Cluster."
--! job_id        = "Job."
--! team          = "Account, group or virtual cluster."
--! user_name     = "User who submitted the job."
--! pool          = "Partition, queue or node pool."
--! qos           = "Quality of service."
--! job_name      = "Name given by the user."
--! gpus_milli    = "Thousandths of a GPU held by the last attempt, or requested if the job has not started."
--! gpu_model     = "GPU model held or requested."
--! nodes         = "Nodes of the last attempt, comma separated, where known."
--! node_count    = "Number of nodes of the last attempt."
--! submit_time   = "Time at which the job entered the queue."
--! eligible_time = "Time from which it waited for capacity only, where the source reports it."
--! start_time    = "Time at which the first attempt began to hold GPUs; NULL if none did."
--! end_time      = "Time at which the job left for good; NULL while it waits or runs."
--! final_state   = "How it ended: COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED or UNKNOWN; NULL while it waits or runs."
--! exit_code     = "Exit code of the last attempt."
--! attempts      = "Runs that began to hold GPUs. A resize does not start a new run."
--! queue_ms      = "Queue delay: first start minus submission, ms; NULL if it never started."
--! run_ms        = "Time in which GPUs were held, ms, over all attempts."
--! gpu_ms_held   = "GPU x ms held, over all attempts."
--! gpu_ms_queued = "GPU x ms requested and waited for, over all waits."
--! gpu_ms_lost   = "GPU x ms held by runs that were followed by another run."
--! as_of         = "While the job is open: time up to which its cluster was observed."
WITH folded_jobs AS (
    -- One row per job: of a single attempt as it is, of several added up.
    SELECT cluster, job_id, team, user_name, pool, qos, job_name, gpus_milli, gpu_model, nodes, node_count,
           submit_time, eligible_time, from_time AS start_time,
           CASE WHEN as_of IS NULL THEN coalesce(to_time, queued_to) END AS end_time,
           final_state, exit_code,
           CASE WHEN from_time IS NULL THEN 0 ELSE 1 END AS attempts,
           ms_between(from_time, coalesce(to_time, as_of)) AS run_ms,
           gpu_ms_held, gpu_ms_queued, 0 AS gpu_ms_lost, as_of
    FROM attempts
    WHERE is_only = 1
    UNION ALL
    SELECT cluster, job_id,
           max(team), max(user_name),
           max(pool)        FILTER (WHERE is_final = 1),
           max(qos), max(job_name),
           max(gpus_milli)  FILTER (WHERE is_final = 1),
           max(gpu_model)   FILTER (WHERE is_final = 1),
           max(nodes)       FILTER (WHERE is_final = 1),
           max(node_count)  FILTER (WHERE is_final = 1),
           min(submit_time), max(eligible_time), min(from_time),
           max(coalesce(to_time, queued_to)) FILTER (WHERE is_final = 1 AND as_of IS NULL),
           max(final_state) FILTER (WHERE is_final = 1),
           max(exit_code)   FILTER (WHERE is_final = 1),
           count(DISTINCT run),
           sum(ms_between(from_time, coalesce(to_time, as_of))),
           sum(gpu_ms_held), sum(gpu_ms_queued),
           coalesce(sum(gpu_ms_held) FILTER (WHERE is_lost = 1), 0),
           max(as_of)
    FROM attempts
    WHERE is_only = 0
    GROUP BY cluster, job_id
)
SELECT cluster, job_id, team, user_name, pool, qos, job_name, gpus_milli, gpu_model, nodes, node_count,
       submit_time, eligible_time, start_time,
       -- A requeued or resized job continues.
       CASE WHEN final_state NOT IN ('REQUEUED', 'RESIZED') THEN end_time END    AS end_time,
       CASE WHEN final_state NOT IN ('REQUEUED', 'RESIZED') THEN final_state END AS final_state,
       exit_code, attempts,
       ms_between(submit_time, start_time) AS queue_ms,
       run_ms, gpu_ms_held, gpu_ms_queued, gpu_ms_lost, as_of
FROM folded_jobs
