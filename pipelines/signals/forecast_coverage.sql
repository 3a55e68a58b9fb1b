--! name    = "forecast_coverage"
--! doc     = "Whether the bounds of published forecasts hold, by series and horizon: the latest state."
--! question = "Which forecasts of demand cannot be trusted, since when, and in which direction are they off?"
--! example  = "SELECT kind, name, reach, state, since_time, inside80_ppm / 10000 AS inside80_percent, below95_ppm / 10000 AS below95_percent FROM forecast_coverage WHERE state <> 'HOLDS' ORDER BY since_time DESC"
--! sources = ["coverage_signals"]
--! [columns]
--! cluster      = "Cluster."
--! kind         = "TOTAL, POOL, TEAM, or CLASS (jobs by size in GPUs)."
--! name         = "Name of the series."
--! reach        = "Horizon: NEXT_STEP, WITHIN_DAY, WITHIN_WEEK or BEYOND_WEEK."
--! state        = "HOLDS, TOO_LOW (actual demand exceeds quantile 0.95 too often; nothing is lent on it), TOO_NARROW (outside quantiles 0.1 to 0.9 too often) or TOO_WIDE (inside too often)."
--! since_time   = "Start of this state."
--! said_time    = "Latest statement; one per day while forecasts are made."
--! changes      = "Number of changes of the state so far."
--! scores       = "Forecasts compared with actual demand so far."
--! inside80_ppm = "Share of actual values from quantile 0.1 to 0.9, millionths; the weight of old ones halves every two weeks. Nominal: 800000."
--! below95_ppm  = "The same at or below quantile 0.95. Nominal: 950000."
--! model        = "Version of the forecaster."
WITH placed AS (
    -- One row per statement, beside the state before; place 1 is the latest.
    SELECT *,
           lag(state) OVER (PARTITION BY cluster, kind, name, reach ORDER BY event_time, state, scores) AS before,
           row_number() OVER (PARTITION BY cluster, kind, name, reach ORDER BY event_time DESC, state DESC, scores DESC) AS place
    FROM coverage_signals
), changed AS (
    -- One row per series and horizon.
    SELECT cluster, kind, name, reach, count(*) FILTER (WHERE state <> before) AS changes
    FROM placed
    GROUP BY cluster, kind, name, reach
)
SELECT p.cluster, p.kind, p.name, p.reach, p.state, p.since_time, p.event_time AS said_time, c.changes,
       p.scores, p.inside80_ppm, p.below95_ppm, p.model
FROM placed p
JOIN changed c ON c.cluster = p.cluster AND c.kind = p.kind AND c.name = p.name AND c.reach = p.reach
WHERE p.place = 1
