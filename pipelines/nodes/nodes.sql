--! name    = "nodes"
--! doc     = "Nodes and their hardware: latest report of each."
--! question = "Which nodes are there, in what state, with which driver?"
--! example  = "SELECT node, pool, gpu_model, gpus_milli / 1000 AS gpus, state, state_reason, driver_version, xids FROM nodes WHERE removed_time IS NULL ORDER BY node LIMIT 100"
--! sources = ["node_events"]
--! [columns]
--! cluster         = "Cluster."
--! node            = "Node."
--! pool            = "Pool the node is in."
--! gpu_model       = "Model of its GPUs."
--! gpus_milli      = "Its GPUs, thousandths."
--! cpus_milli      = "Its CPU cores, thousandths."
--! memory_bytes    = "Its memory, bytes."
--! registered_time = "First registration; NULL if only faults of the node are known."
--! removed_time    = "Latest removal; NULL if never removed."
--! faults          = "Faults that began on it."
--! xids            = "XID errors that its driver reported."
--! state           = "Latest state in the scheduler's words."
--! state_reason    = "Reason for that state, given by the scheduler."
--! state_time      = "Latest time at which that state was reported."
--! driver_version  = "Latest version of its GPU driver."
--! boot_id         = "Random id of its latest boot, from the kernel."
SELECT cluster, node,
       latest(pool, event_time) AS pool,
       latest(gpu_model, event_time) AS gpu_model,
       latest(gpus_milli, event_time) AS gpus_milli,
       latest(cpus_milli, event_time) AS cpus_milli,
       latest(memory_bytes, event_time) AS memory_bytes,
       min(event_time) FILTER (WHERE kind = 'NODE_REGISTERED') AS registered_time,
       max(event_time) FILTER (WHERE kind = 'NODE_REMOVED') AS removed_time,
       count(*) FILTER (WHERE kind = 'FAULT_STARTED') AS faults,
       count(*) FILTER (WHERE kind = 'XID') AS xids,
       latest(state, event_time) FILTER (WHERE kind = 'STATE_CHANGED') AS state,
       -- Reason of the latest change. An empty text stands for no reason.
       nullif(latest(coalesce(reason, ''), event_time) FILTER (WHERE kind = 'STATE_CHANGED'), '') AS state_reason,
       max(event_time) FILTER (WHERE kind = 'STATE_CHANGED') AS state_time,
       latest(driver_version, event_time) AS driver_version,
       latest(boot_id, event_time) AS boot_id
FROM node_events
GROUP BY cluster, node
