--! name    = "price_of"
--! doc     = "Which price holds for a GPU of a pool and model, from when to when: the most specific entry of prices. Of its pool and model, then of its model, then of its pool, then of any. No row: no price is known."
--! question = "What does a GPU-hour cost now, by pool and model?"
--! example  = "SELECT cluster, pool, gpu_model, price_micros_per_gpu_hour / 1000000.0 AS price, currency, contract FROM price_of WHERE from_time <= now() AND coalesce(to_time > now(), true) ORDER BY cluster, pool, gpu_model"
--! sources = ["prices", "attempts", "node_events", "capacity"]
--! [columns]
--! cluster                   = "Cluster."
--! pool                      = "Pool that jobs, nodes, reservations or the price book name; NULL where a job's is not known: prices of a pool do not hold for it."
--! gpu_model                 = "Model that they name; NULL where it is not known: prices of a model do not hold for it."
--! price_micros_per_gpu_hour = "Price of a GPU-hour, millionths of the currency."
--! currency                  = "Currency as in ISO 4217."
--! contract                  = "reserved, on_demand, spot or owned."
--! specificity               = "3: the price is of pool and model; 2: of the model; 1: of the pool; 0: of any GPU of the cluster."
--! from_time                 = "From when on."
--! to_time                   = "Until when; NULL while it holds. GPU time cut at these times and given to cost_micros() is priced exactly."
WITH named AS (
    SELECT cluster, pool, gpu_model FROM attempts WHERE from_time IS NOT NULL
    UNION
    SELECT cluster, pool, gpu_model FROM node_events WHERE pool IS NOT NULL OR gpu_model IS NOT NULL
    UNION
    SELECT cluster, pool, gpu_model FROM prices
    UNION
    -- What is reserved may have no nodes yet.
    SELECT cluster, pool, gpu_model FROM capacity WHERE kind = 'RESERVATION_SET' AND (pool IS NOT NULL OR gpu_model IS NOT NULL)
), fitting AS (
    SELECT n.cluster, n.pool, n.gpu_model, p.price_micros_per_gpu_hour, p.currency, p.contract, p.from_time, p.to_time,
           CASE WHEN p.gpu_model IS NOT NULL THEN 2 ELSE 0 END + CASE WHEN p.pool IS NOT NULL THEN 1 ELSE 0 END AS specificity
    FROM named n
    JOIN prices p ON p.cluster = n.cluster AND (p.pool IS NULL OR p.pool = n.pool)
                 AND (p.gpu_model IS NULL OR p.gpu_model = n.gpu_model)
), cuts AS (
    SELECT cluster, pool, gpu_model, from_time AS cut_time FROM fitting
    UNION
    SELECT cluster, pool, gpu_model, to_time FROM fitting WHERE to_time IS NOT NULL
), pieces AS (
    SELECT *, lead(cut_time) OVER (PARTITION BY cluster, pool, gpu_model ORDER BY cut_time) AS next_time FROM cuts
), ranked AS (
    SELECT f.*, c.cut_time, c.next_time,
           row_number() OVER (PARTITION BY c.cluster, c.pool, c.gpu_model, c.cut_time ORDER BY f.specificity DESC) AS place
    FROM pieces c
    JOIN fitting f ON f.cluster = c.cluster AND (f.pool IS NOT DISTINCT FROM c.pool) AND (f.gpu_model IS NOT DISTINCT FROM c.gpu_model)
                  AND f.from_time <= c.cut_time AND coalesce(f.to_time > c.cut_time, true)
)
SELECT cluster, pool, gpu_model, price_micros_per_gpu_hour, currency, contract, CAST(specificity AS BIGINT) AS specificity,
       cut_time AS from_time, next_time AS to_time
FROM ranked
WHERE place = 1
