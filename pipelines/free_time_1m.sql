--! name    = "free_time_1m"
--! stored  = false
--! doc     = "For how much of each UTC minute jobs waited in a pool though GPUs were free, by what bound: their team's quota, nodes with too few GPUs free at once (a gang), or GPUs free but scattered over nodes (a fragment)."
--! sources = ["device_time_1m", "waits", "pending_reasons"]
--! window  = "1m"
--! key     = ["window_start", "cluster", "pool"]
--! [extents]
--! device_time_1m = { time = "window_start" }
--! waits          = { from = "from_time", to = "to_time" }
WITH nodes AS (
    SELECT window_start, cluster, coalesce(pool, '') AS pool, node, (sum(free_ms) + 30000) / 60000 AS free_gpus
    FROM device_time_1m
    GROUP BY window_start, cluster, coalesce(pool, ''), node
), asked AS (
    SELECT w.window_start, w.cluster, coalesce(w.pool, '') AS pool, w.job_id, r.constraint,
           ms_between(w.clip_from, w.clip_to) AS waited_ms,
           coalesce(w.asked_nodes, 1) AS asked_nodes, coalesce((w.asked_gpus_per_node_milli + 999) / 1000, 1) AS asked_gpus
    FROM waits w
    LEFT JOIN pending_reasons r ON r.scheduler = 'slurm' AND r.reason = w.reason
    WHERE w.gpus_milli > 0
), met AS (
    SELECT a.window_start, a.cluster, a.pool, a.job_id, a.constraint, a.asked_nodes, a.waited_ms,
           sum(CASE WHEN n.free_gpus >= a.asked_gpus THEN 1 ELSE 0 END) AS fitting, sum(n.free_gpus) AS free_gpus
    FROM asked a
    JOIN nodes n ON n.window_start = a.window_start AND n.cluster = a.cluster AND strpos(',' || n.pool || ',', ',' || a.pool || ',') > 0
    GROUP BY a.window_start, a.cluster, a.pool, a.job_id, a.constraint, a.asked_nodes, a.asked_gpus, a.waited_ms
), bound AS (
    SELECT window_start, cluster, pool, waited_ms,
           CASE WHEN constraint IN ('quota', 'qos_budget', 'qos_limit', 'team_budget', 'team_limit', 'user_limit') THEN 'quota'
                WHEN coalesce(constraint, 'resources') NOT IN ('resources', 'priority') OR fitting >= asked_nodes THEN 'none'
                WHEN asked_nodes > 1 THEN 'gang'
                ELSE 'fragment' END AS what
    FROM met
    WHERE free_gpus > 0
)
SELECT window_start, cluster, pool,
       coalesce(max(waited_ms) FILTER (WHERE what = 'quota'), 0)    AS quota_ms,
       coalesce(max(waited_ms) FILTER (WHERE what = 'gang'), 0)     AS gang_ms,
       coalesce(max(waited_ms) FILTER (WHERE what = 'fragment'), 0) AS fragment_ms
FROM bound
GROUP BY window_start, cluster, pool
