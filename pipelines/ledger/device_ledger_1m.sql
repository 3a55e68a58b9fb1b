--! name    = "device_ledger_1m"
--! version = 3
--! doc     = "Where every GPU-ms went, per UTC minute, from the time agents monitor a cluster: each in exactly one class. The classes of a node add up to its GPUs."
--! question = "Where did each GPU's time go, minute by minute?"
--! example  = "SELECT window_start, gpu_uuid, class, job_id, gpu_ms FROM device_ledger_1m WHERE node = 'gpu-01' AND window_start >= now() - INTERVAL '10 minutes' ORDER BY window_start, gpu_uuid, class"
--! since   = "watched"
--! sources = ["occupancy_1m", "commitments", "attempts", "gpu_holds", "node_capacity", "price_of", "watched"]
--! window  = "1m"
--! opening = true
--! wait_outcome = false
--! key     = ["window_start", "cluster", "pool", "node", "gpu_uuid", "mig_uuid", "team", "user_name", "job_id", "class", "formula"]
--! [extents]
--! occupancy_1m  = { time = "window_start" }
--! commitments   = { from = "from_time", to = "to_time" }
--! attempts      = { from = "from_time", to = "to_time" }
--! gpu_holds     = { from = "from_time", to = "to_time" }
--! node_capacity = { from = "from_time", to = "to_time" }
--! price_of      = { from = "from_time", to = "to_time" }
--! watched       = { from = "from_time", to = "to_time" }
--! [columns]
--! window_start = "Start of the UTC minute."
--! cluster      = "Cluster."
--! pool         = "Pool of the job that held the GPUs; of unheld GPUs the pools of the node, comma separated."
--! node         = "Node; NULL if not known."
--! gpu_uuid     = "UUID of the GPU; #N if only its index N in the node is known; NULL for GPUs that are not distinguished."
--! mig_uuid     = "MIG slice, which counts by its sevenths; NULL for a whole GPU, and for the part of a partitioned GPU that its slices leave."
--! team         = "Team of the job that held the GPUs; NULL if none did."
--! user_name    = "User of the job that held the GPUs."
--! job_id       = "Job that held the GPUs."
--! class        = "Class of the time: one of ledger_classes."
--! formula      = "Evidence for the class: capacity (nodes and reservations), queue (waiting jobs against free GPUs), hold (scheduler and agent), samples (activity of the GPU), steps (reports of the job)."
--! gpu_ms       = "GPU x ms."
--! cost_micros  = "Cost by the price book, millionths of its currency: gpu_ms x price of a GPU-hour, split where the price changed; NULL if no price is known."
WITH job AS (
    -- One row per minute and job that held GPUs.
    SELECT window_start, cluster, job_id, max(pool) AS pool, max(team) AS team, max(user_name) AS user_name, max(gpu_model) AS gpu_model
    FROM (SELECT window_start, cluster, job_id, pool, team, user_name, gpu_model FROM attempts
          UNION ALL
          -- A pod has no attempts, only the devices that it held.
          SELECT window_start, cluster, job_id, NULL, team, user_name, NULL FROM gpu_holds)
    GROUP BY window_start, cluster, job_id
), registered AS (
    -- One row per minute and node.
    SELECT window_start, cluster, node, max(pool) AS pool, max(gpu_model) AS gpu_model
    FROM node_capacity
    GROUP BY window_start, cluster, node
), classified AS (
    -- One row per minute, device, job and class, and one per missing commitment.
    SELECT o.window_start, o.cluster, CASE WHEN o.job_id = '' THEN r.pool ELSE j.pool END AS pool, coalesce(r.gpu_model, j.gpu_model) AS gpu_model,
           nullif(o.node, '') AS node, nullif(o.gpu_uuid, '') AS gpu_uuid, nullif(o.mig_uuid, '') AS mig_uuid, j.team, j.user_name,
           nullif(o.job_id, '') AS job_id, o.class, o.formula, o.gpu_ms
    FROM occupancy_1m o
    LEFT JOIN job j ON j.window_start = o.window_start AND j.cluster = o.cluster AND j.job_id = o.job_id
    LEFT JOIN registered r ON r.window_start = o.window_start AND r.cluster = o.cluster AND r.node = o.node
    UNION ALL
    SELECT c.window_start, c.cluster, c.pool, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'not_provisioned', 'capacity',
           gpu_ms(c.gpus_milli, c.clip_from, c.clip_from, c.clip_to)
    FROM commitments c
    JOIN watched w ON w.window_start = c.window_start AND w.cluster = c.cluster
), named AS (
    -- The same rows, added up by all names.
    SELECT window_start, cluster, pool, gpu_model, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula, sum(gpu_ms) AS gpu_ms
    FROM classified
    GROUP BY window_start, cluster, pool, gpu_model, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula
), priced AS (
    -- The same rows, with the cost.
    SELECT n.window_start, n.cluster, n.pool, n.gpu_model, n.node, n.gpu_uuid, n.mig_uuid, n.team, n.user_name, n.job_id, n.class, n.formula,
           max(n.gpu_ms) AS gpu_ms,
           -- Not clip_to, which ends with the observation: a price applies to the whole minute.
           sum(cost_micros(share_of(n.gpu_ms, ms_between(n.window_start, p.clip_from),
                                    ms_between(p.clip_from, least(p.to_time, plus_ms(n.window_start, 60000))), 60000),
                           p.price_micros_per_gpu_hour)) AS cost_micros
    FROM named n
    LEFT JOIN price_of p ON p.window_start = n.window_start AND p.cluster = n.cluster
                        AND coalesce(p.pool, '') = coalesce(n.pool, '') AND coalesce(p.gpu_model, '') = coalesce(n.gpu_model, '')
    WHERE n.gpu_ms <> 0
    GROUP BY n.window_start, n.cluster, n.pool, n.gpu_model, n.node, n.gpu_uuid, n.mig_uuid, n.team, n.user_name, n.job_id, n.class, n.formula
)
SELECT window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula,
       sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros
FROM priced
GROUP BY window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula
