--! name    = "sharing"
--! doc     = "Pairs of jobs that could have shared one GPU, because one is idle while the other is active: both of one user, each alone on whole GPUs of one model, one at a time, running at the same time. Together they need at most 90 % of the memory (99.9th percentiles of the highest use of each minute), and in no hour of the day more than 90 % of the multiprocessors or 70 % of the memory bandwidth (95th percentiles of the minute means). Hours of the day in which a job was not seen count as its busiest. A list of candidates to try, never to act on automatically: sharing isolates neither memory nor faults, and bursts shorter than a minute are not visible."
--! question = "Which jobs could share a GPU, because one is idle while the other is active?"
--! example  = "SELECT first_job_id, second_job_id, user_name, gpu_model, memory_ppm / 10000 AS memory_percent, peak_sm_ppm / 10000 AS sm_percent, complementarity_ppm / 10000 AS take_turns_percent, minutes FROM sharing WHERE is_best = 1 ORDER BY place LIMIT 20"
--! sources = ["gpu_spans", "gpu_1m", "attempts"]
--! [columns]
--! cluster             = "Cluster."
--! first_job_id        = "The first job by name."
--! second_job_id       = "The second job by name."
--! team                = "Team of both."
--! user_name           = "User of both."
--! gpu_model           = "Model of the GPUs that both held."
--! minutes             = "Whole minutes in which the less observed of the two was sampled alone on its GPU."
--! memory_ppm          = "Memory that both would need, millionths of a GPU's, each rounded up."
--! peak_sm_ppm         = "Multiprocessors that both need in their busiest common hour of the day, millionths."
--! peak_dram_ppm       = "The same for memory bandwidth: DRAM activity, whose practical maximum is about 0.8."
--! complementarity_ppm = "By how much the sum of their peaks of multiprocessors exceeds the peak of their sum, millionths: 0 if both peak in the same hour, higher the more they alternate."
--! place               = "Rank in the cluster, from 1: highest complementarity first, then lowest need."
--! is_best             = "1 if neither job is in a better pair, so these pairs do not exclude each other; else 0."
WITH owners AS (
    -- One row per job, with team and user.
    SELECT cluster, job_id, max(team) AS team, max(user_name) AS user_name FROM attempts GROUP BY cluster, job_id
), jobs AS (
    -- One row per job that held one whole GPU at a time.
    SELECT s.cluster, s.job_id, max(o.team) AS team, max(o.user_name) AS user_name, min(s.from_time) AS from_time, max(s.to_time) AS to_time
    FROM gpu_spans s
    JOIN owners o ON o.cluster = s.cluster AND o.job_id = s.job_id
    GROUP BY s.cluster, s.job_id
    -- A job on several devices at once, or on slices, is no candidate.
    HAVING max(s.is_beside) = 0 AND count(s.mig_uuid) = 0
), minutes AS (
    -- One row per minute and GPU.
    SELECT window_start, plus_ms(window_start, 60000) AS window_end, cluster, gpu_uuid, gpu_model,
           max(framebuffer_used_max_bytes) AS used_bytes, max(framebuffer_total_max_bytes) AS total_bytes,
           part_of(1000000, 0, sum(sm_active_us), sum(sm_active_known_us))     AS sm_ppm,
           part_of(1000000, 0, sum(dram_active_us), sum(dram_active_known_us)) AS dram_ppm
    FROM gpu_1m
    WHERE mig_uuid IS NULL
    GROUP BY window_start, cluster, gpu_uuid, gpu_model
), held_minutes AS (
    -- One row per minute, GPU and job that held it; kind says whether the job was alone for the
    -- whole minute.
    SELECT m.*, s.job_id, CAST(date_part('hour', m.window_start) AS BIGINT) AS hour,
           CASE WHEN m.total_bytes > 0 THEN (m.used_bytes * 1000000 + m.total_bytes - 1) / m.total_bytes END AS memory_ppm,
           CASE WHEN min(s.job_id) OVER of_minute < max(s.job_id) OVER of_minute THEN 'shared'
                WHEN s.from_time <= m.window_start AND s.to_time >= m.window_end THEN 'alone'
                ELSE 'edge' END AS kind
    FROM minutes m
    JOIN gpu_spans s ON s.cluster = m.cluster AND s.gpu_uuid = m.gpu_uuid AND s.from_time < m.window_end AND s.to_time > m.window_start
    WINDOW of_minute AS (PARTITION BY m.cluster, m.gpu_uuid, m.window_start)
), ranked AS (
    -- Minutes alone, ranked by memory, activity and bandwidth.
    SELECT *,
           row_number() OVER (PARTITION BY cluster, job_id, gpu_model ORDER BY memory_ppm NULLS LAST, window_start, gpu_uuid)     AS memory_place,
           count(memory_ppm) OVER (PARTITION BY cluster, job_id, gpu_model)                                                       AS memory_minutes,
           row_number() OVER (PARTITION BY cluster, job_id, gpu_model, hour ORDER BY sm_ppm NULLS LAST, window_start, gpu_uuid)   AS sm_place,
           count(sm_ppm) OVER (PARTITION BY cluster, job_id, gpu_model, hour)                                                     AS sm_minutes,
           row_number() OVER (PARTITION BY cluster, job_id, gpu_model, hour ORDER BY dram_ppm NULLS LAST, window_start, gpu_uuid) AS dram_place,
           count(dram_ppm) OVER (PARTITION BY cluster, job_id, gpu_model, hour)                                                   AS dram_minutes
    FROM held_minutes
    WHERE kind = 'alone'
), by_hour AS (
    -- One row per job, model and hour of the day, with its percentiles.
    SELECT cluster, job_id, gpu_model, hour, count(*) AS minutes,
           max(CASE WHEN memory_place = (memory_minutes * 999 + 999) / 1000 THEN memory_ppm END) AS memory_ppm,
           max(CASE WHEN sm_place = (sm_minutes * 95 + 99) / 100 THEN sm_ppm END)                AS sm_ppm,
           max(CASE WHEN dram_place = (dram_minutes * 95 + 99) / 100 THEN dram_ppm END)          AS dram_ppm
    FROM ranked
    GROUP BY cluster, job_id, gpu_model, hour
), by_job AS (
    -- The same rows, with maxima of the job and the next known hour.
    -- A known hour also covers the hours up to the next known one; the first also covers those
    -- before it. So each hour of the day is covered once.
    SELECT cluster, job_id, gpu_model, hour, sm_ppm, dram_ppm,
           sum(minutes) OVER of_job AS minutes, max(memory_ppm) OVER of_job AS memory_ppm,
           max(sm_ppm) OVER of_job AS most_sm_ppm, max(dram_ppm) OVER of_job AS most_dram_ppm,
           CASE WHEN lag(hour) OVER in_order IS NULL THEN 0 ELSE hour END AS first_hour, coalesce(lead(hour) OVER in_order, 24) AS next_hour
    FROM by_hour
    WINDOW of_job AS (PARTITION BY cluster, job_id, gpu_model), in_order AS (PARTITION BY cluster, job_id, gpu_model ORDER BY hour)
), hours AS (
    -- One row per job, model and each of the 24 hours of the day.
    SELECT *, unnest(range(first_hour, next_hour)) AS of_day
    FROM by_job
    WHERE memory_ppm IS NOT NULL AND most_sm_ppm IS NOT NULL AND most_dram_ppm IS NOT NULL
), profiles AS (
    -- The same rows for jobs of known users; hours in which a job was not seen count as its
    -- busiest.
    SELECT j.cluster, j.job_id, j.team, j.user_name, j.from_time, j.to_time, h.gpu_model, h.of_day, h.minutes, h.memory_ppm, h.most_sm_ppm,
           CASE WHEN h.of_day = h.hour THEN coalesce(h.sm_ppm, h.most_sm_ppm) ELSE h.most_sm_ppm END         AS sm_ppm,
           CASE WHEN h.of_day = h.hour THEN coalesce(h.dram_ppm, h.most_dram_ppm) ELSE h.most_dram_ppm END   AS dram_ppm
    FROM hours h
    JOIN jobs j ON j.cluster = h.cluster AND j.job_id = h.job_id
    WHERE j.user_name IS NOT NULL
), pairs AS (
    -- One row per pair of jobs of one user and model that ran at the same time.
    SELECT a.cluster, a.job_id AS first_job_id, b.job_id AS second_job_id, a.gpu_model, max(a.team) AS team, max(a.user_name) AS user_name,
           max(least(a.minutes, b.minutes)) AS minutes, max(a.memory_ppm + b.memory_ppm) AS memory_ppm, max(a.most_sm_ppm + b.most_sm_ppm) AS both_sm_ppm,
           max(a.sm_ppm + b.sm_ppm) AS peak_sm_ppm, max(a.dram_ppm + b.dram_ppm) AS peak_dram_ppm
    FROM profiles a
    JOIN profiles b ON b.cluster = a.cluster AND b.user_name = a.user_name AND b.gpu_model = a.gpu_model AND b.of_day = a.of_day AND b.job_id > a.job_id
                   AND (b.team IS NOT DISTINCT FROM a.team) AND b.from_time < a.to_time AND a.from_time < b.to_time
    WHERE a.memory_ppm + b.memory_ppm <= 900000
    GROUP BY a.cluster, a.job_id, b.job_id, a.gpu_model
), fitting AS (
    -- Only pairs that fit together, ranked.
    SELECT *, both_sm_ppm - peak_sm_ppm AS complementarity_ppm,
           row_number() OVER (PARTITION BY cluster
                              ORDER BY both_sm_ppm - peak_sm_ppm DESC, peak_sm_ppm, first_job_id, second_job_id, gpu_model) AS place
    FROM pairs
    WHERE peak_sm_ppm <= 900000 AND peak_dram_ppm <= 700000
), sides AS (
    -- Two rows per pair: one for each job.
    SELECT *, unnest(make_array(first_job_id, second_job_id)) AS side FROM fitting
), best AS (
    -- The same rows, with the best place of that job.
    SELECT *, min(place) OVER (PARTITION BY cluster, side) AS best_place FROM sides
)
SELECT cluster, first_job_id, second_job_id, team, user_name, gpu_model, minutes, memory_ppm, peak_sm_ppm, peak_dram_ppm,
       complementarity_ppm, CAST(place AS BIGINT) AS place, min(CASE WHEN best_place = place THEN 1 ELSE 0 END) AS is_best
FROM best
GROUP BY cluster, first_job_id, second_job_id, team, user_name, gpu_model, minutes, memory_ppm, peak_sm_ppm, peak_dram_ppm, complementarity_ppm, place
