--! name    = "attempt_models"
--! doc     = "Pools and GPU models that attempts of jobs ever named."
--! question = "Which pools and GPU models have jobs run on?"
--! example  = "SELECT cluster, pool, gpu_model FROM attempt_models ORDER BY cluster, pool, gpu_model"
--! sources = ["attempts"]
--! [columns]
--! cluster   = "Cluster."
--! pool      = "Partition, queue or node pool; NULL if not known."
--! gpu_model = "GPU model; NULL if not known."
SELECT DISTINCT cluster, pool, gpu_model
FROM attempts
WHERE from_time IS NOT NULL
