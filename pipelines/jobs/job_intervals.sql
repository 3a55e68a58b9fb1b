--! name    = "job_intervals"
--! doc     = "Intervals in which a job held GPUs or waited for them."
--! question = "When did a job wait, and when did it hold GPUs?"
--! example  = "SELECT kind, attempt, gpus_milli / 1000.0 AS gpus, from_time, coalesce(to_time, as_of) AS until_time, final_state FROM job_intervals WHERE job_id = '4711' ORDER BY from_time"
--! sources = ["attempts"]
--! [columns]
--! cluster     = "Cluster."
--! pool        = "Partition, queue or node pool."
--! team        = "Account, group or virtual cluster."
--! user_name   = "User who submitted the job."
--! job_id      = "Job."
--! attempt     = "Number of the attempt, from 0; NULL for a job that has not started."
--! kind        = "held or queued."
--! gpus_milli  = "Thousandths of a GPU held or requested."
--! from_time   = "Start."
--! to_time     = "End; NULL while it lasts."
--! final_state = "How the attempt ended; NULL while it lasts."
--! as_of       = "While it lasts: time up to which the cluster was observed."
SELECT cluster, pool, team, user_name, job_id, attempt, 'held' AS kind, gpus_milli, from_time, to_time, final_state, as_of
FROM attempts
WHERE from_time IS NOT NULL
UNION ALL
SELECT cluster, pool, team, user_name, job_id, attempt, 'queued', asked_gpus_milli, queued_from, queued_to, final_state, as_of
FROM attempts
WHERE queued_from IS NOT NULL
