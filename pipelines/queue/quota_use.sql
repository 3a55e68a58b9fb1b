--! name    = "quota_use"
--! doc     = "How much of each quota or limit its team or QOS held over time."
--! question = "Which teams and QOS are at or near the limit of a quota?"
--! example  = "SELECT owner, kind, pool, held_gpus_milli / 1000.0 AS held_gpus, gpus_milli / 1000.0 AS granted_gpus FROM quota_use WHERE to_time IS NULL AND held_gpus_milli > 0 AND held_gpus_milli * 10 >= gpus_milli * 9 ORDER BY owner"
--! sources = ["capacity", "attempts"]
--! once    = true
--! [columns]
--! cluster         = "Cluster."
--! owner           = "Team, or qos/NAME."
--! kind            = "QUOTA_SET or LIMIT_SET."
--! pool            = "Pool that the quota applies to; NULL for all."
--! gpu_model       = "GPU model that the quota applies to; NULL for all."
--! gpus_milli      = "The quota, thousandths of a GPU."
--! held_gpus_milli = "Held by attempts that count towards the quota, thousandths."
--! from_time       = "Start."
--! to_time         = "End; NULL for the latest row."
WITH quotas AS (
    -- One row per value of a quota or limit; empty text for any pool or model.
    SELECT cluster, owner, kind, coalesce(pool, '') AS of_pool, coalesce(gpu_model, '') AS of_model, gpus_milli, from_time, to_time
    FROM capacity
    WHERE kind IN ('QUOTA_SET', 'LIMIT_SET') AND owner <> 'total' AND gpus_milli IS NOT NULL
), quota_keys AS (
    -- One row per quota.
    SELECT DISTINCT cluster, owner, kind, of_pool, of_model FROM quotas
), running AS (
    -- Two rows per attempt that held GPUs: for its team and for its QOS.
    SELECT cluster, team AS owner, pool, gpu_model, gpus_milli, from_time, to_time FROM attempts WHERE from_time IS NOT NULL AND gpus_milli > 0
    UNION ALL
    SELECT cluster, 'qos/' || qos, pool, gpu_model, gpus_milli, from_time, to_time FROM attempts WHERE from_time IS NOT NULL AND gpus_milli > 0
), holds AS (
    -- One row per quota and attempt that counts towards it.
    SELECT e.cluster, e.owner, e.kind, e.of_pool, e.of_model, r.gpus_milli, r.from_time, r.to_time
    FROM quota_keys e
    JOIN running r ON r.cluster = e.cluster AND r.owner = e.owner
                  AND (e.of_pool = '' OR e.of_pool = r.pool) AND (e.of_model = '' OR e.of_model = r.gpu_model)
), changes AS (
    -- One row per change of a quota or of what is held of it.
    SELECT cluster, owner, kind, of_pool, of_model, from_time AS at, 0 AS held, gpus_milli AS quota, 1 AS is_set FROM quotas
    UNION ALL
    SELECT cluster, owner, kind, of_pool, of_model, to_time, 0, NULL, 0 FROM quotas WHERE to_time IS NOT NULL
    UNION ALL
    SELECT cluster, owner, kind, of_pool, of_model, from_time, gpus_milli, NULL, NULL FROM holds
    UNION ALL
    SELECT cluster, owner, kind, of_pool, of_model, to_time, -gpus_milli, NULL, NULL FROM holds WHERE to_time IS NOT NULL
), points AS (
    -- One row per quota and time at which anything changed.
    SELECT cluster, owner, kind, of_pool, of_model, at, sum(held) AS held, max(quota) AS quota, max(is_set) AS is_set
    FROM changes
    GROUP BY cluster, owner, kind, of_pool, of_model, at
), levels AS (
    -- The same rows, with quota and held GPUs at that time.
    SELECT cluster, owner, kind, of_pool, of_model, at,
           CAST(sum(held) OVER so_far AS BIGINT)              AS held_gpus_milli,
           last_value(is_set) IGNORE NULLS OVER so_far        AS is_set,
           last_value(quota)  IGNORE NULLS OVER so_far        AS gpus_milli,
           lead(at) OVER (PARTITION BY cluster, owner, kind, of_pool, of_model ORDER BY at) AS to_time
    FROM points
    WINDOW so_far AS (PARTITION BY cluster, owner, kind, of_pool, of_model ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT cluster, owner, kind, nullif(of_pool, '') AS pool, nullif(of_model, '') AS gpu_model, gpus_milli, held_gpus_milli,
       at AS from_time, to_time
FROM levels
WHERE is_set = 1
