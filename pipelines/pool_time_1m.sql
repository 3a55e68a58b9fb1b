--! name    = "pool_time_1m"
--! stored  = false
--! doc     = "GPU time that is reserved (committed, paid for) in each pool and that its nodes do not have, per UTC minute."
--! sources = ["device_time_1m", "capacity", "watched"]
--! window  = "1m"
--! key     = ["window_start", "cluster", "pool"]
--! [extents]
--! device_time_1m = { time = "window_start" }
--! capacity       = { from = "from_time", to = "to_time" }
--! watched        = { from = "from_time", to = "to_time" }
WITH reserved AS (
    SELECT c.window_start, c.cluster, coalesce(c.pool, '') AS pool, sum(gpu_ms(c.gpus_milli, c.from_time, c.clip_from, c.clip_to)) AS reserved_ms
    FROM capacity c
    JOIN watched w ON w.window_start = c.window_start AND w.cluster = c.cluster
    WHERE c.kind = 'RESERVATION_SET'
    GROUP BY c.window_start, c.cluster, coalesce(c.pool, '')
), there AS (
    SELECT r.window_start, r.cluster, r.pool, sum(d.all_ms) AS all_ms
    FROM reserved r
    JOIN device_time_1m d ON d.window_start = r.window_start AND d.cluster = r.cluster
                         AND strpos(',' || coalesce(d.pool, '') || ',', ',' || r.pool || ',') > 0
    GROUP BY r.window_start, r.cluster, r.pool
)
SELECT r.window_start, r.cluster, r.pool, greatest(r.reserved_ms - coalesce(t.all_ms, 0), 0) AS not_provisioned_ms
FROM reserved r
LEFT JOIN there t ON t.window_start = r.window_start AND t.cluster = r.cluster AND t.pool = r.pool
