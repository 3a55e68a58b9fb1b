--! name    = "checkpoint_advice"
--! doc     = "Best checkpoint interval of each job that reports steps, against its current one: Young's interval, sqrt(2 x save x time between failures), and the wasted share of time by Daly's formula at both. Failures are the node failures counted in the cluster, combined with the rate of published fleets (4 in 1,000 node-days, with the weight of half a failure)."
--! question = "Which jobs save checkpoints too often or too seldom, and what does it cost them?"
--! example  = "SELECT job_id, interval_ms / 60000 AS minutes_now, best_interval_ms / 60000 AS minutes_best, waste_ppm / 10000.0 AS lost_percent_now, best_waste_ppm / 10000.0 AS lost_percent_best FROM checkpoint_advice ORDER BY waste_ppm - best_waste_ppm DESC LIMIT 20"
--! sources = ["step_parts", "goodput_attempts", "attempts"]
--! [columns]
--! cluster           = "Cluster."
--! job_id            = "Job that reports checkpoint saves; other jobs are not in this table."
--! nodes             = "Most nodes that it held; each may fail."
--! saves             = "Saves observed, per rank that saves."
--! save_ms           = "Mean time that a save stops a rank, ms."
--! restart_ms        = "Mean time from the start of an attempt to its first new step, checkpoint loaded, ms: of its restarts, or of its first start if it has none. Waiting for nodes is not included."
--! interval_ms       = "Mean work between two saves now, ms."
--! failures          = "Attempts in the cluster that a node failure ended."
--! node_hours        = "Node-hours held in the cluster."
--! failure_ms        = "Expected time between failures of the job, ms."
--! best_interval_ms  = "Work between two saves that wastes the least time, ms."
--! waste_ppm         = "Wasted share of time now: saves, work lost to failures, restarts; millionths."
--! best_waste_ppm    = "The same at the best interval."
WITH saves AS (
    -- One row per job and rank; a redone step belongs to the restart.
    SELECT cluster, job_id, rank, count(*) FILTER (WHERE checkpoint_us > 0) AS saves,
           sum(checkpoint_us) AS save_us, sum(used_us - coalesce(checkpoint_us, 0) - coalesce(restore_us, 0)) AS work_us
    FROM step_parts
    WHERE attempt IS NOT NULL AND is_redone = 0
    GROUP BY cluster, job_id, rank
), saving AS (
    -- One row per job that saves.
    SELECT cluster, job_id, sum(saves) / count(*) AS saves,
           sum(save_us) / sum(saves) / 1000 AS save_ms, sum(work_us) / sum(saves) / 1000 AS interval_ms
    FROM saves
    WHERE saves > 0
    GROUP BY cluster, job_id
), held AS (
    -- One row per attempt that held GPUs.
    SELECT cluster, job_id, attempt, node_count, gpus_milli, final_state,
           node_count * ms_between(from_time, coalesce(to_time, as_of)) AS node_ms
    FROM attempts
    WHERE from_time IS NOT NULL
), fleet AS (
    -- One row per cluster: node time and node failures.
    SELECT cluster, coalesce(sum(node_ms), 0) AS node_ms, count(*) FILTER (WHERE final_state = 'NODE_FAIL') AS failures
    FROM held
    GROUP BY cluster
), starts AS (
    -- One row per job, with its restart and start times.
    SELECT g.cluster, g.job_id, max(h.node_count) AS nodes,
           sum(CASE WHEN g.run > 0 THEN (g.recovery_gpu_ms + coalesce(g.restore_gpu_ms, 0)) * 1000 / h.gpus_milli END)
               / nullif(count(*) FILTER (WHERE g.run > 0 AND g.attempt > 0), 0) AS restart_ms,
           max(CASE WHEN g.run = 0 THEN (g.startup_gpu_ms + coalesce(g.restore_gpu_ms, 0)) * 1000 / h.gpus_milli END) AS start_ms
    FROM goodput_attempts g
    JOIN held h ON h.cluster = g.cluster AND h.job_id = g.job_id AND h.attempt = g.attempt AND h.gpus_milli > 0 AND h.node_count > 0
    GROUP BY g.cluster, g.job_id
), costs AS (
    -- One row per job, with the expected time between failures.
    SELECT s.cluster, s.job_id, t.nodes, s.saves, s.save_ms, coalesce(t.restart_ms, t.start_ms, 0) AS restart_ms, s.interval_ms,
           f.failures, f.node_ms,
           -- Prior belief: half a failure in 3,000 node-hours.
           2 * (10800000000 + f.node_ms) / ((1 + 2 * f.failures) * t.nodes) AS failure_ms
    FROM saving s
    JOIN starts t ON t.cluster = s.cluster AND t.job_id = s.job_id
    JOIN fleet f ON f.cluster = s.cluster
    WHERE s.save_ms > 0 AND s.interval_ms > 0
), best AS (
    -- The same rows, with the best interval.
    SELECT *, CAST(sqrt(2.0 * CAST(save_ms AS DOUBLE) * CAST(failure_ms AS DOUBLE)) AS BIGINT) AS best_interval_ms FROM costs
), rated AS (
    -- The same rows, with the failure rate.
    SELECT *, 1.0 / CAST(failure_ms AS DOUBLE) AS rate FROM best
)
SELECT cluster, job_id, nodes, saves, save_ms, restart_ms, interval_ms, failures, node_ms / 3600000 AS node_hours, failure_ms,
       best_interval_ms,
       CAST(1000000.0 * (1.0 - interval_ms * rate * exp(0.0 - rate * restart_ms) / (exp(rate * (interval_ms + save_ms)) - 1.0)) AS BIGINT) AS waste_ppm,
       CAST(1000000.0 * (1.0 - best_interval_ms * rate * exp(0.0 - rate * restart_ms) / (exp(rate * (best_interval_ms + save_ms)) - 1.0)) AS BIGINT) AS best_waste_ppm
FROM rated
