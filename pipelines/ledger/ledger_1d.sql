--! name    = "ledger_1d"
--! version = 4
--! doc     = "Where every GPU-ms went, per UTC day: ledger_1h summed up."
--! question = "Where did every GPU-hour that is paid for go, day by day?"
--! example  = "SELECT window_start, class, sum(gpu_ms) / 3600000 AS gpu_hours FROM ledger_1d WHERE window_start >= now() - INTERVAL '30 days' GROUP BY window_start, class ORDER BY window_start, gpu_hours DESC"
--! sources = ["ledger_1h"]
--! rolls_up = "ledger_1h"
--! window  = "1d"
--! opening = true
--! wait_outcome = false
--! key     = ["window_start", "cluster", "pool", "node", "gpu_uuid", "mig_uuid", "team", "user_name", "job_id", "class", "formula"]
--! [extents]
--! ledger_1h = { time = "window_start" }
--! [columns]
--! window_start = "Start of the UTC day."
--! cluster      = "Cluster."
--! pool         = "Pool of the job that held the GPUs, else of the node."
--! node         = "Node; NULL if not known."
--! gpu_uuid     = "GPU, as in ledger_1h."
--! mig_uuid     = "MIG slice, as in ledger_1h."
--! team         = "Team, as in ledger_1h."
--! user_name    = "User of the job that held the GPUs."
--! job_id       = "Job that held the GPUs."
--! class        = "Class of the time: one of ledger_classes."
--! formula      = "Evidence for the class, as in ledger_1m."
--! gpu_ms       = "GPU x ms."
--! cost_micros  = "Cost by the price book, as in ledger_1h; NULL if no price is known."
SELECT window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula, sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros
FROM ledger_1h
GROUP BY window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula
