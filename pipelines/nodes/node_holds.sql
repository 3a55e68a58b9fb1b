--! name    = "node_holds"
--! doc     = "How much of each node every job held over time. By devices where they are known; for the rest of an attempt, an equal share on each of its nodes; where no node is known, its number of GPUs."
--! question = "Which jobs are on a node?"
--! example  = "SELECT job_id, gpus_milli / 1000.0 AS gpus, evidence, from_time FROM node_holds WHERE node = 'gpu-01' AND to_time IS NULL ORDER BY from_time"
--! sources = ["attempts", "gpu_holds"]
--! once    = true
--! [columns]
--! cluster    = "Cluster."
--! node       = "Node; NULL where it is not known."
--! pool       = "Pool of the job, if the hold is known by nodes or not located at all; NULL if it is known by device."
--! job_id     = "Job."
--! device     = "UUID of the device, else # and its index on the node; NULL if no device is known."
--! gpus_milli = "Thousandths of a GPU held there."
--! evidence   = "devices: known by device. nodes: an equal share on all nodes of the attempt, less the known devices there. none: somewhere in the pool, less all known devices of the job."
--! from_time  = "Start of the hold."
--! to_time    = "End; NULL while it lasts."
WITH holds AS (
    -- One row per hold of a device that counts once.
    SELECT cluster, node, job_id, step_id, quality,
           coalesce(gpu_uuid, '#' || CAST(gpu_index AS TEXT), hold_id) AS device,
           least(coalesce(share_milli, 1000), 1000) AS gpus_milli, from_time, to_time
    FROM gpu_holds
    WHERE is_repeated = 0 AND from_time IS NOT NULL
), counted_holds AS (
    -- Without holds of steps on devices that the job itself holds, because a step shares them.
    SELECT s.* FROM holds s
    LEFT ANTI JOIN holds j
      ON j.cluster = s.cluster AND j.job_id = s.job_id AND j.node = s.node AND j.device = s.device AND j.step_id IS NULL
     AND s.step_id IS NOT NULL AND coalesce(j.from_time < s.to_time, true) AND coalesce(j.to_time > s.from_time, true)
), running AS (
    -- One row per attempt that held GPUs.
    SELECT cluster, job_id, pool, nodes, node_count, gpus_milli, from_time, to_time,
           nodes IS NOT NULL AND node_count > 0 AS is_placed
    FROM attempts
    WHERE from_time IS NOT NULL AND gpus_milli > 0
), fully_known AS (
    -- One row per attempt whose devices are all known, on each of its nodes: they are all that it
    -- holds.
    SELECT r.cluster, r.job_id, r.from_time
    FROM counted_holds d
    JOIN running r ON d.cluster = r.cluster AND d.job_id = r.job_id AND d.quality <> 'UNKNOWN' AND d.from_time <= r.from_time
                   AND coalesce(d.to_time >= r.to_time, d.to_time IS NULL)
    GROUP BY r.cluster, r.job_id, r.from_time
    HAVING sum(d.gpus_milli) >= max(r.gpus_milli) AND count(DISTINCT d.node) >= max(r.node_count)
), node_shares AS (
    -- One row per other attempt and node, with an equal share.
    SELECT r.cluster, r.job_id, r.pool, unnest(string_to_array(r.nodes, ',')) AS node, r.gpus_milli / r.node_count AS on_each, r.from_time, r.to_time
    FROM fully_known c
    RIGHT ANTI JOIN running r ON c.cluster = r.cluster AND c.job_id = r.job_id AND c.from_time = r.from_time
    WHERE r.is_placed
), devices AS (
    -- One row per hold that is used. An observed process counts only where the job has no share of
    -- the node.
    SELECT d.cluster, d.node, d.job_id, d.device, d.gpus_milli, d.from_time, d.to_time FROM counted_holds d
    LEFT ANTI JOIN node_shares s
      ON s.cluster = d.cluster AND s.job_id = d.job_id AND s.node = d.node AND d.quality = 'UNKNOWN'
     AND coalesce(s.from_time < d.to_time, true) AND coalesce(s.to_time > d.from_time, true)
    LEFT ANTI JOIN counted_holds r
      ON r.cluster = d.cluster AND r.job_id = d.job_id AND r.node = d.node AND d.quality = 'UNKNOWN' AND r.quality <> 'UNKNOWN'
     AND coalesce(r.from_time < d.to_time, true) AND coalesce(r.to_time > d.from_time, true)
    WHERE d.quality IS NOT NULL
), with_devices AS (
    -- One row per job with known devices.
    SELECT DISTINCT cluster, job_id FROM devices
), shares AS (
    -- One row per share, and per attempt without nodes.
    SELECT cluster, job_id, node, pool, on_each AS gpus_milli, from_time, to_time FROM node_shares
    UNION ALL
    SELECT cluster, job_id, NULL, pool, gpus_milli, from_time, to_time FROM running WHERE NOT is_placed
), undivided AS (
    -- Those of jobs without known devices.
    SELECT s.* FROM with_devices d
    RIGHT ANTI JOIN shares s ON d.cluster = s.cluster AND d.job_id = s.job_id
), remainders AS (
    -- One row per share (share) and per known device (known) of the other jobs.
    SELECT s.cluster, s.job_id, s.node, s.pool, s.gpus_milli AS share, 0 AS known, s.from_time, s.to_time FROM with_devices d
    RIGHT SEMI JOIN shares s ON d.cluster = s.cluster AND d.job_id = s.job_id
    UNION ALL
    SELECT cluster, job_id, unnest(make_array(node, NULL)), NULL, 0, gpus_milli, from_time, to_time FROM devices
), changes AS (
    -- One row per start and end of these.
    SELECT cluster, job_id, node, pool, unnest(make_array(from_time, to_time)) AS at,
           unnest(make_array(share, -share)) AS share, unnest(make_array(known, -known)) AS known
    FROM remainders
), points AS (
    -- One row per job, node and time at which anything changed.
    SELECT cluster, job_id, node, at, max(pool) AS pool, sum(share) AS share, sum(known) AS known
    FROM changes
    WHERE at IS NOT NULL
    GROUP BY cluster, job_id, node, at
), levels AS (
    -- The same rows, with what the share exceeds the known devices by.
    SELECT cluster, job_id, node, at, lead(at) OVER (PARTITION BY cluster, job_id, node ORDER BY at) AS next_at,
           last_value(pool) IGNORE NULLS OVER so_far AS pool,
           CAST(sum(share) OVER so_far AS BIGINT) - CAST(sum(known) OVER so_far AS BIGINT) AS gpus_milli
    FROM points
    WINDOW so_far AS (PARTITION BY cluster, job_id, node ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT cluster, node, CAST(NULL AS VARCHAR) AS pool, job_id, device, gpus_milli, 'devices' AS evidence, from_time, to_time FROM devices
UNION ALL
SELECT cluster, node, pool, job_id, NULL, gpus_milli, CASE WHEN node IS NULL THEN 'none' ELSE 'nodes' END, from_time, to_time FROM undivided
UNION ALL
SELECT cluster, node, pool, job_id, NULL, gpus_milli, CASE WHEN node IS NULL THEN 'none' ELSE 'nodes' END, at, next_at
FROM levels
WHERE gpus_milli > 0
