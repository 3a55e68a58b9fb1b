--! name    = "attempt_costs"
--! doc     = "Cost of each attempt, cut where the price changes: one row per attempt and price, and one for the GPU time of the attempt that has no price. Over the rows of an attempt gpu_ms adds up to gpu_ms_held of attempts."
--! question = "At which prices was the GPU time of an attempt charged?"
--! example  = "SELECT attempt, currency, contract, price_micros_per_gpu_hour / 1000000.0 AS price, gpu_ms / 3600000.0 AS gpu_hours, cost_micros / 1000000.0 AS cost FROM attempt_costs WHERE job_id = '4711' ORDER BY attempt, price"
--! sources = ["attempts", "price_of"]
--! [columns]
--! cluster                   = "Cluster."
--! job_id                    = "Job."
--! attempt                   = "Number of the attempt, from 0."
--! run                       = "Number of the run, from 0, as in attempts."
--! team                      = "Account, group or virtual cluster."
--! user_name                 = "User who submitted the job."
--! currency                  = "Currency of the price; NULL for time without a price."
--! contract                  = "reserved, on_demand, spot or owned; NULL for time without a price."
--! price_micros_per_gpu_hour = "Price of a GPU-hour, millionths of the currency; NULL for time without a price."
--! is_priced                 = "1 for GPU time with a price, else 0."
--! gpu_ms                    = "GPU x ms held at this price, up to as_of while the attempt runs."
--! cost_micros               = "gpu_ms x price / 3,600,000, millionths of the currency, rounded half up; NULL for time without a price, and where the number of GPUs is not known."
WITH held AS (
    -- One row per attempt that held GPUs.
    SELECT cluster, job_id, attempt, run, team, user_name, pool, gpu_model, gpus_milli, from_time,
           coalesce(to_time, as_of) AS known_to, gpu_ms_held
    FROM attempts
    WHERE from_time IS NOT NULL
), priced AS (
    -- One row per attempt and price that was in force while it held GPUs.
    SELECT h.cluster, h.job_id, h.attempt, h.run, h.team, h.user_name, p.currency, p.contract, p.price_micros_per_gpu_hour,
           gpu_ms(h.gpus_milli, h.from_time, greatest(h.from_time, p.from_time), least(h.known_to, p.to_time)) AS gpu_ms
    FROM held h
    JOIN price_of p ON p.cluster = h.cluster AND (p.pool IS NOT DISTINCT FROM h.pool) AND (p.gpu_model IS NOT DISTINCT FROM h.gpu_model)
                   AND p.from_time < h.known_to AND coalesce(p.to_time > h.from_time, true)
), priced_in_all AS (
    -- One row per attempt with a price.
    SELECT cluster, job_id, attempt, sum(gpu_ms) AS gpu_ms FROM priced GROUP BY cluster, job_id, attempt
)
SELECT cluster, job_id, attempt, run, team, user_name, currency, contract, price_micros_per_gpu_hour, 1 AS is_priced, gpu_ms,
       cost_micros(gpu_ms, price_micros_per_gpu_hour) AS cost_micros
FROM priced
UNION ALL
SELECT h.cluster, h.job_id, h.attempt, h.run, h.team, h.user_name, NULL, NULL, NULL, 0, h.gpu_ms_held - coalesce(p.gpu_ms, 0), NULL
FROM held h
LEFT JOIN priced_in_all p ON p.cluster = h.cluster AND p.job_id = h.job_id AND p.attempt = h.attempt
WHERE h.gpu_ms_held <> coalesce(p.gpu_ms, 0)
