--! name    = "capacity"
--! doc     = "History of quotas and reservations: one row per value, from when to when. A row with previous_gpus_milli is a change."
--! sources = ["capacity_events"]
--! per     = ["cluster", "owner"]
--! key     = ["cluster", "owner", "kind", "pool", "gpu_model", "from_time"]
--! [columns]
--! cluster             = "Cluster."
--! owner               = "Team or virtual cluster that is entitled; `total` is the whole cluster."
--! kind                = "QUOTA_SET or RESERVATION_SET."
--! pool                = "Pool the entitlement is in."
--! gpu_model           = "GPU model it is for."
--! gpus_milli          = "Thousandths of a GPU."
--! previous_gpus_milli = "Value before; NULL for the first one known."
--! from_time           = "From when on."
--! to_time             = "Until when; NULL for the value in force."
WITH settings AS (
    SELECT cluster, owner, kind, pool, gpu_model, event_time, max(gpus_milli) AS gpus_milli
    FROM capacity_events
    GROUP BY cluster, owner, kind, pool, gpu_model, event_time
), compared AS (
    SELECT *,
           lag(gpus_milli) OVER entitlement AS previous_gpus_milli,
           row_number() OVER entitlement AS place
    FROM settings
    WINDOW entitlement AS (PARTITION BY cluster, owner, kind, pool, gpu_model ORDER BY event_time)
), changes AS (
    SELECT * FROM compared WHERE place = 1 OR previous_gpus_milli IS DISTINCT FROM gpus_milli
)
SELECT cluster, owner, kind, pool, gpu_model, gpus_milli, previous_gpus_milli, event_time AS from_time,
       lead(event_time) OVER (PARTITION BY cluster, owner, kind, pool, gpu_model ORDER BY event_time) AS to_time
FROM changes
