--! name    = "ledger_1h"
--! version = 4
--! doc     = "Where every GPU-ms went, per UTC hour: device_ledger_1m summed up; before agents monitored a cluster, the intervals of ledger_stretches, split at hours."
--! question = "Where did the GPU-hours of the last week go, and what did each class cost?"
--! example  = "SELECT class, sum(gpu_ms) / 3600000 AS gpu_hours, sum(cost_micros) / 1000000 AS cost FROM ledger_1h WHERE window_start >= now() - INTERVAL '7 days' GROUP BY class ORDER BY gpu_hours DESC"
--! sources = ["device_ledger_1m", "ledger_stretches", "price_of"]
--! rolls_up = "ledger_1m"
--! window  = "1h"
--! opening = true
--! wait_outcome = false
--! key     = ["window_start", "cluster", "pool", "node", "gpu_uuid", "mig_uuid", "team", "user_name", "job_id", "class", "formula"]
--! [extents]
--! device_ledger_1m = { time = "window_start" }
--! ledger_stretches = { from = "from_time", to = "to_time" }
--! price_of         = { from = "from_time", to = "coalesce(to_time, plus_ms(from_time, 3153600000000))" }
--! [columns]
--! window_start = "Start of the UTC hour."
--! cluster      = "Cluster."
--! pool         = "Pool of the job that held the GPUs, else of the node."
--! node         = "Node; NULL if not known."
--! gpu_uuid     = "GPU, as in device_ledger_1m; NULL where no agent monitored it."
--! mig_uuid     = "MIG slice, as in device_ledger_1m."
--! team         = "Team of the job that held the GPUs. Where only pool samples are known: owner of the quota. Else NULL."
--! user_name    = "User of the job that held the GPUs."
--! job_id       = "Job that held the GPUs."
--! class        = "Class of the time: one of ledger_classes."
--! formula      = "Evidence for the class: capacity (nodes and reservations), queue (waiting jobs against free GPUs), hold (scheduler and agent), samples (activity of the GPU), steps (reports of the job)."
--! gpu_ms       = "GPU x ms."
--! cost_micros  = "Cost by the price book, millionths of its currency; NULL if no price is known."
WITH stretches AS (
    -- One row per interval of ledger_stretches in the hour.
    SELECT *, CASE WHEN gpus_milli < 0 THEN -1 ELSE 1 END AS sign, abs(gpus_milli) AS gpus FROM ledger_stretches
), parts AS (
    -- One row per minute of device_ledger_1m, per interval, and per interval and price.
    SELECT window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula, gpu_ms, cost_micros
    FROM device_ledger_1m
    UNION ALL
    SELECT window_start, cluster, pool, node, NULL, NULL, team, user_name, job_id, class, formula, sign * gpu_ms(gpus, counted_from, clip_from, clip_to), CAST(NULL AS BIGINT)
    FROM stretches
    UNION ALL
    SELECT s.window_start, s.cluster, s.pool, s.node, NULL, NULL, s.team, s.user_name, s.job_id, s.class, s.formula, 0,
           s.sign * gpu_cost_micros(s.gpus, s.counted_from, greatest(s.clip_from, p.clip_from), least(s.clip_to, p.clip_to), p.price_micros_per_gpu_hour)
    FROM price_of p
    JOIN stretches s ON p.window_start = s.window_start AND p.cluster = s.cluster
                   AND coalesce(p.pool, '') = coalesce(s.pool, '') AND coalesce(p.gpu_model, '') = coalesce(s.gpu_model, '')
    WHERE p.clip_from < s.clip_to AND p.clip_to > s.clip_from
)
SELECT window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula, sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros
FROM parts
GROUP BY window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula
HAVING sum(gpu_ms) <> 0
