--! name    = "forecast_scores"
--! doc     = "Every forecast of demand whose hour is over, compared with the GPUs held and waited for in that hour: pinball loss by quantile, and whether the actual value was covered."
--! question = "How good were the forecasts of demand, by series and horizon, and do their bounds hold?"
--! example  = "SELECT kind, name, horizon, count(*) AS forecasts, avg(covered80) AS covered80, avg(below95) AS below95, 2.0 * sum(mean_pinball_gpus_micro) / (1000.0 * sum(truth_gpus_milli)) AS weighted_quantile_loss FROM forecast_scores WHERE target_time >= now() - INTERVAL '28 days' GROUP BY kind, name, horizon HAVING sum(truth_gpus_milli) > 0 ORDER BY kind, name, horizon"
--! sources = ["forecasts", "usage_1h", "job_intervals", "job_events"]
--! [columns]
--! cluster     = "Cluster."
--! kind        = "TOTAL, POOL, TEAM, or CLASS (jobs by size in GPUs, by the size that was first reported for the job)."
--! name        = "Name of the series."
--! issued_time = "Time of the forecast."
--! target_time = "Start of the forecast hour."
--! horizon     = "Hours ahead, from 1."
--! truth_gpus_milli  = "Mean GPUs held and waited for in that hour, thousandths."
--! median_gpus_milli = "Forecast median, thousandths of a GPU."
--! error_gpus_milli  = "Actual value minus median."
--! p01_pinball_gpus_micro = "Pinball loss of quantile 0.01, millionths of a GPU."
--! p05_pinball_gpus_micro = "Pinball loss of quantile 0.05, millionths of a GPU."
--! p10_pinball_gpus_micro = "Pinball loss of quantile 0.10, millionths of a GPU."
--! p25_pinball_gpus_micro = "Pinball loss of quantile 0.25, millionths of a GPU."
--! p50_pinball_gpus_micro = "Pinball loss of quantile 0.50, millionths of a GPU."
--! p75_pinball_gpus_micro = "Pinball loss of quantile 0.75, millionths of a GPU."
--! p90_pinball_gpus_micro = "Pinball loss of quantile 0.90, millionths of a GPU."
--! p95_pinball_gpus_micro = "Pinball loss of quantile 0.95, millionths of a GPU."
--! p99_pinball_gpus_micro = "Pinball loss of quantile 0.99, millionths of a GPU."
--! mean_pinball_gpus_micro = "Mean pinball loss of all 21 quantiles, millionths of a GPU, rounded down."
--! covered80 = "1 if the actual value lies from quantile 0.1 to 0.9, else 0. Nominal: four in five."
--! below95   = "1 if the actual value lies at or below quantile 0.95, else 0. Nominal: nineteen in twenty."
--! model     = "Version of the forecaster."
WITH measured AS (
    -- One row of usage_1h.
    SELECT cluster, window_start, pool, team, gpu_ms_held + gpu_ms_queued AS gpu_ms FROM usage_1h
), sizes AS (
    -- One row per report of the size of a job; place 1 is the first.
    SELECT cluster, job_id, gpus_milli,
           row_number() OVER (PARTITION BY cluster, job_id ORDER BY event_time, CASE kind WHEN 'SUBMITTED' THEN 0 ELSE 1 END, gpus_milli) AS place
    FROM job_events
    WHERE kind IN ('SUBMITTED', 'STARTED', 'RESIZED') AND step_id IS NULL AND gpus_milli > 0
), classes AS (
    -- One row per job, with its class of size.
    SELECT cluster, job_id,
           CASE WHEN gpus_milli <= 1000 THEN '1' WHEN gpus_milli <= 4000 THEN '2-4' WHEN gpus_milli <= 8000 THEN '5-8'
                WHEN gpus_milli <= 32000 THEN '9-32' ELSE '33+' END AS class
    FROM sizes
    WHERE place = 1
), stretches AS (
    -- One row per interval in which such a job held GPUs or waited.
    SELECT i.cluster, c.class, i.gpus_milli, i.from_time, coalesce(i.to_time, i.as_of) AS to_time
    FROM job_intervals i
    JOIN classes c ON c.cluster = i.cluster AND c.job_id = i.job_id
    WHERE i.gpus_milli > 0 AND i.from_time < coalesce(i.to_time, i.as_of)
), begun AS (
    -- One row per cluster.
    SELECT cluster, min(from_time) AS from_time FROM stretches GROUP BY cluster
), targets AS (
    -- One row per class and forecast hour.
    SELECT DISTINCT cluster, name AS class, target_time FROM forecasts WHERE step_ms = 3600000 AND kind = 'CLASS'
), changes AS (
    -- One row per start and end of demand or of a forecast hour.
    SELECT cluster, class, from_time AS at, gpus_milli FROM stretches
    UNION ALL
    SELECT cluster, class, to_time, -gpus_milli FROM stretches
    UNION ALL
    SELECT cluster, class, target_time, 0 FROM targets
    UNION ALL
    SELECT cluster, class, target_time + INTERVAL '1 hour', 0 FROM targets
), points AS (
    -- One row per class and time; times count from the first job, so that products stay small.
    SELECT c.cluster, c.class, c.at, ms_between(b.from_time, c.at) AS ms, sum(c.gpus_milli) AS gpus_milli
    FROM changes c
    JOIN begun b ON b.cluster = c.cluster
    GROUP BY c.cluster, c.class, c.at, b.from_time
), totals AS (
    -- The same rows, with demand accumulated so far: time x (begun - ended), less the sum of each
    -- one's own time.
    SELECT cluster, class, at,
           ms * CAST(sum(gpus_milli) OVER so_far AS BIGINT) - CAST(sum(gpus_milli * ms) OVER so_far AS BIGINT) AS milli_ms
    FROM points
    WINDOW so_far AS (PARTITION BY cluster, class ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), demand AS (
    -- One row per series and hour. GPU x ms of an hour / 3600 are thousandths of a GPU.
    SELECT cluster, window_start, 'TOTAL' AS kind, 'total' AS name, sum(gpu_ms) / 3600 AS gpus_milli
    FROM measured GROUP BY cluster, window_start
    UNION ALL
    SELECT cluster, window_start, 'POOL', pool, sum(gpu_ms) / 3600 FROM measured WHERE pool IS NOT NULL GROUP BY cluster, window_start, pool
    UNION ALL
    SELECT cluster, window_start, 'TEAM', team, sum(gpu_ms) / 3600 FROM measured WHERE team IS NOT NULL GROUP BY cluster, window_start, team
    UNION ALL
    SELECT a.cluster, a.target_time, 'CLASS', a.class, (t.milli_ms - f.milli_ms) / 3600000
    FROM targets a
    JOIN totals f ON f.cluster = a.cluster AND f.class = a.class AND f.at = a.target_time
    JOIN totals t ON t.cluster = a.cluster AND t.class = a.class AND t.at = a.target_time + INTERVAL '1 hour'
), observed AS (
    -- One row per cluster: its last event.
    SELECT cluster, max(event_time) AS to_time FROM job_events GROUP BY cluster
), matched AS (
    -- One row per forecast whose hour is over; an hour without a row had no demand.
    SELECT f.*, coalesce(d.gpus_milli, 0) AS truth
    FROM forecasts f
    JOIN observed o ON o.cluster = f.cluster AND f.target_time + INTERVAL '1 hour' <= o.to_time
    LEFT JOIN demand d ON d.cluster = f.cluster AND d.kind = f.kind AND d.name = f.name AND d.window_start = f.target_time
    WHERE f.step_ms = 3600000
)
SELECT cluster, kind, name, event_time AS issued_time, target_time, horizon,
       truth AS truth_gpus_milli, p50_gpus_milli AS median_gpus_milli, truth - p50_gpus_milli AS error_gpus_milli,
       pinball(truth, p01_gpus_milli, 10) AS p01_pinball_gpus_micro,
       pinball(truth, p05_gpus_milli, 50) AS p05_pinball_gpus_micro,
       pinball(truth, p10_gpus_milli, 100) AS p10_pinball_gpus_micro,
       pinball(truth, p25_gpus_milli, 250) AS p25_pinball_gpus_micro,
       pinball(truth, p50_gpus_milli, 500) AS p50_pinball_gpus_micro,
       pinball(truth, p75_gpus_milli, 750) AS p75_pinball_gpus_micro,
       pinball(truth, p90_gpus_milli, 900) AS p90_pinball_gpus_micro,
       pinball(truth, p95_gpus_milli, 950) AS p95_pinball_gpus_micro,
       pinball(truth, p99_gpus_milli, 990) AS p99_pinball_gpus_micro,
       (pinball(truth, p01_gpus_milli, 10)
        + pinball(truth, p05_gpus_milli, 50)
        + pinball(truth, p10_gpus_milli, 100)
        + pinball(truth, p15_gpus_milli, 150)
        + pinball(truth, p20_gpus_milli, 200)
        + pinball(truth, p25_gpus_milli, 250)
        + pinball(truth, p30_gpus_milli, 300)
        + pinball(truth, p35_gpus_milli, 350)
        + pinball(truth, p40_gpus_milli, 400)
        + pinball(truth, p45_gpus_milli, 450)
        + pinball(truth, p50_gpus_milli, 500)
        + pinball(truth, p55_gpus_milli, 550)
        + pinball(truth, p60_gpus_milli, 600)
        + pinball(truth, p65_gpus_milli, 650)
        + pinball(truth, p70_gpus_milli, 700)
        + pinball(truth, p75_gpus_milli, 750)
        + pinball(truth, p80_gpus_milli, 800)
        + pinball(truth, p85_gpus_milli, 850)
        + pinball(truth, p90_gpus_milli, 900)
        + pinball(truth, p95_gpus_milli, 950)
        + pinball(truth, p99_gpus_milli, 990)) / 21 AS mean_pinball_gpus_micro,
       CASE WHEN truth >= p10_gpus_milli AND truth <= p90_gpus_milli THEN 1 ELSE 0 END AS covered80,
       CASE WHEN truth <= p95_gpus_milli THEN 1 ELSE 0 END AS below95,
       model
FROM matched
