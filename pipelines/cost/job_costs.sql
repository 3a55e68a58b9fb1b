--! name    = "job_costs"
--! doc     = "What the GPUs that jobs held cost: GPU time cut where the price changes, times the price of its pool and model (price_of). One row per job, contract and currency; gpu_ms adds up to gpu_ms_held of jobs."
--! question = "What did the jobs of each team cost?"
--! example  = "SELECT team, currency, contract, sum(gpu_ms) / 3600000 AS gpu_hours, sum(cost_micros) / 1000000 AS cost FROM job_costs GROUP BY team, currency, contract ORDER BY cost DESC NULLS LAST"
--! sources = ["attempts", "price_of"]
--! [columns]
--! cluster     = "Cluster."
--! job_id      = "Job."
--! team        = "Account, group or virtual cluster."
--! user_name   = "User who submitted the job."
--! currency    = "Currency of the cost; NULL in the row of time for which no price is known. Costs of different currencies are not to be added up."
--! contract    = "reserved, on_demand, spot or owned; NULL for time without a price."
--! gpu_ms      = "GPU x ms held at such prices, up to as_of while the job runs."
--! cost_micros = "Cost of it, millionths of the currency: gpu_ms x price / 3,600,000, rounded half up for each attempt and price; NULL for time without a price."
WITH held AS (
    SELECT cluster, job_id, attempt, team, user_name, pool, gpu_model, gpus_milli, from_time,
           coalesce(to_time, as_of) AS to_time, gpu_ms_held
    FROM attempts
    WHERE from_time IS NOT NULL
), pieces AS (
    SELECT h.cluster, h.job_id, h.attempt, h.team, h.user_name, p.currency, p.contract, p.price_micros_per_gpu_hour,
           gpu_ms(h.gpus_milli, h.from_time, greatest(h.from_time, p.from_time), least(h.to_time, p.to_time)) AS gpu_ms
    FROM held h
    JOIN price_of p ON p.cluster = h.cluster AND (p.pool IS NOT DISTINCT FROM h.pool) AND (p.gpu_model IS NOT DISTINCT FROM h.gpu_model)
                   AND p.from_time < h.to_time AND coalesce(p.to_time > h.from_time, true)
), rows AS (
    SELECT cluster, job_id, team, user_name, currency, contract, gpu_ms,
           cost_micros(gpu_ms, price_micros_per_gpu_hour) AS cost_micros
    FROM pieces
    UNION ALL
    SELECT h.cluster, h.job_id, h.team, h.user_name, NULL, NULL, h.gpu_ms_held - coalesce(p.gpu_ms, 0), NULL
    FROM held h
    LEFT JOIN (SELECT cluster, job_id, attempt, sum(gpu_ms) AS gpu_ms FROM pieces GROUP BY cluster, job_id, attempt) p
           ON p.cluster = h.cluster AND p.job_id = h.job_id AND p.attempt = h.attempt
    WHERE h.gpu_ms_held <> coalesce(p.gpu_ms, 0)
)
SELECT cluster, job_id, max(team) AS team, max(user_name) AS user_name, currency, contract,
       sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros
FROM rows
GROUP BY cluster, job_id, currency, contract
