--! name    = "node_holds"
--! doc     = "How much of which node each job held, from when to when: by its devices where they are known, else by its nodes, evenly."
--! question = "Which jobs are on a node?"
--! example  = "SELECT job_id, gpus_milli / 1000.0 AS gpus, evidence, from_time FROM node_holds WHERE node = 'gpu-01' AND to_time IS NULL ORDER BY from_time"
--! sources = ["attempts", "gpu_holds"]
--! once    = true
--! [columns]
--! cluster    = "Cluster."
--! node       = "Node; NULL where it is not known."
--! pool       = "Pool of the job, where the hold is known by its nodes or not at all; NULL where devices are known."
--! job_id     = "Job."
--! gpus_milli = "Thousandths of a GPU held there."
--! evidence   = "devices, nodes (held evenly on all of them) or none."
--! from_time  = "When the hold began."
--! to_time    = "When it ended; NULL while it lasts."
WITH devices AS (
    -- A process that was seen holds nothing by right, a step shares its job's devices, and what is told twice counts once.
    SELECT cluster, node, job_id, least(coalesce(share_milli, 1000), 1000) AS gpus_milli, from_time, to_time
    FROM gpu_holds
    WHERE is_repeated = 0 AND step_id IS NULL AND from_time IS NOT NULL AND quality <> 'UNKNOWN'
), running AS (
    SELECT cluster, job_id, pool, nodes, node_count, gpus_milli, from_time, to_time
    FROM attempts
    WHERE from_time IS NOT NULL AND gpus_milli > 0
), placed AS (
    SELECT cluster, job_id, pool, unnest(string_to_array(nodes, ',')) AS node, gpus_milli / node_count AS on_each, from_time, to_time
    FROM running
    WHERE nodes IS NOT NULL AND node_count > 0
), by_nodes AS (
    SELECT p.*
    FROM placed p
    LEFT ANTI JOIN devices d
      ON d.cluster = p.cluster AND d.job_id = p.job_id AND d.node = p.node
     AND coalesce(d.from_time < p.to_time, true) AND coalesce(d.to_time > p.from_time, true)
), unplaced AS (
    SELECT r.*
    FROM running r
    LEFT ANTI JOIN devices d
      ON d.cluster = r.cluster AND d.job_id = r.job_id
     AND coalesce(d.from_time < r.to_time, true) AND coalesce(d.to_time > r.from_time, true)
    WHERE r.nodes IS NULL OR coalesce(r.node_count, 0) = 0
)
SELECT cluster, node, CAST(NULL AS VARCHAR) AS pool, job_id, gpus_milli, 'devices' AS evidence, from_time, to_time FROM devices
UNION ALL
SELECT cluster, node, pool, job_id, on_each, 'nodes', from_time, to_time FROM by_nodes
UNION ALL
SELECT cluster, NULL, pool, job_id, gpus_milli, 'none', from_time, to_time FROM unplaced
