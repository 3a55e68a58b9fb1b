--! name    = "eligible_waits"
--! doc     = "Stretches of waits (classified_waits) with the time at which the job became eligible in that wait."
--! question = "When did a waiting job become eligible, so that it waited for capacity only?"
--! example  = "SELECT job_id, waited_from, eligible_from, reason FROM eligible_waits WHERE to_time IS NULL ORDER BY waited_from LIMIT 20"
--! sources = ["classified_waits", "waits", "job_events"]
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
--! reason                    = "The scheduler's reason; NULL if none was reported."
--! reason_layer              = "Layer of the reason, as in classified_waits."
--! reason_constraint         = "Constraint that the reason stands for, as in classified_waits."
--! reason_meaning            = "Meaning of the reason, as in classified_waits."
--! is_open                   = "1 if the scheduler leaves open what the job waits for, as in classified_waits."
--! eligible_from             = "Time from which the job waited for capacity only; NULL where the source does not report it."
--! priority                  = "Priority as last reported when the stretch began; NULL if not reported."
--! waited_from               = "Start of the whole wait."
--! from_time                 = "Start of this stretch of the wait."
--! to_time                   = "End of the stretch; NULL while it lasts."
--! known_to                  = "End of the stretch, or the time up to which the cluster was observed."
--! as_of                     = "While it lasts: time up to which the cluster was observed."
WITH whole_waits AS (
    -- One row per wait, with its end or the time up to which it was observed.
    SELECT cluster, job_id, waited_from, max(coalesce(to_time, as_of)) AS known_to
    FROM waits
    GROUP BY cluster, job_id, waited_from
), eligible_events AS (
    -- One row per wait in which the job became eligible; the latest time counts.
    SELECT w.cluster, w.job_id, w.waited_from, max(e.event_time) AS eligible_from
    FROM whole_waits w
    JOIN job_events e ON e.cluster = w.cluster AND e.job_id = w.job_id AND e.event_time >= w.waited_from AND e.event_time < w.known_to
    WHERE e.kind = 'ELIGIBLE' AND e.step_id IS NULL
    GROUP BY w.cluster, w.job_id, w.waited_from
), priorities AS (
    -- One row per job and time at which its priority was reported.
    SELECT cluster, job_id, event_time AS at, max(priority) AS priority
    FROM job_events
    WHERE priority IS NOT NULL AND step_id IS NULL
    GROUP BY cluster, job_id, event_time
), last_priorities AS (
    -- One row per stretch, with the latest priority before it.
    SELECT w.cluster, w.job_id, w.from_time, latest(p.priority, p.at) AS priority
    FROM waits w JOIN priorities p ON p.cluster = w.cluster AND p.job_id = w.job_id AND p.at <= w.from_time
    GROUP BY w.cluster, w.job_id, w.from_time
)
SELECT w.cluster, w.job_id, w.attempt, w.team, w.user_name, w.pool, w.qos, w.gpus_milli, w.asked_nodes, w.asked_gpus_per_node_milli,
       w.reason, w.reason_layer, w.reason_constraint, w.reason_meaning, w.is_open,
       -- A requeued job becomes eligible once per wait. A job that never started may have left
       -- before it became eligible.
       CASE WHEN w.attempt IS NULL THEN w.eligible_time ELSE e.eligible_from END AS eligible_from,
       p.priority, w.waited_from, w.from_time, w.to_time, coalesce(w.to_time, w.as_of) AS known_to, w.as_of
FROM last_priorities p
RIGHT JOIN (eligible_events e
            RIGHT JOIN classified_waits w ON e.cluster = w.cluster AND e.job_id = w.job_id AND e.waited_from = w.waited_from)
  ON p.cluster = w.cluster AND p.job_id = w.job_id AND p.from_time = w.from_time
