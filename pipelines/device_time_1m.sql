--! name    = "device_time_1m"
--! stored  = false
--! doc     = "What the time of each GPU and MIG slice was by what its node, its holders and its samples say, per UTC minute, in GPU x ms: a slice counts by its sevenths. The row without a GPU stands for all of a node that nobody told apart, that of a cut GPU for what no slice has."
--! sources = ["node_capacity", "device_faults", "gpu_1m", "device_holds_1m", "watched"]
--! window  = "1m"
--! key     = ["window_start", "cluster", "node", "gpu_uuid", "mig_uuid", "pool", "gpu_model"]
--! [extents]
--! node_capacity   = { from = "from_time", to = "to_time" }
--! device_faults   = { from = "from_time", to = "to_time" }
--! gpu_1m          = { time = "window_start" }
--! device_holds_1m = { time = "window_start" }
--! watched         = { from = "from_time", to = "to_time" }
WITH provisioned AS (
    SELECT n.window_start, n.cluster, n.node, max(n.pool) AS pool, max(n.gpu_model) AS gpu_model,
           greatest(max(n.gpus_milli) / 1000, 1)                                                                     AS gpus,
           sum(gpu_ms(n.gpus_milli, n.from_time, n.clip_from, n.clip_to))                                                  AS all_ms,
           coalesce(sum(gpu_ms(n.gpus_milli, n.from_time, n.clip_from, n.clip_to)) FILTER (WHERE n.health = 'unhealthy'), 0) AS unhealthy_ms,
           coalesce(sum(gpu_ms(n.gpus_milli, n.from_time, n.clip_from, n.clip_to)) FILTER (WHERE n.health = 'drained'), 0)   AS drained_ms
    FROM node_capacity n
    JOIN watched w ON w.window_start = n.window_start AND w.cluster = n.cluster
    GROUP BY n.window_start, n.cluster, n.node
), seen AS (
    SELECT g.window_start, g.cluster, g.node, g.gpu_uuid, coalesce(g.mig_uuid, '') AS mig_uuid,
           CASE WHEN g.mig_uuid IS NULL THEN 7 ELSE coalesce(max(mig_slices_max_count), 1) END AS sevenths,
           sum(us_sampled) / 1000 AS sampled_ms,          coalesce(sum(active_us), 0) / 1000 AS active_ms,
           coalesce(sum(idle_us), 0) / 1000 AS idle_ms,   coalesce(sum(empty_us), 0) / 1000  AS empty_ms
    FROM gpu_1m g
    JOIN watched w ON w.window_start = g.window_start AND w.cluster = g.cluster
    GROUP BY g.window_start, g.cluster, g.node, g.gpu_uuid, g.mig_uuid
), lost AS (
    SELECT window_start, cluster, node, gpu_uuid, sum(ms_between(clip_from, clip_to)) AS lost_ms
    FROM device_faults
    WHERE kind = 'DEVICE_LOST' AND mig_uuid IS NULL
    GROUP BY window_start, cluster, node, gpu_uuid
), parts AS (
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, sevenths,
           share_of(sampled_ms, 0, sevenths, 7) AS sampled_ms, share_of(active_ms, 0, sevenths, 7) AS active_ms,
           share_of(idle_ms, 0, sevenths, 7) AS idle_ms,       share_of(empty_ms, 0, sevenths, 7) AS empty_ms,
           0 AS held_ms, 0 AS wall_ms
    FROM seen
    UNION ALL
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, CASE WHEN mig_uuid = '' THEN 7 ELSE 1 END, 0, 0, 0, 0, held_ms, wall_ms FROM device_holds_1m
    UNION ALL
    -- A slice is of a GPU, and a GPU of a node, also where nothing is known of them themselves.
    SELECT window_start, cluster, node, gpu_uuid, '', 7, 0, 0, 0, 0, 0, 0 FROM seen WHERE mig_uuid <> ''
    UNION ALL
    SELECT window_start, cluster, node, '', '', 7, 0, 0, 0, 0, 0, 0 FROM provisioned
), units AS (
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, max(sevenths) AS sevenths, sum(sampled_ms) AS sampled_ms,
           sum(active_ms) AS active_ms, sum(idle_ms) AS idle_ms, sum(empty_ms) AS empty_ms, sum(held_ms) AS held_ms, sum(wall_ms) AS wall_ms
    FROM parts
    GROUP BY window_start, cluster, node, gpu_uuid, mig_uuid
), cut AS (
    SELECT *, coalesce(sum(CASE WHEN mig_uuid = '' THEN 0 ELSE sevenths END) OVER (PARTITION BY window_start, cluster, node, gpu_uuid), 0) AS of_slices
    FROM units
), weighed AS (
    -- What a whole GPU does shows in its slices; where it is cut it has what they leave.
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, sampled_ms, held_ms, wall_ms,
           CASE WHEN mig_uuid = '' AND of_slices > 0 THEN 0 ELSE active_ms END AS active_ms,
           CASE WHEN mig_uuid = '' AND of_slices > 0 THEN 0 ELSE idle_ms END   AS idle_ms,
           CASE WHEN mig_uuid = '' AND of_slices > 0 THEN 0 ELSE empty_ms END  AS empty_ms,
           CASE WHEN gpu_uuid = '' THEN 0 WHEN mig_uuid = '' THEN greatest(7 - of_slices, 0) ELSE sevenths END AS weight
    FROM cut
), numbered AS (
    SELECT *,
           sum(weight) OVER (PARTITION BY window_start, cluster, node)                                             AS known,
           sum(weight) OVER (PARTITION BY window_start, cluster, node ORDER BY gpu_uuid DESC, mig_uuid) - weight   AS before
    FROM weighed
), placed AS (
    SELECT n.*, p.node IS NULL AS is_unregistered, p.pool, p.gpu_model, p.all_ms AS node_ms, p.unhealthy_ms AS node_unhealthy_ms, p.drained_ms AS node_drained_ms,
           CASE WHEN n.gpu_uuid = '' THEN greatest(p.gpus * 7 - n.known, 0) ELSE n.weight END AS part,
           greatest(p.gpus * 7, n.known)                                                      AS total
    FROM numbered n
    LEFT JOIN provisioned p ON p.window_start = n.window_start AND p.cluster = n.cluster AND p.node = n.node
), sized AS (
    -- Of a node that nobody registered there is what was seen or held.
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, pool, gpu_model, active_ms, idle_ms, empty_ms, held_ms, wall_ms,
           CASE WHEN is_unregistered THEN greatest(held_ms, least(sampled_ms, 60000)) ELSE share_of(node_ms, before, part, total) END AS all_ms,
           coalesce(share_of(node_unhealthy_ms, before, part, total), 0) AS unhealthy_ms,
           coalesce(share_of(node_drained_ms, before, part, total), 0)   AS drained_ms
    FROM placed
), bounded AS (
    SELECT s.*, least(s.held_ms, s.all_ms) AS used_ms, greatest(s.unhealthy_ms, least(coalesce(l.lost_ms, 0), s.all_ms)) AS ill_ms
    FROM sized s
    LEFT JOIN lost l ON l.window_start = s.window_start AND l.cluster = s.cluster AND l.node = s.node AND l.gpu_uuid = s.gpu_uuid
), unusable AS (
    SELECT *, least(ill_ms, all_ms - used_ms) AS unhealthy, least(active_ms, used_ms) AS active FROM bounded
), idling AS (
    SELECT *, least(drained_ms, all_ms - used_ms - unhealthy) AS drained, least(idle_ms, used_ms - active) AS idle FROM unusable
), states AS (
    SELECT *, least(empty_ms, used_ms - active - idle) AS empty, all_ms - used_ms - unhealthy - drained AS free_ms FROM idling
)
SELECT window_start, cluster, node, gpu_uuid, mig_uuid, pool, gpu_model, all_ms, held_ms, used_ms, unhealthy, drained, active, idle, empty,
       used_ms - active - idle - empty AS unseen, free_ms,
       -- Of a GPU that is shared, nobody knows whether what its holder leaves is busy.
       least(greatest(active_ms - greatest(active, least(wall_ms, all_ms)), 0), free_ms) AS busy_free
FROM states
