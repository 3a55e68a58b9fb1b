--! name    = "ledger_1m"
--! doc     = "Where every GPU-ms went, per UTC minute: each in exactly one class. device_ledger_1m where agents monitor; before that the intervals of ledger_stretches, split at minutes when queried."
--! question = "What is the GPU time of a job going to, minute by minute?"
--! example  = "SELECT window_start, class, formula, sum(gpu_ms) / 1000 AS gpu_s FROM ledger_1m WHERE job_id = '4711' AND window_start >= now() - INTERVAL '1 hour' GROUP BY window_start, class, formula ORDER BY window_start, class"
--! sources = ["device_ledger_1m", "ledger_stretches", "price_of"]
--! [columns]
--! window_start = "Start of the UTC minute."
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
WITH minutes AS (
    -- One row per interval of ledger_stretches and minute that it touches.
    SELECT *, greatest(from_time, window_start) AS clip_from, least(to_time, plus_ms(window_start, 60000)) AS clip_to,
           CASE WHEN gpus_milli < 0 THEN -1 ELSE 1 END AS sign, abs(gpus_milli) AS gpus
    FROM (SELECT cluster, pool, node, team, user_name, job_id, gpu_model, class, formula, gpus_milli, counted_from, from_time, to_time,
                 unnest(window_starts(from_time, to_time, 60000, from_time, to_time)) AS window_start
          FROM ledger_stretches)
), parts AS (
    -- One row per such minute, and one per minute and price.
    SELECT window_start, cluster, pool, node, team, user_name, job_id, class, formula, sign * gpu_ms(gpus, counted_from, clip_from, clip_to) AS gpu_ms, CAST(NULL AS BIGINT) AS cost_micros
    FROM minutes
    UNION ALL
    SELECT s.window_start, s.cluster, s.pool, s.node, s.team, s.user_name, s.job_id, s.class, s.formula, 0,
           s.sign * gpu_cost_micros(s.gpus, s.counted_from, greatest(s.clip_from, p.from_time), least(s.clip_to, p.to_time), p.price_micros_per_gpu_hour)
    FROM minutes s
    JOIN price_of p ON p.cluster = s.cluster AND coalesce(p.pool, '') = coalesce(s.pool, '') AND coalesce(p.gpu_model, '') = coalesce(s.gpu_model, '')
    WHERE p.from_time < s.clip_to AND coalesce(p.to_time > s.clip_from, true)
)
SELECT window_start, cluster, pool, node, gpu_uuid, mig_uuid, team, user_name, job_id, class, formula, gpu_ms, cost_micros FROM device_ledger_1m
UNION ALL
SELECT window_start, cluster, pool, node, NULL, NULL, team, user_name, job_id, class, formula, sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros
FROM parts
GROUP BY window_start, cluster, pool, node, team, user_name, job_id, class, formula
HAVING sum(gpu_ms) <> 0
