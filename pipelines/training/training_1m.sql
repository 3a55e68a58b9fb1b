--! name    = "training_1m"
--! version = 2
--! doc     = "Reported training steps per UTC minute: sums over ranks and steps, and the time for which each is known. A step counts in the minute in which it began."
--! question = "How fast does a training job go, in steps and tokens?"
--! example  = "SELECT window_start, job_id, sum(steps_rank_0) AS steps, max(step_max) AS reached_step, sum(tokens) / 60 AS tokens_per_second FROM training_1m WHERE window_start >= now() - INTERVAL '1 hour' GROUP BY window_start, job_id ORDER BY job_id, window_start LIMIT 100"
--! sources = ["steps"]
--! window  = "1m"
--! extent  = { time = "event_time" }
--! key     = ["window_start", "cluster", "job_id", "flops_convention", "precision"]
--! [columns]
--! window_start           = "Start of the UTC minute."
--! cluster                = "Cluster."
--! job_id                 = "Job."
--! flops_convention       = "Convention for counting operations. Never add up counts of different conventions."
--! precision              = "Precision of the multiplications, e.g. bf16."
--! reports                = "Reports: one per rank and step."
--! step_max               = "Highest step number that began: the progress of the job."
--! first_step_unix_ms     = "Start of the first of these steps, ms since 1970."
--! last_step_unix_ms      = "Start of the last of these steps, ms since 1970."
--! steps_rank_0           = "Steps of rank 0: the progress in this minute."
--! world_max_ranks        = "Largest world size in a report."
--! duration_us            = "Time of the steps, summed over ranks, µs."
--! compute_us             = "Computing, before collectives wait for other ranks, µs. Parts may overlap. NULL if never reported, as the following columns."
--! compute_known_us       = "Time of the steps that report compute_us, µs."
--! communication_us       = "In collectives, including waiting, µs."
--! communication_known_us = "Time of the steps that report communication_us, µs."
--! data_wait_us           = "Waiting for input, µs."
--! data_wait_known_us     = "Time of the steps that report data_wait_us, µs."
--! checkpoint_us          = "Saving or loading checkpoints, µs."
--! checkpoint_known_us    = "Time of the steps that report checkpoint_us, µs."
--! tokens                 = "Tokens."
--! tokens_known_us        = "Time of the steps that report tokens, µs."
--! model_gflops           = "Floating-point operations of the model, billions, each report rounded down; the rest is in model_flops_rest."
--! model_flops_rest       = "Floating-point operations beyond those of model_gflops: together they are exact."
--! model_flops_known_us   = "Time of the steps that report operations, µs: the GPU time for MFU."
--! dropped_max_count      = "Most reports that the client of one rank had dropped since it started."
SELECT window_start, cluster, job_id, flops_convention, precision,
       count(*)                                 AS reports,
       max(step)                                AS step_max,
       min(unix_ms(event_time))                 AS first_step_unix_ms,
       max(unix_ms(event_time))                 AS last_step_unix_ms,
       count(*) FILTER (WHERE rank = 0)         AS steps_rank_0,
       max(world_size)                          AS world_max_ranks,
       sum(duration_us)                         AS duration_us,
       sum(compute_us)                          AS compute_us,
       sum(us_known(compute_us, duration_us))       AS compute_known_us,
       sum(communication_us)                    AS communication_us,
       sum(us_known(communication_us, duration_us)) AS communication_known_us,
       sum(data_wait_us)                        AS data_wait_us,
       sum(us_known(data_wait_us, duration_us))     AS data_wait_known_us,
       sum(checkpoint_us)                       AS checkpoint_us,
       sum(us_known(checkpoint_us, duration_us))    AS checkpoint_known_us,
       sum(tokens)                              AS tokens,
       sum(us_known(tokens, duration_us))           AS tokens_known_us,
       sum(model_flops / 1000000000)            AS model_gflops,
       sum(model_flops % 1000000000)            AS model_flops_rest,
       sum(us_known(model_flops, duration_us))      AS model_flops_known_us,
       max(dropped)                             AS dropped_max_count
FROM steps
GROUP BY window_start, cluster, job_id, flops_convention, precision
