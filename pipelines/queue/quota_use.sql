--! name    = "quota_use"
--! version = 2
--! doc     = "How much of each quota or limit its team or QOS held over time, cut at UTC days."
--! question = "Which teams and QOS are at or near the limit of a quota?"
--! example  = "SELECT owner, kind, pool, held_gpus_milli / 1000.0 AS held_gpus, gpus_milli / 1000.0 AS granted_gpus FROM quota_use WHERE to_time IS NULL AND held_gpus_milli > 0 AND held_gpus_milli * 10 >= gpus_milli * 9 ORDER BY owner"
--! sources = ["capacity", "attempts"]
--! window  = "1d"
--! opening = true
--! wait_outcome = false
--! key     = ["window_start", "cluster", "owner", "kind", "pool", "gpu_model", "from_time", "to_time"]
--! [extents]
--! capacity = { from = "from_time", to = "to_time" }
--! attempts = { from = "from_time", to = "to_time" }
--! [columns]
--! window_start    = "Start of the UTC day of the piece."
--! cluster         = "Cluster."
--! owner           = "Team, or qos/NAME."
--! kind            = "QUOTA_SET or LIMIT_SET."
--! pool            = "Pool that the quota applies to; NULL for all."
--! gpu_model       = "GPU model that the quota applies to; NULL for all."
--! gpus_milli      = "The quota, thousandths of a GPU."
--! held_gpus_milli = "Held by attempts that count towards the quota, thousandths."
--! from_time       = "Start."
--! to_time         = "End, at most that of the day; NULL for the latest row."
WITH limits AS (
    -- One row per day and value of a quota or limit; empty text for any pool or model.
    SELECT window_start, cluster, owner, kind, coalesce(pool, '') AS of_pool, coalesce(gpu_model, '') AS of_model, gpus_milli,
           clip_from, clip_end
    FROM capacity
    WHERE kind IN ('QUOTA_SET', 'LIMIT_SET') AND owner <> 'total' AND gpus_milli IS NOT NULL
), limit_keys AS (
    -- One row per day and quota.
    SELECT DISTINCT window_start, cluster, owner, kind, of_pool, of_model FROM limits
), running AS (
    -- Two rows per day and attempt that held GPUs: for its team and for its QOS.
    SELECT window_start, cluster, unnest(make_array(team, 'qos/' || qos)) AS owner, pool, gpu_model, gpus_milli, clip_from, clip_end
    FROM attempts
    WHERE from_time IS NOT NULL AND gpus_milli > 0
), holds AS (
    -- One row per day, quota and attempt that counts towards it.
    SELECT k.window_start, k.cluster, k.owner, k.kind, k.of_pool, k.of_model, r.gpus_milli, r.clip_from, r.clip_end
    FROM limit_keys k
    JOIN running r ON r.window_start = k.window_start AND r.cluster = k.cluster AND r.owner = k.owner
                  AND (k.of_pool = '' OR k.of_pool = r.pool) AND (k.of_model = '' OR k.of_model = r.gpu_model)
), changes AS (
    -- One row per change of a quota or of what is held of it.
    SELECT window_start, cluster, owner, kind, of_pool, of_model, clip_from AS at, 0 AS held, gpus_milli AS quota, 1 AS is_set FROM limits
    UNION ALL
    SELECT window_start, cluster, owner, kind, of_pool, of_model, clip_end, 0, NULL, 0 FROM limits WHERE clip_end IS NOT NULL
    UNION ALL
    SELECT window_start, cluster, owner, kind, of_pool, of_model, clip_from, gpus_milli, NULL, NULL FROM holds
    UNION ALL
    SELECT window_start, cluster, owner, kind, of_pool, of_model, clip_end, -gpus_milli, NULL, NULL FROM holds WHERE clip_end IS NOT NULL
), points AS (
    -- One row per quota and time at which anything changed.
    SELECT window_start, cluster, owner, kind, of_pool, of_model, at, sum(held) AS held, max(quota) AS quota, max(is_set) AS is_set
    FROM changes
    GROUP BY window_start, cluster, owner, kind, of_pool, of_model, at
), levels AS (
    -- The same rows, with quota and held GPUs at that time.
    SELECT window_start, cluster, owner, kind, of_pool, of_model, at,
           CAST(sum(held) OVER so_far AS BIGINT)              AS held_gpus_milli,
           last_value(is_set) IGNORE NULLS OVER so_far        AS is_set,
           last_value(quota)  IGNORE NULLS OVER so_far        AS gpus_milli,
           lead(at) OVER (PARTITION BY window_start, cluster, owner, kind, of_pool, of_model ORDER BY at) AS to_time
    FROM points
    WINDOW so_far AS (PARTITION BY window_start, cluster, owner, kind, of_pool, of_model ORDER BY at
                      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT window_start, cluster, owner, kind, nullif(of_pool, '') AS pool, nullif(of_model, '') AS gpu_model, gpus_milli, held_gpus_milli,
       at AS from_time, to_time
FROM levels
WHERE is_set = 1
