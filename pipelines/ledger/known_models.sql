--! name    = "known_models"
--! doc     = "Pools and GPU models that any node ever had, and since when. Idle GPUs of a cluster are of a pool and a model only while there is one."
--! question = "Which pools and GPU models has a cluster had?"
--! example  = "SELECT cluster, pool, gpu_model, from_time FROM known_models ORDER BY cluster, from_time"
--! sources = ["node_capacity"]
--! [columns]
--! cluster   = "Cluster."
--! pool      = "Pools of a node, comma separated."
--! gpu_model = "Model of its GPUs."
--! from_time = "Time since when there was such a node."
--! to_time   = "NULL: it counts from then on."
SELECT cluster, pool, gpu_model, min(from_time) AS from_time, arrow_cast(NULL, 'Timestamp(Microsecond, Some("UTC"))') AS to_time
FROM node_capacity
GROUP BY cluster, pool, gpu_model
