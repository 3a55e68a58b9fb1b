--! name    = "device_holds_1m"
--! stored  = false
--! doc     = "Which job held which GPU or MIG slice, per UTC minute: as devices were told one by one, else as many on each node of the job."
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
)
SELECT window_start, cluster, node, gpu_uuid, mig_uuid, job_id,
       sum(share_of(share_ms, 0, sevenths, 7)) AS held_ms, sum(share_of(wall_ms, 0, sevenths, 7)) AS wall_ms
FROM device_held
GROUP BY window_start, cluster, node, gpu_uuid, mig_uuid, job_id
UNION ALL
SELECT window_start, cluster, node, '', '', job_id,
       sum(gpu_ms(gpus_milli / node_count, from_time, clip_from, clip_to)),
       sum(gpu_ms(gpus_milli / node_count, from_time, clip_from, clip_to))
FROM on_nodes
GROUP BY window_start, cluster, node, job_id
