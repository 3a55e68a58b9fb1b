--! name    = "node_free"
--! doc     = "Free GPUs of each node over time, cut at UTC days."
--! question = "Where are GPUs free right now?"
--! example  = "SELECT node, pool, gpu_model, free_gpus_milli / 1000.0 AS free_gpus, gpus_milli / 1000.0 AS gpus, state FROM node_free WHERE to_time IS NULL AND is_usable = 1 AND free_gpus_milli > 0 ORDER BY free_gpus_milli DESC LIMIT 100"
--! sources = ["free_spans"]
--! window  = "1d"
--! opening = true
--! wait_outcome = false
--! key     = ["window_start", "cluster", "node", "pool", "gpu_model", "state", "from_time", "to_time"]
--! [extents]
--! free_spans = { from = "from_time", to = "to_time" }
--! [columns]
--! window_start    = "Start of the UTC day."
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
--! from_time       = "Start, at least that of the day."
--! to_time         = "End, at most that of the day; NULL for the latest row."
SELECT window_start, cluster, node, pool, gpu_model, state, is_usable, gpus_milli, held_gpus_milli, assumed_gpus_milli,
       free_gpus_milli, clip_from AS from_time, clip_end AS to_time
FROM free_spans
