--! name    = "sharing"
--! doc     = "Pairs of jobs that could have shared one GPU, because one rests while the other works: both of one user, each alone on whole GPUs of one model, one at a time, while the other ran too. Together they would hold at most 90 % of the memory (99.9th percentiles of the minutes' greatest), and in no hour of the day ask for more than 90 % of the multiprocessors or 70 % of the memory's bandwidth (95th percentiles of the minutes' means). Hours of the day in which a job was not seen count as its busiest. A list of candidates to try, never to act on: sharing isolates neither memory nor faults, and bursts shorter than a minute are not seen."
--! question = "Which jobs could share a GPU, because one rests while the other works?"
--! example  = "SELECT first_job_id, second_job_id, user_name, gpu_model, memory_ppm / 10000 AS memory_percent, peak_sm_ppm / 10000 AS sm_percent, complementarity_ppm / 10000 AS take_turns_percent, minutes FROM sharing WHERE is_best = 1 ORDER BY place LIMIT 20"
--! sources = ["gpu_spans", "gpu_1m", "attempts"]
--! [columns]
--! cluster             = "Cluster."
--! first_job_id        = "The one job; the first by name."
--! second_job_id       = "The other."
--! team                = "Team of both."
--! user_name           = "User of both."
--! gpu_model           = "Model of the GPUs that both held."
--! minutes             = "Whole minutes in which the one of them that was seen less was sampled alone on its GPU."
--! memory_ppm          = "Memory that both would hold, millionths of a GPU's, rounded up for each."
--! peak_sm_ppm         = "Multiprocessors that both ask for in the hour of the day in which it is most, millionths."
--! peak_dram_ppm       = "The same of the memory's bandwidth: its activity, of which about 0.8 is the practical most."
--! complementarity_ppm = "How far the sum of their peaks of multiprocessors exceeds the peak of their sum, millionths: 0 if both peak in the same hour, more the more they take turns."
--! place               = "Place in the cluster, from 1: those that take turns best, then those that ask for least."
--! is_best             = "1 if neither job is in a pair of a lower place: these do not exclude each other. 0: one of the two has a better neighbour."
WITH spans AS (
    SELECT cluster, job_id, device, gpu_uuid, coalesce(mig_uuid, '') AS slice, from_time, to_time,
           CASE WHEN max(to_time) OVER (PARTITION BY cluster, job_id ORDER BY from_time, to_time, device, mig_uuid
                                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > from_time THEN 1 ELSE 0 END AS is_beside
    FROM gpu_spans
), owners AS (
    SELECT cluster, job_id, max(team) AS team, max(user_name) AS user_name FROM attempts GROUP BY cluster, job_id
), jobs AS (
    SELECT s.cluster, s.job_id, max(o.team) AS team, max(o.user_name) AS user_name, min(s.from_time) AS from_time, max(s.to_time) AS to_time
    FROM spans s
    JOIN owners o ON o.cluster = s.cluster AND o.job_id = s.job_id
    GROUP BY s.cluster, s.job_id
    -- One that spreads over devices, or holds slices, has no such neighbour.
    HAVING max(s.is_beside) = 0 AND max(s.slice) = ''
), minutes AS (
    SELECT window_start, plus_ms(window_start, 60000) AS window_end, cluster, gpu_uuid, gpu_model,
           max(framebuffer_used_max_bytes) AS used_bytes, max(framebuffer_total_max_bytes) AS total_bytes,
           part_of(1000000, 0, sum(sm_active_us), sum(sm_active_known_us))     AS sm_ppm,
           part_of(1000000, 0, sum(dram_active_us), sum(dram_active_known_us)) AS dram_ppm
    FROM gpu_1m
    WHERE mig_uuid IS NULL
    GROUP BY window_start, cluster, gpu_uuid, gpu_model
), met AS (
    SELECT m.*, s.job_id, CAST(date_part('hour', m.window_start) AS BIGINT) AS hour,
           CASE WHEN m.total_bytes > 0 THEN (m.used_bytes * 1000000 + m.total_bytes - 1) / m.total_bytes END AS memory_ppm,
           CASE WHEN min(s.job_id) OVER of_minute < max(s.job_id) OVER of_minute THEN 'shared'
                WHEN s.from_time <= m.window_start AND s.to_time >= m.window_end THEN 'alone'
                ELSE 'edge' END AS kind
    FROM minutes m
    JOIN spans s ON s.cluster = m.cluster AND s.gpu_uuid = m.gpu_uuid AND s.from_time < m.window_end AND s.to_time > m.window_start
    WINDOW of_minute AS (PARTITION BY m.cluster, m.gpu_uuid, m.window_start)
), ranked AS (
    SELECT *,
           row_number() OVER (PARTITION BY cluster, job_id, gpu_model ORDER BY memory_ppm NULLS LAST, window_start, gpu_uuid)     AS memory_place,
           count(memory_ppm) OVER (PARTITION BY cluster, job_id, gpu_model)                                                       AS memory_minutes,
           row_number() OVER (PARTITION BY cluster, job_id, gpu_model, hour ORDER BY sm_ppm NULLS LAST, window_start, gpu_uuid)   AS sm_place,
           count(sm_ppm) OVER (PARTITION BY cluster, job_id, gpu_model, hour)                                                     AS sm_minutes,
           row_number() OVER (PARTITION BY cluster, job_id, gpu_model, hour ORDER BY dram_ppm NULLS LAST, window_start, gpu_uuid) AS dram_place,
           count(dram_ppm) OVER (PARTITION BY cluster, job_id, gpu_model, hour)                                                   AS dram_minutes
    FROM met
    WHERE kind = 'alone'
), by_hour AS (
    SELECT cluster, job_id, gpu_model, hour,
           max(CASE WHEN sm_place = (sm_minutes * 95 + 99) / 100 THEN sm_ppm END)         AS sm_ppm,
           max(CASE WHEN dram_place = (dram_minutes * 95 + 99) / 100 THEN dram_ppm END)   AS dram_ppm
    FROM ranked
    GROUP BY cluster, job_id, gpu_model, hour
), by_job AS (
    SELECT cluster, job_id, gpu_model, count(*) AS minutes,
           max(CASE WHEN memory_place = (memory_minutes * 999 + 999) / 1000 THEN memory_ppm END) AS memory_ppm
    FROM ranked
    GROUP BY cluster, job_id, gpu_model
), peaks AS (
    SELECT cluster, job_id, gpu_model, max(sm_ppm) AS sm_ppm, max(dram_ppm) AS dram_ppm FROM by_hour GROUP BY cluster, job_id, gpu_model
), neighbours AS (
    SELECT j.*, b.gpu_model, b.minutes, b.memory_ppm, p.sm_ppm, p.dram_ppm
    FROM jobs j
    JOIN by_job b ON b.cluster = j.cluster AND b.job_id = j.job_id
    JOIN peaks p ON p.cluster = b.cluster AND p.job_id = b.job_id AND p.gpu_model = b.gpu_model
    WHERE b.memory_ppm IS NOT NULL AND p.sm_ppm IS NOT NULL AND p.dram_ppm IS NOT NULL AND j.user_name IS NOT NULL
), profiles AS (
    SELECT n.cluster, n.job_id, n.gpu_model, n.hour, coalesce(h.sm_ppm, n.sm_ppm) AS sm_ppm, coalesce(h.dram_ppm, n.dram_ppm) AS dram_ppm
    FROM (SELECT cluster, job_id, gpu_model, sm_ppm, dram_ppm,
                 unnest(make_array(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)) AS hour
          FROM neighbours) n
    LEFT JOIN by_hour h ON h.cluster = n.cluster AND h.job_id = n.job_id AND h.gpu_model = n.gpu_model AND h.hour = n.hour
), pairs AS (
    SELECT a.cluster, a.job_id AS first_job_id, b.job_id AS second_job_id, a.team, a.user_name, a.gpu_model,
           least(a.minutes, b.minutes) AS minutes, a.memory_ppm + b.memory_ppm AS memory_ppm, a.sm_ppm + b.sm_ppm AS both_sm_ppm
    FROM neighbours a
    JOIN neighbours b ON b.cluster = a.cluster AND b.user_name = a.user_name AND b.gpu_model = a.gpu_model AND b.job_id > a.job_id
                     AND (b.team IS NOT DISTINCT FROM a.team) AND b.from_time < a.to_time AND a.from_time < b.to_time
    WHERE a.memory_ppm + b.memory_ppm <= 900000
), together AS (
    SELECT p.cluster, p.first_job_id, p.second_job_id, p.gpu_model, max(a.sm_ppm + b.sm_ppm) AS peak_sm_ppm, max(a.dram_ppm + b.dram_ppm) AS peak_dram_ppm
    FROM pairs p
    JOIN profiles a ON a.cluster = p.cluster AND a.job_id = p.first_job_id AND a.gpu_model = p.gpu_model
    JOIN profiles b ON b.cluster = p.cluster AND b.job_id = p.second_job_id AND b.gpu_model = p.gpu_model AND b.hour = a.hour
    GROUP BY p.cluster, p.first_job_id, p.second_job_id, p.gpu_model
), fitting AS (
    SELECT p.*, t.peak_sm_ppm, t.peak_dram_ppm, p.both_sm_ppm - t.peak_sm_ppm AS complementarity_ppm,
           row_number() OVER (PARTITION BY p.cluster
                              ORDER BY p.both_sm_ppm - t.peak_sm_ppm DESC, t.peak_sm_ppm, p.first_job_id, p.second_job_id, p.gpu_model) AS place
    FROM pairs p
    JOIN together t ON t.cluster = p.cluster AND t.first_job_id = p.first_job_id AND t.second_job_id = p.second_job_id AND t.gpu_model = p.gpu_model
    WHERE t.peak_sm_ppm <= 900000 AND t.peak_dram_ppm <= 700000
), best AS (
    SELECT cluster, job_id, min(place) AS place
    FROM (SELECT cluster, first_job_id AS job_id, place FROM fitting
          UNION ALL
          SELECT cluster, second_job_id, place FROM fitting) sides
    GROUP BY cluster, job_id
)
SELECT f.cluster, f.first_job_id, f.second_job_id, f.team, f.user_name, f.gpu_model, f.minutes, f.memory_ppm, f.peak_sm_ppm, f.peak_dram_ppm,
       f.complementarity_ppm, CAST(f.place AS BIGINT) AS place, CASE WHEN a.place = f.place AND b.place = f.place THEN 1 ELSE 0 END AS is_best
FROM fitting f
JOIN best a ON a.cluster = f.cluster AND a.job_id = f.first_job_id
JOIN best b ON b.cluster = f.cluster AND b.job_id = f.second_job_id
