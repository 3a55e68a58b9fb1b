--! name    = "pending_reasons"
--! doc     = "Why jobs wait: reasons of schedulers, and what Tidegate itself finds: schemas/pending_reasons.csv as a table."
--! question = "What does a scheduler's reason for a wait mean, and what ends the wait?"
--! example  = "SELECT reason, layer, constraint, meaning, starts_when FROM pending_reasons WHERE scheduler = 'slurm' AND reason LIKE 'QOS%' ORDER BY reason"
--! sources = []
--! catalog = { file = "schemas/pending_reasons.csv", key = ["scheduler", "reason"], whole_numbers = ["layer"] }
--! [columns]
--! scheduler   = "Whose reason it is: slurm; tidegate for what is found from capacity, quotas and shapes."
--! reason      = "The reason as the scheduler names it."
--! layer       = "1 reservation or quota, 2 provisioning, 3 scheduling, 4 workload."
--! constraint  = "What binds, by a name of ours."
--! meaning     = "What it says."
--! starts_when = "What would start the job."
SELECT scheduler, reason, layer, constraint, meaning, starts_when
FROM catalog
