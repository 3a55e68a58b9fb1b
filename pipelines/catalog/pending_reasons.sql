--! name    = "pending_reasons"
--! doc     = "Reasons for waits: those of schedulers, and those that Tidegate derives itself: schemas/pending_reasons.csv."
--! question = "What does a scheduler's reason for a wait mean, and what ends the wait?"
--! example  = "SELECT reason, layer, constraint, meaning, starts_when FROM pending_reasons WHERE scheduler = 'slurm' AND reason LIKE 'QOS%' ORDER BY reason"
--! sources = []
--! catalog = { file = "schemas/pending_reasons.csv", key = ["scheduler", "reason"], whole_numbers = ["layer"] }
--! [columns]
--! scheduler   = "Source of the reason: slurm; tidegate for what is derived from capacity, quotas and shapes."
--! reason      = "The reason in the scheduler's words."
--! layer       = "1 reservation or quota, 2 provisioning, 3 scheduling, 4 workload."
--! constraint  = "The binding constraint, in Tidegate's terms."
--! meaning     = "Meaning of the reason."
--! starts_when = "Event that would start the job."
SELECT scheduler, reason, layer, constraint, meaning, starts_when
FROM catalog
