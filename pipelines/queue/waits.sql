--! name    = "waits"
--! doc     = "Stretches of waits in which the scheduler reported one reason, with the shape that the job requested."
--! question = "For which of the scheduler's reasons did jobs wait?"
--! example  = "SELECT reason, count(DISTINCT job_id) AS jobs, sum(gpu_ms(gpus_milli, from_time, from_time, coalesce(to_time, as_of))) / 3600000 AS gpu_hours FROM waits WHERE from_time >= now() - INTERVAL '7 days' GROUP BY reason ORDER BY gpu_hours DESC"
--! sources = ["attempts", "job_events"]
--! once    = true
--! [columns]
--! cluster                   = "Cluster."
--! job_id                    = "Job."
--! attempt                   = "Number of the attempt that the wait led to, from 0; NULL if it has not started."
--! team                      = "Account, group or virtual cluster."
--! user_name                 = "User who submitted the job."
--! pool                      = "Partition, queue or node pool."
--! qos                       = "Quality of service."
--! gpus_milli                = "Thousandths of a GPU requested."
--! asked_nodes               = "Nodes requested; NULL if the shape is not known."
--! asked_gpus_per_node_milli = "Thousandths of a GPU requested on each node; NULL if the shape is not known."
--! shape_evidence            = "Evidence for the shape. asked: reported by the scheduler; small: at most one GPU; given: what the attempt later held on its nodes. NULL: shape not known."
--! reason                    = "The scheduler's reason; NULL until one is reported."
--! eligible_time             = "Time from which the job waited for capacity only, where the source reports it."
--! waited_from               = "Start of the whole wait."
--! from_time                 = "Start of this stretch of the wait."
--! to_time                   = "End; NULL while it lasts."
--! as_of                     = "While it lasts: time up to which the cluster was observed."
WITH attempt_waits AS (
    -- One row per wait.
    SELECT cluster, job_id, attempt, team, user_name, pool, qos, asked_gpus_milli AS gpus_milli, gpus_milli AS held_gpus_milli,
           node_count, eligible_time, queued_from, queued_to, as_of
    FROM attempts
    WHERE queued_from IS NOT NULL AND coalesce(queued_from < queued_to, true)
), reports AS (
    -- One row per job and time at which the scheduler reported on its wait.
    SELECT cluster, job_id, event_time, max(reason) AS reason,
           max(asked_node_count) AS node_count, max(asked_gpus_per_node_milli) AS per_node
    FROM job_events
    WHERE kind = 'WAITING' AND step_id IS NULL
    GROUP BY cluster, job_id, event_time
), shapes AS (
    -- One row per job whose shape the scheduler reported.
    SELECT cluster, job_id, latest(node_count, event_time) AS node_count, latest(per_node, event_time) AS per_node
    FROM reports WHERE node_count IS NOT NULL AND per_node IS NOT NULL
    GROUP BY cluster, job_id
), stretches AS (
    -- One row per start of a wait, and one per report within it.
    SELECT w.cluster, w.job_id, w.queued_from, w.queued_from AS from_time, CAST(NULL AS VARCHAR) AS reason FROM attempt_waits w
    UNION ALL
    SELECT w.cluster, w.job_id, w.queued_from, t.event_time, t.reason
    FROM reports t JOIN attempt_waits w
      ON t.cluster = w.cluster AND t.job_id = w.job_id AND t.event_time >= w.queued_from AND coalesce(t.event_time < w.queued_to, true)
), starts AS (
    -- One row per wait and time; a reason reported at the start of the wait is its first.
    SELECT cluster, job_id, queued_from, from_time, max(reason) AS reason FROM stretches GROUP BY cluster, job_id, queued_from, from_time
), stretches_with_end AS (
    -- The same rows, each with the start of the next.
    SELECT *, lead(from_time) OVER (PARTITION BY cluster, job_id, queued_from ORDER BY from_time) AS next_time FROM starts
)
SELECT w.cluster, w.job_id, w.attempt, w.team, w.user_name, w.pool, w.qos, w.gpus_milli,
       CASE WHEN s.node_count IS NOT NULL THEN s.node_count
            WHEN w.gpus_milli BETWEEN 1 AND 1000 THEN 1
            WHEN w.gpus_milli = w.held_gpus_milli AND w.node_count > 0 AND w.gpus_milli % w.node_count = 0 THEN w.node_count
       END AS asked_nodes,
       CASE WHEN s.node_count IS NOT NULL THEN s.per_node
            WHEN w.gpus_milli BETWEEN 1 AND 1000 THEN w.gpus_milli
            WHEN w.gpus_milli = w.held_gpus_milli AND w.node_count > 0 AND w.gpus_milli % w.node_count = 0 THEN w.gpus_milli / w.node_count
       END AS asked_gpus_per_node_milli,
       CASE WHEN s.node_count IS NOT NULL THEN 'asked'
            WHEN w.gpus_milli BETWEEN 1 AND 1000 THEN 'small'
            WHEN w.gpus_milli = w.held_gpus_milli AND w.node_count > 0 AND w.gpus_milli % w.node_count = 0 THEN 'given'
       END AS shape_evidence,
       e.reason, w.eligible_time, w.queued_from AS waited_from, e.from_time,
       coalesce(e.next_time, w.queued_to) AS to_time,
       CASE WHEN e.next_time IS NULL AND w.queued_to IS NULL THEN w.as_of END AS as_of
FROM shapes s
RIGHT JOIN (attempt_waits w JOIN stretches_with_end e ON e.cluster = w.cluster AND e.job_id = w.job_id AND e.queued_from = w.queued_from)
  ON s.cluster = w.cluster AND s.job_id = w.job_id
