--! name    = "classified_waits"
--! doc     = "Stretches of waits (waits) with the class of the scheduler's reason from pending_reasons."
--! question = "Which kinds of constraints did schedulers report for waits?"
--! example  = "SELECT reason_layer, reason_constraint, count(DISTINCT job_id) AS jobs FROM classified_waits WHERE to_time IS NULL GROUP BY reason_layer, reason_constraint ORDER BY jobs DESC"
--! sources = ["waits", "pending_reasons"]
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
--! reason_layer              = "Layer of the reason: 1 reservation or quota, 2 provisioning, 3 scheduling, 4 workload; NULL if the reason is missing or unknown."
--! reason_constraint         = "Constraint that the reason stands for; NULL if the reason is missing or unknown."
--! reason_meaning            = "Meaning of the reason; NULL if the reason is missing or unknown."
--! is_open                   = "1 if the scheduler leaves open what the job waits for: no reason, or a reason of constraint resources or priority; else 0."
--! eligible_time             = "Time from which the job waited for capacity only, where the source reports it; of several waits of a job the latest."
--! waited_from               = "Start of the whole wait."
--! from_time                 = "Start of this stretch of the wait."
--! to_time                   = "End of the stretch; NULL while it lasts."
--! as_of                     = "While it lasts: time up to which the cluster was observed."
SELECT w.cluster, w.job_id, w.attempt, w.team, w.user_name, w.pool, w.qos, w.gpus_milli, w.asked_nodes, w.asked_gpus_per_node_milli,
       w.reason, r.layer AS reason_layer, r.constraint AS reason_constraint, r.meaning AS reason_meaning,
       CASE WHEN w.reason IS NULL OR r.constraint IN ('resources', 'priority') THEN 1 ELSE 0 END AS is_open,
       w.eligible_time, w.waited_from, w.from_time, w.to_time, w.as_of
FROM pending_reasons r
RIGHT JOIN waits w ON r.scheduler = 'slurm' AND r.reason = w.reason
