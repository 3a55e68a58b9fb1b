--! name    = "lasting_holds"
--! once    = true
--! doc     = "Holds of devices without a reported end, with the times at which they may have ended. What it reads does not grow with history: the holds themselves, the attempts of their jobs, and samples since these jobs were last observed."
--! question = "Which holds of a device last, and up to when is that known?"
--! example  = "SELECT job_id, hold_id, from_time, known_to FROM lasting_holds WHERE job_end_time IS NULL ORDER BY from_time LIMIT 20"
--! sources = ["gpu_holds", "attempts", "gpu_1h", "gpu_1m"]
--! [columns]
--! cluster      = "Cluster."
--! job_id       = "Job."
--! hold_id      = "Name of the hold."
--! from_time    = "Start of the hold."
--! job_end_time = "End of the job's last attempt; NULL while an attempt holds GPUs."
--! known_to     = "job_end_time; else the end of the last minute in which any device of the cluster was sampled, or the time up to which the job was observed, whichever is later."
WITH holds AS (
    -- One row per hold without a reported end.
    SELECT cluster, job_id, hold_id, from_time FROM gpu_holds WHERE is_repeated = 0 AND from_time IS NOT NULL AND to_time IS NULL
), jobs AS (
    -- One row per job with such a hold.
    SELECT DISTINCT cluster, job_id FROM holds
), job_ends AS (
    -- One row per such job that ever held GPUs.
    SELECT a.cluster, a.job_id, CASE WHEN count(*) = count(a.to_time) THEN max(a.to_time) END AS job_end_time, max(a.as_of) AS job_as_of
    FROM attempts a
    JOIN jobs j ON j.cluster = a.cluster AND j.job_id = a.job_id
    WHERE a.from_time IS NOT NULL
    GROUP BY a.cluster, a.job_id
), lasting AS (
    -- The holds, with the end of their job.
    SELECT h.cluster, h.job_id, h.hold_id, h.from_time, e.job_end_time, e.job_as_of
    FROM holds h
    LEFT JOIN job_ends e ON e.cluster = h.cluster AND e.job_id = h.job_id
), since AS (
    -- One row per cluster: samples before that time change nothing.
    SELECT cluster, min(coalesce(job_as_of, from_time)) AS since FROM lasting WHERE job_end_time IS NULL GROUP BY cluster
), hours AS (
    -- One row per cluster: the hour of its last sample.
    SELECT g.cluster, max(g.window_start) AS hour
    FROM gpu_1h g
    JOIN since s ON s.cluster = g.cluster
    WHERE g.window_start >= (SELECT plus_ms(min(since), -3600000) FROM since)
    GROUP BY g.cluster
), sampled AS (
    -- One row per cluster: the end of the minute of its last sample.
    SELECT m.cluster, plus_ms(max(m.window_start), 60000) AS sampled_to
    FROM gpu_1m m
    JOIN hours h ON h.cluster = m.cluster
    WHERE m.window_start >= (SELECT min(hour) FROM hours)
    GROUP BY m.cluster
)
SELECT l.cluster, l.job_id, l.hold_id, l.from_time, l.job_end_time, coalesce(l.job_end_time, greatest(s.sampled_to, l.job_as_of)) AS known_to
FROM lasting l
LEFT JOIN sampled s ON s.cluster = l.cluster
