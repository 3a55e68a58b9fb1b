--! name    = "run_costs"
--! doc     = "Cost of each run of a job, including failed tries: attempt_costs by run. One row per run and currency; costs of different currencies are never added up. Over the runs of a job, gpu_ms and cost_micros add up to those of job_costs exactly."
--! question = "What did each run of a job cost, and what did the lost runs cost?"
--! example  = "SELECT team, currency, sum(cost_micros) / 1000000 AS cost, sum(cost_micros) FILTER (WHERE is_lost = 1) / 1000000 AS cost_of_lost_runs FROM run_costs WHERE from_time >= now() - INTERVAL '7 days' GROUP BY team, currency ORDER BY cost DESC NULLS LAST"
--! sources = ["attempts", "attempt_costs"]
--! [columns]
--! cluster         = "Cluster."
--! job_id          = "Job."
--! run             = "Number of the run, from 0, as in attempts: a restart starts a new run, a resize does not."
--! team            = "Account, group or virtual cluster."
--! user_name       = "User who submitted the job."
--! pool            = "Pool of its last attempt."
--! attempts        = "Number of its attempts."
--! is_lost         = "1 if another run followed or is waited for, else 0."
--! final_state     = "How the run ended; NULL while it continues."
--! from_time       = "Time at which it began to hold GPUs."
--! to_time         = "Time at which it released them; NULL while it holds them."
--! currency        = "Currency of the cost; NULL in the row of time for which no price is known."
--! gpu_ms          = "GPU x ms held at prices in the currency, up to as_of while the run lasts."
--! cost_micros     = "Cost, millionths of the currency: split where the price changes, rounded as in job_costs."
--! unpriced_gpu_ms = "GPU x ms of the run without a known price, the same in all its rows. If it is not 0, the run cost more than shown."
--! reason          = "Why cost_micros is NULL: no_price; gpus_unknown (number of GPUs not reported). NULL if it is known."
WITH costs AS (
    -- One row per run and currency; the GPU time of the run without a price is the same in all.
    SELECT cluster, job_id, run, currency, sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros,
           sum(sum(CASE is_priced WHEN 1 THEN 0 ELSE gpu_ms END)) OVER (PARTITION BY cluster, job_id, run) AS unpriced_gpu_ms
    FROM attempt_costs
    GROUP BY cluster, job_id, run, currency
), runs AS (
    -- One row per run that held GPUs.
    SELECT cluster, job_id, run, max(team) AS team, max(user_name) AS user_name, latest(pool, from_time) AS pool,
           count(*) AS attempts, max(is_lost) AS is_lost,
           -- An attempt that a resize ended is not the last one of its run, and the run is not over
           -- while an attempt holds GPUs.
           CASE WHEN count(to_time) = count(*) THEN max(final_state) FILTER (WHERE final_state <> 'RESIZED') END AS final_state,
           min(from_time) AS from_time, CASE WHEN count(to_time) = count(*) THEN max(to_time) END AS to_time
    FROM attempts
    WHERE from_time IS NOT NULL
    GROUP BY cluster, job_id, run
)
SELECT c.cluster, c.job_id, c.run, r.team, r.user_name, r.pool, r.attempts, r.is_lost, r.final_state, r.from_time, r.to_time,
       c.currency, c.gpu_ms, c.cost_micros, c.unpriced_gpu_ms,
       CASE WHEN c.cost_micros IS NOT NULL THEN NULL WHEN c.currency IS NULL THEN 'no_price' ELSE 'gpus_unknown' END AS reason
FROM costs c
JOIN runs r ON r.cluster = c.cluster AND r.job_id = c.job_id AND r.run = c.run
