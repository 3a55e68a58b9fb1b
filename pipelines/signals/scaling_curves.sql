--! name    = "scaling_curves"
--! doc     = "Throughput of families of jobs by size: the latest curve fitted to their reported steps (the form of Pollux; Amdahl's law if fewer than three sizes were seen), with its interval. One row per family, unit and size."
--! question = "How much faster does a kind of job run on more GPUs, and how certain is that?"
--! example  = "SELECT family, unit, gpus, nodes, rate_milli / 1000.0 AS units_a_second, low_milli / 1000.0 AS low, high_milli / 1000.0 AS high, efficiency_ppm / 10000 AS efficiency_percent, seen_steps FROM scaling_curves ORDER BY family, unit, gpus"
--! sources = ["scaling_points"]
--! [columns]
--! cluster     = "Cluster."
--! family      = "Jobs that scale alike: team/user/name/GPU model, with - for unknown parts; job/ and the id for a job without a name."
--! unit        = "Unit of work: TOKENS, or STEPS of one GPU if tokens are not reported."
--! said_time   = "Time of the fit."
--! team        = "Team of the jobs."
--! user_name   = "User of the jobs."
--! job_name    = "Name of the jobs."
--! gpu_model   = "GPU model."
--! job_id      = "The job, where it has no name."
--! form        = "POLLUX or AMDAHL."
--! local_batch = "Units that each GPU processes per step, of the size seen most."
--! gpus        = "GPUs."
--! nodes       = "Nodes that they are spread over."
--! rate_milli  = "Expected rate, thousandths of a unit per second."
--! low_milli   = "Quantile 10 % of the rate."
--! high_milli  = "Quantile 90 % of the rate."
--! efficiency_ppm = "Rate per GPU relative to one GPU alone, millionths."
--! seen_steps  = "Steps seen at this size; 0 if the curve extrapolates."
--! model       = "Version of the fit."
WITH curve_points AS (
    -- One row per point of any fitted curve.
    SELECT *,
           max(event_time) OVER (PARTITION BY cluster, family, unit) AS said_time
    FROM scaling_points
), latest_points AS (
    -- Only the points of the latest curve, with the rate of one GPU.
    SELECT *,
           max(CASE WHEN gpus = 1 THEN rate_milli END) OVER (PARTITION BY cluster, family, unit) AS one_milli
    FROM curve_points
    WHERE event_time = said_time
)
SELECT cluster, family, unit, said_time, team, user_name, job_name, gpu_model, job_id, form, local_batch, gpus, nodes,
       rate_milli, low_milli, high_milli,
       CASE WHEN one_milli > 0 THEN rate_milli * 1000000 / (one_milli * gpus) END AS efficiency_ppm,
       seen_steps, model
FROM latest_points
