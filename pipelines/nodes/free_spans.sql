--! name    = "free_spans"
--! doc     = "Free GPUs of each node over all history; node_free stores these rows by day."
--! question = "Since when has a node had as many GPUs free as now?"
--! example  = "SELECT node, free_gpus_milli / 1000.0 AS free_gpus, from_time FROM free_spans WHERE to_time IS NULL ORDER BY from_time LIMIT 20"
--! sources = ["node_capacity", "node_holds"]
--! once    = true
--! [columns]
--! cluster         = "Cluster."
--! node            = "Node."
--! pool            = "Pools the node is in, comma separated."
--! gpu_model       = "Model of its GPUs."
--! state           = "State of the node in the scheduler's words; NULL if not reported."
--! is_usable       = "1 if jobs may start on it, as in node_capacity."
--! gpus_milli      = "Its GPUs, thousandths."
--! held_gpus_milli = "Held by jobs, thousandths. Exceeds gpus_milli if a source reports one hold twice."
--! assumed_gpus_milli = "Assumed held in addition, by jobs whose nodes are not known. They are placed on the first nodes by name that have free GPUs."
--! free_gpus_milli = "Free for jobs to start on, thousandths; 0 while the node is not usable."
--! from_time       = "Start."
--! to_time         = "End; NULL for the latest row."
WITH known_nodes AS (
    -- One row per node that was ever there. What is held on others leaves nothing free.
    SELECT DISTINCT cluster, node FROM node_capacity
), holds AS (
    -- One row per hold on these, and per hold without a known node in their clusters.
    SELECT h.cluster, h.node, h.pool, h.device, h.gpus_milli, h.from_time, h.to_time
    FROM known_nodes k RIGHT SEMI JOIN node_holds h ON k.cluster = h.cluster AND k.node = h.node
    UNION ALL
    SELECT h.cluster, NULL, h.pool, h.device, h.gpus_milli, h.from_time, h.to_time
    FROM known_nodes k RIGHT SEMI JOIN node_holds h ON k.cluster = h.cluster
    WHERE h.node IS NULL
), device_changes AS (
    -- One row per device and time at which its holds changed.
    SELECT cluster, node, device, at, sum(held) AS held
    FROM (SELECT cluster, node, device, from_time AS at, gpus_milli AS held FROM holds WHERE device IS NOT NULL
          UNION ALL
          SELECT cluster, node, device, to_time, -gpus_milli FROM holds WHERE device IS NOT NULL AND to_time IS NOT NULL)
    GROUP BY cluster, node, device, at
), device_levels AS (
    -- The same rows, with what is held of the device: at most the device.
    SELECT cluster, node, device, at, least(CAST(sum(held) OVER (PARTITION BY cluster, node, device ORDER BY at
                                                 ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT), 1000) AS held
    FROM device_changes
), changes AS (
    -- One row per change of a node: of its capacity, or of what is held of it.
    SELECT cluster, node, from_time AS at, 0 AS held, 1 AS is_there, pool, gpu_model, state, is_usable, gpus_milli FROM node_capacity
    UNION ALL
    SELECT cluster, node, to_time, 0, 0, NULL, NULL, NULL, NULL, NULL FROM node_capacity WHERE to_time IS NOT NULL
    UNION ALL
    SELECT cluster, node, at, held - lag(held, 1, 0) OVER (PARTITION BY cluster, node, device ORDER BY at), NULL, NULL, NULL, NULL, NULL, NULL
    FROM device_levels
    UNION ALL
    SELECT cluster, node, from_time, gpus_milli AS held, NULL, NULL, NULL, NULL, NULL, NULL
    FROM holds WHERE node IS NOT NULL AND device IS NULL
    UNION ALL
    SELECT cluster, node, to_time, -gpus_milli AS held, NULL, NULL, NULL, NULL, NULL, NULL
    FROM holds WHERE node IS NOT NULL AND device IS NULL AND to_time IS NOT NULL
), points AS (
    -- One row per node and time at which anything changed.
    -- At one time a start wins over an end: 1 is greater than 0.
    SELECT cluster, node, at, sum(held) AS held, max(is_there) AS is_there,
           max(pool) AS pool, max(gpu_model) AS gpu_model, max(state) AS state, max(is_usable) AS is_usable, max(gpus_milli) AS gpus_milli
    FROM changes
    GROUP BY cluster, node, at
), numbered AS (
    -- The same rows, with held GPUs; capacity_no counts changes of the capacity.
    -- NULLs of the latest capacity count too: its state is no longer reported.
    SELECT *, count(is_there) OVER so_far AS capacity_no,
           CAST(sum(held) OVER so_far AS BIGINT) AS held_gpus_milli,
           lead(at) OVER (PARTITION BY cluster, node ORDER BY at) AS to_time
    FROM points
    WINDOW so_far AS (PARTITION BY cluster, node ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), filled AS (
    -- The same rows, with the values of the latest capacity.
    SELECT cluster, node, at, to_time, held_gpus_milli,
           max(is_there) OVER of_capacity AS is_there, max(pool) OVER of_capacity AS pool, max(gpu_model) OVER of_capacity AS gpu_model,
           max(state) OVER of_capacity AS state, max(is_usable) OVER of_capacity AS is_usable, max(gpus_milli) OVER of_capacity AS gpus_milli
    FROM numbered
    WINDOW of_capacity AS (PARTITION BY cluster, node, capacity_no)
), known_free AS (
    -- One row per state of a node, by the holds whose nodes are known.
    SELECT cluster, node, pool, gpu_model, state, is_usable, gpus_milli, held_gpus_milli,
           CASE WHEN is_usable = 1 THEN greatest(gpus_milli - held_gpus_milli, 0) ELSE 0 END AS idle,
           at AS from_time, to_time
    FROM filled
    WHERE is_there = 1
), unplaced_changes AS (
    -- One row per pool and time at which holds without a known node changed.
    SELECT cluster, pool, at, sum(milli) AS milli
    FROM (SELECT cluster, pool, from_time AS at, gpus_milli AS milli FROM holds WHERE node IS NULL
          UNION ALL
          SELECT cluster, pool, to_time, -gpus_milli FROM holds WHERE node IS NULL AND to_time IS NOT NULL)
    GROUP BY cluster, pool, at
), placements AS (
    -- Input of placed(): idle GPUs of nodes, and GPUs to place on them.
    SELECT t.cluster, t.node, t.pool AS pools, CAST(NULL AS VARCHAR) AS pool, t.from_time AS at, t.idle AS milli
    FROM known_free t LEFT SEMI JOIN unplaced_changes b ON b.cluster = t.cluster
    UNION ALL
    SELECT t.cluster, t.node, NULL, NULL, t.to_time, NULL
    FROM known_free t LEFT SEMI JOIN unplaced_changes b ON b.cluster = t.cluster
    WHERE t.to_time IS NOT NULL
    UNION ALL
    SELECT cluster, NULL, NULL, pool, at, milli FROM unplaced_changes
), placed_rows AS (
    -- One row per node and change of what is placed on it, as a struct.
    SELECT cluster, unnest(placed(node, pools, pool, at, milli)) AS p FROM placements GROUP BY cluster
), marks AS (
    -- One row per change of a known state or of a placement.
    SELECT cluster, node, from_time AS at, 1 AS is_told, to_time AS told_to, pool, gpu_model, state, is_usable, gpus_milli, held_gpus_milli, idle,
           CAST(NULL AS BIGINT) AS assumed
    FROM known_free
    UNION ALL
    SELECT cluster, p['node'], p['at'], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, p['milli'] FROM placed_rows
), merged AS (
    -- One row per node and time.
    SELECT cluster, node, at, max(is_told) AS is_told, max(told_to) AS told_to, max(pool) AS pool, max(gpu_model) AS gpu_model,
           max(state) AS state, max(is_usable) AS is_usable, max(gpus_milli) AS gpus_milli, max(held_gpus_milli) AS held_gpus_milli,
           max(idle) AS idle, max(assumed) AS assumed
    FROM marks
    GROUP BY cluster, node, at
), ordered AS (
    -- The same rows, with the placement at that time; told_no counts the known states.
    SELECT *, count(is_told) OVER so_far AS told_no, lead(at) OVER (PARTITION BY cluster, node ORDER BY at) AS next_at,
           coalesce(last_value(assumed) IGNORE NULLS OVER so_far, 0) AS assumed_gpus_milli
    FROM merged
    WINDOW so_far AS (PARTITION BY cluster, node ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), complete AS (
    -- The same rows, with the values of the known state.
    SELECT cluster, node, at, next_at, assumed_gpus_milli,
           max(told_to) OVER of_told AS told_to, max(pool) OVER of_told AS pool, max(gpu_model) OVER of_told AS gpu_model,
           max(state) OVER of_told AS state, max(is_usable) OVER of_told AS is_usable, max(gpus_milli) OVER of_told AS gpus_milli,
           max(held_gpus_milli) OVER of_told AS held_gpus_milli, max(idle) OVER of_told AS idle
    FROM ordered
    WINDOW of_told AS (PARTITION BY cluster, node, told_no)
)
SELECT cluster, node, pool, gpu_model, state, is_usable, gpus_milli, held_gpus_milli, assumed_gpus_milli,
       idle - assumed_gpus_milli AS free_gpus_milli, at AS from_time, least(next_at, told_to) AS to_time
FROM complete
WHERE coalesce(at < told_to, true)
