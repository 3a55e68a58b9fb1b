--! name    = "price_of"
--! doc     = "Price that applies to a GPU of a pool and model, over time: the most specific entry of prices. Order: pool and model, model, pool, any. Without a row, no price is known."
--! question = "What does a GPU-hour cost now, by pool and model?"
--! example  = "SELECT cluster, pool, gpu_model, price_micros_per_gpu_hour / 1000000.0 AS price, currency, contract FROM price_of WHERE from_time <= now() AND coalesce(to_time > now(), true) ORDER BY cluster, pool, gpu_model"
--! sources = ["prices", "attempt_models", "node_events", "capacity"]
--! once    = true
--! [columns]
--! cluster                   = "Cluster."
--! pool                      = "Pool that jobs, nodes, reservations or the price book name; NULL for jobs of unknown pool, to which prices of a pool do not apply."
--! gpu_model                 = "Model that they name; NULL if not known: prices of a model do not apply then."
--! price_micros_per_gpu_hour = "Price of a GPU-hour, millionths of the currency."
--! currency                  = "Currency as in ISO 4217."
--! contract                  = "reserved, on_demand, spot or owned."
--! specificity               = "3: price for pool and model; 2: for the model; 1: for the pool; 0: for any GPU of the cluster."
--! from_time                 = "Start."
--! to_time                   = "End; NULL while it applies. GPU time split at these times and passed to cost_micros() is priced exactly."
WITH gpu_kinds AS (
    -- One row per pool and model that jobs, nodes, reservations or prices name.
    SELECT cluster, pool, gpu_model FROM attempt_models
    UNION
    SELECT cluster, pool, gpu_model FROM node_events WHERE pool IS NOT NULL OR gpu_model IS NOT NULL
    UNION
    SELECT cluster, pool, gpu_model FROM prices
    UNION
    -- Reserved GPUs may have no nodes yet.
    SELECT cluster, pool, gpu_model FROM capacity WHERE kind = 'RESERVATION_SET' AND (pool IS NOT NULL OR gpu_model IS NOT NULL)
), matching_entries AS (
    -- One row per pool, model and matching entry of the price book.
    SELECT n.cluster, n.pool, n.gpu_model, p.price_micros_per_gpu_hour, p.currency, p.contract, p.from_time, p.to_time,
           CASE WHEN p.gpu_model IS NOT NULL THEN 2 ELSE 0 END + CASE WHEN p.pool IS NOT NULL THEN 1 ELSE 0 END AS specificity
    FROM prices p
    JOIN gpu_kinds n ON p.cluster = n.cluster AND (p.pool IS NULL OR p.pool = n.pool)
                 AND (p.gpu_model IS NULL OR p.gpu_model = n.gpu_model)
), cut_times AS (
    -- One row per time at which a matching entry begins or ends.
    SELECT cluster, pool, gpu_model, from_time AS cut_time FROM matching_entries
    UNION
    SELECT cluster, pool, gpu_model, to_time FROM matching_entries WHERE to_time IS NOT NULL
), intervals AS (
    -- One row per time between two of these.
    SELECT *, lead(cut_time) OVER (PARTITION BY cluster, pool, gpu_model ORDER BY cut_time) AS next_time FROM cut_times
), ranked_entries AS (
    -- One row per such time and matching entry; place 1 is the most specific.
    SELECT f.*, c.cut_time, c.next_time,
           row_number() OVER (PARTITION BY c.cluster, c.pool, c.gpu_model, c.cut_time ORDER BY f.specificity DESC) AS place
    FROM intervals c
    JOIN matching_entries f ON f.cluster = c.cluster AND (f.pool IS NOT DISTINCT FROM c.pool) AND (f.gpu_model IS NOT DISTINCT FROM c.gpu_model)
                  AND f.from_time <= c.cut_time AND coalesce(f.to_time > c.cut_time, true)
)
SELECT cluster, pool, gpu_model, price_micros_per_gpu_hour, currency, contract, CAST(specificity AS BIGINT) AS specificity,
       cut_time AS from_time, next_time AS to_time
FROM ranked_entries
WHERE place = 1
