--! name    = "allocations"
--! doc     = "Holds of GPUs by jobs: how many, in which pool, on which node where known, and for how long."
--! question = "Which jobs and teams hold how many GPUs right now?"
--! example  = "SELECT team, sum(gpus_milli) / 1000 AS gpus, count(DISTINCT job_id) AS jobs FROM allocations WHERE from_time <= now() AND coalesce(to_time > now(), true) GROUP BY team ORDER BY gpus DESC"
--! sources = ["attempts"]
--! [columns]
--! cluster     = "Cluster."
--! job_id      = "Job that held the GPUs."
--! attempt     = "Number of the attempt, from 0."
--! team        = "Account, group or virtual cluster."
--! user_name   = "User who submitted the job."
--! pool        = "Partition, queue or node pool."
--! node        = "Node, where the attempt ran on one known node; else NULL."
--! nodes       = "All nodes, comma separated, where known."
--! gpu_model   = "GPU model."
--! gpus_milli  = "Thousandths of a GPU held."
--! from_time   = "Start of the hold."
--! to_time     = "End; NULL while it lasts."
--! final_state = "How the attempt ended; NULL while it runs."
--! gpu_ms_held = "GPU x ms held, up to as_of while it lasts."
--! as_of       = "While it lasts: time up to which the cluster was observed."
SELECT cluster, job_id, attempt, team, user_name, pool, node, nodes, gpu_model, gpus_milli, from_time, to_time, final_state,
       gpu_ms_held, as_of
FROM attempts
WHERE from_time IS NOT NULL
