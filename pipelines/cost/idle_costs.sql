--! name    = "idle_costs"
--! doc     = "Cost of one percentage point of idle GPUs for a year, over time: the GPUs that exist times the price in force. At a moment T: from_time <= T AND coalesce(to_time > T, true). Points of pools and models add up within a cluster and currency."
--! question = "What does one percentage point of idle GPUs cost per year?"
--! example  = "SELECT cluster, currency, sum(gpus_milli) / 1000 AS gpus, sum(point_cost_micros) / 1000000 AS cost_of_a_point, count(reason) AS pools_not_known FROM idle_costs WHERE from_time <= now() AND coalesce(to_time > now(), true) GROUP BY cluster, currency"
--! sources = ["node_capacity", "capacity", "price_of"]
--! [columns]
--! cluster                   = "Cluster."
--! pool                      = "Pools of the nodes as node_capacity has them, or the pool of the reservation."
--! gpu_model                 = "Model of the GPUs."
--! gpus_milli                = "Existing GPUs in any state, thousandths; NULL if a reservation does not report a number."
--! gpus_from                 = "nodes: GPUs of the nodes. reservations: reserved GPUs of a pool without any known node."
--! price_micros_per_gpu_hour = "Price of a GPU-hour, as in price_of; NULL if none is in force."
--! currency                  = "Currency of price and cost."
--! contract                  = "reserved, on_demand, spot or owned."
--! point_gpu_ms              = "GPU x ms of one percentage point of these GPUs in a year of 8,766 h (365.25 days): gpus_milli x 315,576."
--! point_cost_micros         = "Its cost, millionths of the currency, rounded half up: point_gpu_ms x price_micros_per_gpu_hour / 3,600,000."
--! reason                    = "Why point_cost_micros is NULL: no_price; gpus_unknown. NULL if it is known."
--! from_time                 = "Start."
--! to_time                   = "End: the GPUs or their price changed; NULL for the latest row."
WITH existing AS (
    -- One row per state of a node, and one per reservation of a pool without known nodes.
    SELECT cluster, pool, gpu_model, gpus_milli, 0 AS is_reserved, from_time, to_time FROM node_capacity
    UNION ALL
    SELECT c.cluster, c.pool, c.gpu_model, c.gpus_milli, 1, c.from_time, c.to_time
    FROM capacity c
    WHERE c.kind = 'RESERVATION_SET' AND c.nodes IS NULL
      -- A node may be in several pools. A reservation without a pool applies to the whole cluster.
      AND NOT EXISTS (SELECT 1 FROM node_capacity n
                      WHERE n.cluster = c.cluster
                        AND (c.pool IS NULL OR strpos(concat(',', n.pool, ','), concat(',', c.pool, ',')) > 0))
), ends AS (
    -- One row per start and end of these and of prices.
    SELECT cluster, pool, gpu_model, unnest(make_array(from_time, to_time)) AS at, unnest(make_array(1, -1)) AS sign,
           gpus_milli, is_reserved, CAST(NULL AS BIGINT) AS is_priced, CAST(NULL AS BIGINT) AS price,
           CAST(NULL AS TEXT) AS currency, CAST(NULL AS TEXT) AS contract
    FROM existing
    UNION ALL
    SELECT cluster, pool, gpu_model, unnest(make_array(from_time, to_time)), 0, NULL, 0,
           unnest(make_array(1, 0)), price_micros_per_gpu_hour, currency, contract
    FROM price_of
), changes AS (
    -- One row per pool, model and time at which anything changed. Where one price follows another,
    -- the new one counts.
    SELECT cluster, pool, gpu_model, at,
           sum(sign * coalesce(gpus_milli, 0)) AS gpus_milli, sum(sign) AS parts, sum(sign * is_reserved) AS reserved,
           sum(CASE WHEN gpus_milli IS NULL THEN sign ELSE 0 END) AS unknown, max(is_priced) AS is_priced,
           max(price) FILTER (WHERE is_priced = 1) AS price, max(currency) FILTER (WHERE is_priced = 1) AS currency,
           max(contract) FILTER (WHERE is_priced = 1) AS contract
    FROM ends
    WHERE at IS NOT NULL
    GROUP BY cluster, pool, gpu_model, at
    -- A node that only changed its state ends and starts at once: no change.
    HAVING sum(sign * coalesce(gpus_milli, 0)) <> 0 OR sum(sign) <> 0 OR max(is_priced) IS NOT NULL
), levels AS (
    -- The same rows, with GPUs and price at that time.
    SELECT cluster, pool, gpu_model, at,
           sum(gpus_milli) OVER so_far AS gpus_milli, sum(parts) OVER so_far AS parts,
           sum(reserved) OVER so_far AS reserved,     sum(unknown) OVER so_far AS unknown,
           last_value(is_priced) IGNORE NULLS OVER so_far AS is_priced, last_value(price) IGNORE NULLS OVER so_far AS price,
           last_value(currency) IGNORE NULLS OVER so_far AS currency,   last_value(contract) IGNORE NULLS OVER so_far AS contract,
           lead(at) OVER (PARTITION BY cluster, pool, gpu_model ORDER BY at) AS to_time
    FROM changes
    WINDOW so_far AS (PARTITION BY cluster, pool, gpu_model ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), judged AS (
    -- Only rows with GPUs; unknown values are NULL.
    SELECT cluster, pool, gpu_model, CASE WHEN unknown = 0 THEN gpus_milli END AS gpus_milli, reserved,
           CASE WHEN is_priced = 1 THEN price END AS price, CASE WHEN is_priced = 1 THEN currency END AS currency,
           CASE WHEN is_priced = 1 THEN contract END AS contract, at, to_time
    FROM levels
    WHERE parts > 0
)
SELECT cluster, pool, gpu_model, gpus_milli, CASE WHEN reserved > 0 THEN 'reservations' ELSE 'nodes' END AS gpus_from,
       price AS price_micros_per_gpu_hour, currency, contract, gpus_milli * 315576 AS point_gpu_ms,
       cost_micros(gpus_milli * 315576, price) AS point_cost_micros,
       CASE WHEN gpus_milli IS NULL THEN 'gpus_unknown' WHEN price IS NULL THEN 'no_price' END AS reason,
       at AS from_time, to_time
FROM judged
