--! name    = "run_costs"
--! doc     = "What each run of a job cost, tries that came to nothing too: job_costs by run. One row per run and currency; costs of different currencies are never added up. Over the runs of a job gpu_ms and cost_micros add up to those of job_costs exactly."
--! question = "What did each run of a job cost, and what did the runs cost that were lost?"
--! example  = "SELECT team, currency, sum(cost_micros) / 1000000 AS cost, sum(cost_micros) FILTER (WHERE is_lost = 1) / 1000000 AS cost_of_lost_runs FROM run_costs WHERE from_time >= now() - INTERVAL '7 days' GROUP BY team, currency ORDER BY cost DESC NULLS LAST"
--! sources = ["attempts", "price_of"]
--! [columns]
--! cluster         = "Cluster."
--! job_id          = "Job."
--! run             = "Number of the run, from 0, as in attempts: a restart begins another run, a resize does not."
--! team            = "Account, group or virtual cluster."
--! user_name       = "User who submitted the job."
--! pool            = "Pool of its last attempt."
--! attempts        = "Attempts that it is made of."
--! is_lost         = "1 if another run followed, or a wait for one, else 0."
--! final_state     = "How it ended; NULL while it goes on."
--! from_time       = "When it began to hold GPUs."
--! to_time         = "When it released them; NULL while it holds them."
--! currency        = "Currency of the cost; NULL in the row of time for which no price is known."
--! gpu_ms          = "GPU x ms that it held at prices in the currency, up to as_of while it runs."
--! cost_micros     = "Cost of it, millionths of the currency: cut where the price changes, rounded as in job_costs."
--! unpriced_gpu_ms = "GPU x ms of the run for which no price is known, the same in all its rows: where it is not 0 the run cost more than is told."
--! reason          = "Why cost_micros is NULL: no_price; gpus_unknown (nobody told how many it held). NULL if it is known."
WITH held AS (
    SELECT cluster, job_id, attempt, run, team, user_name, pool, gpu_model, gpus_milli, is_lost, final_state, from_time, to_time,
           coalesce(to_time, as_of) AS until_time, gpu_ms_held
    FROM attempts
    WHERE from_time IS NOT NULL
), pieces AS (
    SELECT h.cluster, h.job_id, h.attempt, h.run, p.currency, p.price_micros_per_gpu_hour,
           gpu_ms(h.gpus_milli, h.from_time, greatest(h.from_time, p.from_time), least(h.until_time, p.to_time)) AS gpu_ms
    FROM held h
    JOIN price_of p ON p.cluster = h.cluster AND (p.pool IS NOT DISTINCT FROM h.pool) AND (p.gpu_model IS NOT DISTINCT FROM h.gpu_model)
                   AND p.from_time < h.until_time AND coalesce(p.to_time > h.from_time, true)
), rows AS (
    SELECT cluster, job_id, run, currency, gpu_ms, cost_micros(gpu_ms, price_micros_per_gpu_hour) AS cost_micros, 0 AS unpriced_gpu_ms
    FROM pieces
    UNION ALL
    SELECT h.cluster, h.job_id, h.run, NULL, h.gpu_ms_held - coalesce(p.gpu_ms, 0), NULL, h.gpu_ms_held - coalesce(p.gpu_ms, 0)
    FROM held h
    LEFT JOIN (SELECT cluster, job_id, attempt, sum(gpu_ms) AS gpu_ms FROM pieces GROUP BY cluster, job_id, attempt) p
           ON p.cluster = h.cluster AND p.job_id = h.job_id AND p.attempt = h.attempt
    WHERE h.gpu_ms_held <> coalesce(p.gpu_ms, 0)
), costs AS (
    SELECT cluster, job_id, run, currency, sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros,
           sum(sum(unpriced_gpu_ms)) OVER (PARTITION BY cluster, job_id, run) AS unpriced_gpu_ms
    FROM rows
    GROUP BY cluster, job_id, run, currency
), runs AS (
    SELECT cluster, job_id, run, max(team) AS team, max(user_name) AS user_name, latest(pool, from_time) AS pool,
           count(*) AS attempts, max(is_lost) AS is_lost,
           -- Attempts that a resize ended are not the last one, nor is the run over while one of
           -- them holds GPUs.
           CASE WHEN count(to_time) = count(*) THEN max(final_state) FILTER (WHERE final_state <> 'RESIZED') END AS final_state,
           min(from_time) AS from_time, CASE WHEN count(to_time) = count(*) THEN max(to_time) END AS to_time
    FROM held
    GROUP BY cluster, job_id, run
)
SELECT c.cluster, c.job_id, c.run, r.team, r.user_name, r.pool, r.attempts, r.is_lost, r.final_state, r.from_time, r.to_time,
       c.currency, c.gpu_ms, c.cost_micros, c.unpriced_gpu_ms,
       CASE WHEN c.cost_micros IS NOT NULL THEN NULL WHEN c.currency IS NULL THEN 'no_price' ELSE 'gpus_unknown' END AS reason
FROM costs c
JOIN runs r ON r.cluster = c.cluster AND r.job_id = c.job_id AND r.run = c.run
