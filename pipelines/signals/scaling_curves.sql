--! name    = "scaling_curves"
--! doc     = "How much work families of jobs do a second by their size: the curve last fitted to the steps they reported (the form of Pollux, Amdahl's law where fewer than three sizes were seen), with its interval. One row per family, unit and size."
--! question = "How much faster does a kind of job run on more GPUs, and how sure is that?"
--! example  = "SELECT family, unit, gpus, nodes, rate_milli / 1000.0 AS units_a_second, low_milli / 1000.0 AS low, high_milli / 1000.0 AS high, efficiency_ppm / 10000 AS efficiency_percent, seen_steps FROM scaling_curves ORDER BY family, unit, gpus"
--! sources = ["scaling_points"]
--! [columns]
--! cluster     = "Cluster."
--! family      = "Jobs that scale alike: team/user/name/GPU model, - for what is not known; job/ and the id of a job without a name."
--! unit        = "What is counted: TOKENS, or STEPS of one GPU where reports tell no tokens."
--! said_time   = "When the curve was fitted."
--! team        = "Team of the jobs."
--! user_name   = "User of the jobs."
--! job_name    = "Name of the jobs."
--! gpu_model   = "GPU model."
--! job_id      = "The job, where it has no name."
--! form        = "POLLUX or AMDAHL."
--! local_batch = "Units that each GPU works through in a step, of the size that was seen most."
--! gpus        = "GPUs."
--! nodes       = "Nodes they are spread over."
--! rate_milli  = "Expected work, thousandths of a unit a second."
--! low_milli   = "Quantile 10 %, the same way."
--! high_milli  = "Quantile 90 %, the same way."
--! efficiency_ppm = "Work of each of the GPUs beside that of one alone, millionths."
--! seen_steps  = "Steps seen with so many GPUs; 0 where the curve foretells it."
--! model       = "Version of the fit."
WITH latest_said AS (
    SELECT *,
           max(event_time) OVER (PARTITION BY cluster, family, unit) AS said_time
    FROM scaling_points
), beside_one AS (
    SELECT *,
           max(CASE WHEN gpus = 1 THEN rate_milli END) OVER (PARTITION BY cluster, family, unit) AS one_milli
    FROM latest_said
    WHERE event_time = said_time
)
SELECT cluster, family, unit, said_time, team, user_name, job_name, gpu_model, job_id, form, local_batch, gpus, nodes,
       rate_milli, low_milli, high_milli,
       CASE WHEN one_milli > 0 THEN rate_milli * 1000000 / (one_milli * gpus) END AS efficiency_ppm,
       seen_steps, model
FROM beside_one
