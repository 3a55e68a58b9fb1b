--! name    = "nodes"
--! doc     = "Nodes and what they hold: latest report of each."
--! sources = ["node_events"]
--! per     = ["cluster", "node"]
--! key     = ["cluster", "node"]
--! [columns]
--! cluster         = "Cluster."
--! node            = "Node."
--! pool            = "Pool the node is in."
--! gpu_model       = "Model of its GPUs."
--! gpus_milli      = "Its GPUs, thousandths."
--! cpus_milli      = "Its CPU cores, thousandths."
--! memory_bytes    = "Its memory, bytes."
--! registered_time = "When it was first reported; NULL if only its faults are known."
--! removed_time    = "When it was last reported gone; NULL if never."
--! faults          = "Faults that began on it."
SELECT cluster, node,
       latest(pool, event_time) AS pool,
       latest(gpu_model, event_time) AS gpu_model,
       latest(gpus_milli, event_time) AS gpus_milli,
       latest(cpus_milli, event_time) AS cpus_milli,
       latest(memory_bytes, event_time) AS memory_bytes,
       min(event_time) FILTER (WHERE kind = 'NODE_REGISTERED') AS registered_time,
       max(event_time) FILTER (WHERE kind = 'NODE_REMOVED') AS removed_time,
       count(*) FILTER (WHERE kind = 'FAULT_STARTED') AS faults
FROM node_events
GROUP BY cluster, node
