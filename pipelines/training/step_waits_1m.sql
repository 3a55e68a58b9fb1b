--! name    = "step_waits_1m"
--! doc     = "Time that the steps of a job spent waiting for input, for the network and for the slowest rank, per UTC minute. The second step of bottleneck_1m."
--! question = "How much of its step time does a job wait for input, for the network, or for its slowest rank?"
--! example  = "SELECT window_start, 100 * data_wait_us / nullif(data_wait_known_us, 0) AS input_percent, 100 * communication_us / nullif(communication_known_us, 0) AS network_percent, 100 * imbalance_us / nullif(imbalance_known_us, 0) AS slowest_rank_percent FROM step_waits_1m WHERE job_id = '4711' ORDER BY window_start DESC LIMIT 20"
--! sources = ["steps"]
--! [columns]
--! window_start           = "Start of the UTC minute."
--! cluster                = "Cluster."
--! job_id                 = "Job."
--! ranks                  = "Ranks that reported a step in the minute."
--! step_us                = "Time of their steps in the minute, µs; a step is spread over the minutes that it lasted."
--! data_wait_us           = "Time waiting for input, µs."
--! data_wait_known_us     = "Time of steps that report it, µs."
--! communication_us       = "Time in collectives, µs: as reported, at most what computing, input and checkpoints leave of the step, less imbalance_us."
--! communication_known_us = "Time of steps that report computing and communication, µs."
--! imbalance_us           = "Time in collectives waiting for the slowest rank of the step, µs: for each step and rank, how much longer the slowest rank took before its collectives, at most the rank's own time in collectives."
--! imbalance_known_us     = "Time of steps of which every rank of the job reports computing and communication, µs."
WITH reports AS (
    -- One row per report of a step, with the time before its collectives (own_us).
    -- A rank that goes back repeats steps. Its first run of a step is compared with the first runs
    -- of the other ranks, and so on.
    SELECT cluster, job_id, attempt_id, rank, world_size, step, event_time, duration_us, communication_us, compute_us,
           CASE WHEN data_wait_us IS NOT NULL THEN least(data_wait_us, duration_us) END AS data_us,
           CASE WHEN compute_us IS NOT NULL
                THEN least(compute_us + coalesce(data_wait_us, 0) + coalesce(checkpoint_us, 0), duration_us) END AS own_us,
           row_number() OVER (PARTITION BY cluster, job_id, attempt_id, step, rank ORDER BY event_time, seq) AS turn
    FROM steps
    WHERE duration_us > 0
), stalls AS (
    -- The same rows, with the time in collectives that computing did not hide.
    SELECT *, CASE WHEN own_us IS NOT NULL AND communication_us IS NOT NULL
                   THEN least(communication_us, duration_us - own_us) END AS stall_us
    FROM reports
), compared AS (
    -- The same rows, beside the slowest rank of the step.
    SELECT *, max(own_us) OVER of_step AS slowest_us, count(stall_us) OVER of_step AS ranks_told, max(world_size) OVER of_step AS ranks_all
    FROM stalls
    WINDOW of_step AS (PARTITION BY cluster, job_id, attempt_id, step, turn)
), waits AS (
    -- The same rows, with the part of the stall that is spent waiting for the slowest rank.
    SELECT cluster, job_id, rank, event_time, duration_us, data_us, stall_us,
           CASE WHEN ranks_told >= ranks_all THEN least(stall_us, slowest_us - own_us) END AS behind_us
    FROM compared
), step_minutes AS (
    -- One row per report and minute that the step lasted.
    SELECT *, unnest(window_starts(event_time, end_time, 60000, event_time, end_time)) AS window_start
    FROM (SELECT *, CAST(event_time AS BIGINT) AS begin_us,
                 arrow_cast(CAST(event_time AS BIGINT) + duration_us, 'Timestamp(Microsecond, Some("UTC"))') AS end_time
          FROM waits)
), minute_parts AS (
    -- The same rows, with the part of the step that lies in the minute.
    SELECT *, greatest(CAST(window_start AS BIGINT) - begin_us, 0)                   AS cut_from_us,
           least(CAST(window_start AS BIGINT) + 60000000 - begin_us, duration_us) AS cut_to_us
    FROM step_minutes
)
SELECT window_start, cluster, job_id, count(DISTINCT rank) AS ranks,
       sum(cut_to_us - cut_from_us)                                                             AS step_us,
       sum(part_of(data_us, cut_from_us, cut_to_us, duration_us))                               AS data_wait_us,
       sum(us_known(data_us, cut_to_us - cut_from_us))                                          AS data_wait_known_us,
       sum(part_of(stall_us - coalesce(behind_us, 0), cut_from_us, cut_to_us, duration_us))     AS communication_us,
       sum(us_known(stall_us, cut_to_us - cut_from_us))                                         AS communication_known_us,
       sum(part_of(behind_us, cut_from_us, cut_to_us, duration_us))                             AS imbalance_us,
       sum(us_known(behind_us, cut_to_us - cut_from_us))                                        AS imbalance_known_us
FROM minute_parts
GROUP BY window_start, cluster, job_id
