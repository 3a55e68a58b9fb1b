--! name    = "ledger_1h"
--! doc     = "Where every GPU-ms went, per UTC hour: ledger_1m added up."
--! sources = ["ledger_1m"]
--! window  = "1h"
--! key     = ["window_start", "cluster", "pool", "node", "gpu_uuid", "mig_uuid", "team", "user_name", "job_id", "class", "formula"]
--! [extents]
--! ledger_1m = { time = "window_start" }
--! [columns]
--! window_start = "Start of the UTC hour."
--! cluster      = "Cluster."
--! pool         = "Pool of the job that held it, else of the node."
--! node         = "Node; NULL where nobody said."
--! gpu_uuid     = "GPU, as in ledger_1m."
--! mig_uuid     = "MIG slice, as in ledger_1m."
--! team         = "Team of the job that held it; NULL if nobody did."
--! user_name    = "User of the job that held it."
--! job_id       = "Job that held it."
--! class        = "What the time was, as in ledger_1m."
--! formula      = "How it is known, as in ledger_1m."
--! gpu_ms       = "GPU x ms."
--! cost_micros  = "What it cost by the price book, as in ledger_1m; NULL where no price is known."
SELECT window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula, sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros
FROM ledger_1m
GROUP BY window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula
