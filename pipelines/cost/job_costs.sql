--! name    = "job_costs"
--! doc     = "Cost of the GPUs that jobs held (attempt_costs): GPU time split where the price changes, times the price of its pool and model (price_of). One row per job, contract and currency; gpu_ms adds up to gpu_ms_held of jobs."
--! question = "What did the jobs of each team cost?"
--! example  = "SELECT team, currency, contract, sum(gpu_ms) / 3600000 AS gpu_hours, sum(cost_micros) / 1000000 AS cost FROM job_costs GROUP BY team, currency, contract ORDER BY cost DESC NULLS LAST"
--! sources = ["attempt_costs"]
--! [columns]
--! cluster     = "Cluster."
--! job_id      = "Job."
--! team        = "Account, group or virtual cluster."
--! user_name   = "User who submitted the job."
--! currency    = "Currency of the cost; NULL in the row of time without a known price. Never sum costs of different currencies."
--! contract    = "reserved, on_demand, spot or owned; NULL for time without a price."
--! gpu_ms      = "GPU x ms held at these prices, up to as_of while the job runs."
--! cost_micros = "Cost, millionths of the currency: gpu_ms x price / 3,600,000, rounded half up for each attempt and price; NULL for time without a price."
SELECT cluster, job_id, max(team) AS team, max(user_name) AS user_name, currency, contract,
       sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros
FROM attempt_costs
GROUP BY cluster, job_id, currency, contract
