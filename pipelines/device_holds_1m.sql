--! name    = "device_holds_1m"
--! stored  = false
--! doc     = "Which job held which GPU or MIG slice, per UTC minute: as devices were told one by one. Of a job that holds so many GPUs of a node, nobody says which, they are those that nobody else holds, the busiest first; several such jobs of a node share them, since nobody knows who has which."
--! sources = ["gpu_1m", "gpu_holds", "attempts", "watched"]
--! window  = "1m"
--! key     = ["window_start", "cluster", "node", "gpu_uuid", "mig_uuid", "job_id"]
--! [extents]
--! gpu_1m    = { time = "window_start" }
--! gpu_holds = { from = "from_time", to = "to_time" }
--! attempts  = { from = "from_time", to = "to_time" }
--! watched   = { from = "from_time", to = "to_time" }
WITH gpus AS (
    SELECT window_start, cluster, node, gpu_index, max(gpu_uuid) AS gpu_uuid
    FROM gpu_1m
    WHERE mig_uuid IS NULL
    GROUP BY window_start, cluster, node, gpu_index
), slices AS (
    SELECT window_start, cluster, node, mig_uuid, max(gpu_uuid) AS gpu_uuid, max(mig_slices_max_count) AS sevenths
    FROM gpu_1m
    WHERE mig_uuid IS NOT NULL
    GROUP BY window_start, cluster, node, mig_uuid
), device_held AS (
    -- A slice of which nobody said how large it is counts as the smallest.
    SELECT h.window_start, h.cluster, h.node,
           coalesce(s.gpu_uuid, h.gpu_uuid, g.gpu_uuid, '#' || CAST(h.gpu_index AS TEXT), '') AS gpu_uuid,
           coalesce(h.mig_uuid, '')                                                           AS mig_uuid, h.job_id,
           CASE WHEN h.mig_uuid IS NULL THEN 7 ELSE coalesce(s.sevenths, 1) END                AS sevenths,
           gpu_ms(coalesce(h.share_milli, 1000), h.from_time, h.clip_from, h.clip_to)          AS share_ms,
           ms_between(h.clip_from, h.clip_to)                                                  AS wall_ms
    FROM gpu_holds h
    LEFT JOIN gpus g ON g.window_start = h.window_start AND g.cluster = h.cluster AND g.node = h.node AND g.gpu_index = h.gpu_index
    LEFT JOIN slices s ON s.window_start = h.window_start AND s.cluster = h.cluster AND s.node = h.node AND s.mig_uuid = h.mig_uuid
    JOIN watched w ON w.window_start = h.window_start AND w.cluster = h.cluster
    WHERE h.is_repeated = 0
), with_devices AS (
    SELECT DISTINCT window_start, cluster, job_id FROM device_held
), on_nodes AS (
    SELECT a.window_start, a.cluster, a.job_id, a.gpus_milli, a.from_time, a.clip_from, a.clip_to,
           greatest(CAST(coalesce(cardinality(string_to_array(coalesce(a.nodes, a.node), ',')), 1) AS BIGINT), 1) AS node_count,
           unnest(string_to_array(coalesce(a.nodes, a.node, ''), ','))                                            AS node
    FROM attempts a
    JOIN watched w ON w.window_start = a.window_start AND w.cluster = a.cluster
    LEFT JOIN with_devices d ON d.window_start = a.window_start AND d.cluster = a.cluster AND d.job_id = a.job_id
    WHERE d.job_id IS NULL AND a.gpus_milli > 0
), by_node AS (
    SELECT window_start, cluster, node, job_id, sum(gpu_ms(gpus_milli / node_count, from_time, clip_from, clip_to)) AS held_ms
    FROM on_nodes
    GROUP BY window_start, cluster, node, job_id
), jobs_of_node AS (
    SELECT *,
           sum(held_ms) OVER (PARTITION BY window_start, cluster, node)                            AS all_ms,
           sum(held_ms) OVER (PARTITION BY window_start, cluster, node ORDER BY job_id) - held_ms AS before
    FROM by_node
), taken AS (
    SELECT window_start, cluster, node, gpu_uuid, sum(wall_ms) AS taken_ms FROM device_held GROUP BY window_start, cluster, node, gpu_uuid
), left_over AS (
    -- What is cut in slices is told apart by those.
    SELECT g.window_start, g.cluster, g.node, g.gpu_uuid,
           coalesce(sum(g.active_us), 0) AS active_us, coalesce(sum(g.idle_us), 0) AS idle_us,
           greatest(60000 - coalesce(max(t.taken_ms), 0), 0)                       AS left_ms
    FROM gpu_1m g
    LEFT JOIN taken t ON t.window_start = g.window_start AND t.cluster = g.cluster AND t.node = g.node AND t.gpu_uuid = g.gpu_uuid
    LEFT JOIN (SELECT DISTINCT window_start, cluster, node, gpu_uuid FROM slices) s
           ON s.window_start = g.window_start AND s.cluster = g.cluster AND s.node = g.node AND s.gpu_uuid = g.gpu_uuid
    WHERE g.mig_uuid IS NULL AND s.gpu_uuid IS NULL
    GROUP BY g.window_start, g.cluster, g.node, g.gpu_uuid
), in_order AS (
    SELECT *, sum(left_ms) OVER (PARTITION BY window_start, cluster, node ORDER BY active_us DESC, idle_us DESC, gpu_uuid) - left_ms AS before
    FROM left_over
), given AS (
    SELECT o.window_start, o.cluster, o.node, o.gpu_uuid, least(greatest(n.all_ms - o.before, 0), o.left_ms) AS given_ms
    FROM in_order o
    JOIN (SELECT DISTINCT window_start, cluster, node, all_ms FROM jobs_of_node) n
      ON n.window_start = o.window_start AND n.cluster = o.cluster AND n.node = o.node
), given_in_all AS (
    SELECT window_start, cluster, node, sum(given_ms) AS given_ms FROM given GROUP BY window_start, cluster, node
)
SELECT window_start, cluster, node, gpu_uuid, mig_uuid, job_id,
       sum(share_of(share_ms, 0, sevenths, 7)) AS held_ms, sum(share_of(wall_ms, 0, sevenths, 7)) AS wall_ms
FROM device_held
GROUP BY window_start, cluster, node, gpu_uuid, mig_uuid, job_id
UNION ALL
SELECT j.window_start, j.cluster, j.node, g.gpu_uuid, '', j.job_id,
       share_of(g.given_ms, j.before, j.held_ms, j.all_ms), share_of(g.given_ms, j.before, j.held_ms, j.all_ms)
FROM jobs_of_node j
JOIN given g ON g.window_start = j.window_start AND g.cluster = j.cluster AND g.node = j.node
WHERE g.given_ms > 0
UNION ALL
-- No GPU of the node was seen that could be theirs.
SELECT j.window_start, j.cluster, j.node, '', '', j.job_id,
       share_of(j.all_ms - coalesce(g.given_ms, 0), j.before, j.held_ms, j.all_ms), share_of(j.all_ms - coalesce(g.given_ms, 0), j.before, j.held_ms, j.all_ms)
FROM jobs_of_node j
LEFT JOIN given_in_all g ON g.window_start = j.window_start AND g.cluster = j.cluster AND g.node = j.node
WHERE j.all_ms > coalesce(g.given_ms, 0)
