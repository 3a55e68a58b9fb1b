--! name    = "token_costs"
--! doc     = "Cost of a million tokens and of a thousand steps of training: the whole cost of the job's GPUs, lost runs included, divided by the tokens and steps of its progress. One row per job that reports steps and currency; with prices in two currencies each row has its part, never added up. The cost of an epoch follows from the number of steps of the complete ones; startup, redone steps and all else are spread evenly over all steps. Joules per million tokens are uj_per_token of job_energy (1 µJ per token is 1 J per million)."
--! question = "What does a million tokens of training cost, a thousand steps, an epoch?"
--! example  = "SELECT job_id, currency, tokens, cost_micros / 1000000 AS cost, cost_micros_per_million_tokens / 1000000.0 AS cost_per_million_tokens, token_reason FROM token_costs WHERE last_step_time >= now() - INTERVAL '7 days' ORDER BY cost DESC NULLS LAST LIMIT 20"
--! sources = ["steps", "job_costs"]
--! [columns]
--! cluster         = "Cluster."
--! job_id          = "Job."
--! team            = "Account, group or virtual cluster."
--! user_name       = "User who submitted the job."
--! currency        = "Currency of the cost; NULL where no price is known."
--! gpu_ms          = "GPU x ms that the job held at prices in the currency, over all runs, up to as_of while it runs."
--! cost_micros     = "Numerator: cost, millionths of the currency, as in job_costs."
--! unpriced_gpu_ms = "GPU x ms of the job without a known price, the same in all its rows."
--! tokens          = "Denominator: tokens of all ranks, each step once, in its last execution. NULL if none were reported."
--! redone_tokens   = "Tokens of steps that were repeated later, or by another number of ranks: computed, but not in tokens."
--! steps           = "Steps that were reported, each number once."
--! steps_told      = "Part of them for which every rank reported its tokens."
--! steps_done      = "Progress of the job: highest minus lowest step number, plus one."
--! cost_micros_per_million_tokens = "cost_micros x 1,000,000 / tokens, rounded down; NULL if cost_reason or token_reason is set."
--! cost_micros_per_1000_steps     = "cost_micros x 1,000 / steps_done, rounded down; NULL if cost_reason is set."
--! epochs          = "Complete passes over the data, of those whose start was reported. NULL if none was reported."
--! epoch_steps     = "Steps of these epochs, each number once."
--! cost_micros_per_epoch          = "cost_micros x epoch_steps / (steps_done x epochs), rounded down; NULL if cost_reason or epoch_reason is set."
--! cost_reason     = "no_hold: no scheduler reported that the job held GPUs. no_price. gpus_unknown: number of GPUs not reported. price_unknown_in_part: unpriced_gpu_ms is not 0, so a ratio would be too low. NULL if the cost is known."
--! token_reason    = "no_tokens: none reported. some_ranks: steps_told is under 99 % of steps. steps_missing: steps is under 99 % of steps_done, for instance if only every tenth step is reported. NULL if the tokens are known."
--! epoch_reason    = "no_epochs: no report names one. first_epoch: no epoch with a reported start is complete. NULL if epochs are known."
--! first_step_time = "Start of the first step."
--! last_step_time  = "Start of the last step."
WITH by_rank AS (
    -- One row per step, world size and rank; the last report counts.
    SELECT cluster, job_id, step, world_size, rank, latest(tokens, event_time) AS tokens, sum(tokens) AS all_tokens,
           min(event_time) AS first_time, max(event_time) AS last_time
    FROM steps
    GROUP BY cluster, job_id, step, world_size, rank
), by_world AS (
    -- One row per step and world size.
    SELECT cluster, job_id, step, sum(tokens) AS tokens, sum(all_tokens) AS all_tokens,
           CASE WHEN count(tokens) >= coalesce(world_size, count(*)) THEN 1 ELSE 0 END AS is_told,
           min(first_time) AS first_time, max(last_time) AS last_time
    FROM by_rank
    GROUP BY cluster, job_id, step, world_size
), by_step AS (
    -- One row per step, as it was done last. latest() ignores NULL, so missing tokens count as 0
    -- rather than as those of an earlier try.
    SELECT cluster, job_id, step, latest(coalesce(tokens, 0), last_time) AS tokens, sum(all_tokens) AS all_tokens,
           latest(is_told, last_time) AS is_told, min(first_time) AS first_time, max(last_time) AS last_time
    FROM by_world
    GROUP BY cluster, job_id, step
), trained AS (
    -- One row per job.
    SELECT cluster, job_id, CASE WHEN sum(all_tokens) > 0 THEN sum(tokens) END AS tokens,
           CASE WHEN sum(all_tokens) > 0 THEN sum(all_tokens) - sum(tokens) END AS redone_tokens,
           count(*) AS steps, sum(is_told) AS steps_told, max(step) - min(step) + 1 AS steps_done,
           min(first_time) AS first_step_time, max(last_time) AS last_step_time
    FROM by_step
    GROUP BY cluster, job_id
), begins AS (
    -- One row per job and epoch. The start of the first epoch is known only if its steps begin with
    -- number 0.
    SELECT cluster, job_id, data_epoch, min(step) AS first_step,
           row_number() OVER (PARTITION BY cluster, job_id ORDER BY data_epoch) AS place
    FROM steps
    WHERE data_epoch IS NOT NULL
    GROUP BY cluster, job_id, data_epoch
), passes AS (
    -- One row per job that reports epochs.
    SELECT cluster, job_id, coalesce(max(data_epoch) FILTER (WHERE is_known) - min(data_epoch) FILTER (WHERE is_known), 0) AS epochs,
           coalesce(max(first_step) FILTER (WHERE is_known) - min(first_step) FILTER (WHERE is_known), 0)                  AS epoch_steps
    FROM (SELECT *, place > 1 OR first_step = 0 AS is_known FROM begins)
    GROUP BY cluster, job_id
), costs AS (
    -- One row per job and currency.
    SELECT cluster, job_id, max(team) AS team, max(user_name) AS user_name, currency, sum(gpu_ms) AS gpu_ms, sum(cost_micros) AS cost_micros,
           coalesce(sum(sum(gpu_ms) FILTER (WHERE currency IS NULL)) OVER (PARTITION BY cluster, job_id), 0) AS unpriced_gpu_ms
    FROM job_costs
    GROUP BY cluster, job_id, currency
), explained AS (
    -- One row per job and currency, with the reasons why ratios are missing.
    SELECT t.*, p.epochs, p.epoch_steps, c.team, c.user_name, c.currency, c.gpu_ms, c.cost_micros, c.unpriced_gpu_ms,
           CASE WHEN c.job_id IS NULL THEN 'no_hold'
                WHEN c.currency IS NULL THEN 'no_price'
                WHEN c.cost_micros IS NULL THEN 'gpus_unknown'
                WHEN c.unpriced_gpu_ms > 0 THEN 'price_unknown_in_part' END AS cost_reason,
           CASE WHEN coalesce(t.tokens, 0) = 0 THEN 'no_tokens'
                WHEN t.steps_told * 100 < t.steps * 99 THEN 'some_ranks'
                WHEN t.steps * 100 < t.steps_done * 99 THEN 'steps_missing' END AS token_reason,
           CASE WHEN p.epochs IS NULL THEN 'no_epochs' WHEN p.epochs < 1 OR p.epoch_steps < 1 THEN 'first_epoch' END AS epoch_reason
    FROM trained t
    LEFT JOIN passes p ON p.cluster = t.cluster AND p.job_id = t.job_id
    LEFT JOIN costs c ON c.cluster = t.cluster AND c.job_id = t.job_id
)
SELECT cluster, job_id, team, user_name, currency, gpu_ms, cost_micros, unpriced_gpu_ms, tokens, redone_tokens, steps, steps_told, steps_done,
       CASE WHEN cost_reason IS NULL AND token_reason IS NULL THEN part_of(cost_micros, 0, 1000000, tokens) END AS cost_micros_per_million_tokens,
       CASE WHEN cost_reason IS NULL THEN part_of(cost_micros, 0, 1000, steps_done) END AS cost_micros_per_1000_steps,
       epochs, epoch_steps,
       CASE WHEN cost_reason IS NULL AND epoch_reason IS NULL THEN part_of(cost_micros, 0, epoch_steps, steps_done * epochs) END AS cost_micros_per_epoch,
       cost_reason, token_reason, epoch_reason, first_step_time, last_step_time
FROM explained
