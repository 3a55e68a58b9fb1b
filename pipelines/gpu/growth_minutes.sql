--! name    = "growth_minutes"
--! doc     = "Memory of each device by minute of the last hour of each hold; memory_growth fits a line through it. Holds without a reported end are computed apart from the others, from what matters for them alone, so that asking for these costs the same whatever the length of history."
--! question = "How much memory did a job's device take in the last hour?"
--! example  = "SELECT window_start, node, gpu_index, used_bytes / 1048576 AS used_mib FROM growth_minutes WHERE to_time IS NULL AND is_counted = 1 ORDER BY node, gpu_index, window_start LIMIT 60"
--! sources = ["gpu_holds", "lasting_holds", "lasting_jobs", "device_holds", "gpu_1m"]
--! [columns]
--! cluster        = "Cluster."
--! job_id         = "Job."
--! device         = "Name of the device, as in device_holds."
--! from_time      = "Start of the hold; of several holds of the device by the job, the latest."
--! to_time        = "End of the hold; NULL while it lasts."
--! window_start   = "Start of the UTC minute, one of the last 60 of the hold."
--! x              = "Minutes from it to the end of the hold, or to what is known of it."
--! node           = "Node of the device, as in the samples, else as in the hold."
--! gpu_uuid       = "UUID of the GPU."
--! mig_uuid       = "UUID of the MIG slice; NULL for a whole GPU."
--! gpu_index      = "Number of the device in its node."
--! is_sampled     = "1 if the device was sampled in that minute, else 0."
--! is_counted     = "1 if the whole minute was held and its memory use is known, else 0."
--! is_shared      = "1 if another job used the device in that minute, or the hold may not cover all of it, else 0."
--! used_bytes     = "Highest memory use in the minute, bytes."
--! capacity_bytes = "Memory there is, bytes."
WITH all_holds AS (
    -- One row per hold; place 1 is the latest hold of the device by the job. A hold without a
    -- reported end ends with its job, or lasts up to the last sample or observation.
    SELECT *, row_number() OVER (PARTITION BY cluster, job_id, device ORDER BY from_time DESC, known_to DESC NULLS LAST, hold_id) AS place
    FROM (SELECT cluster, job_id, hold_id, node, device, gpu_uuid, mig_uuid, gpu_index, is_whole, from_time,
                 coalesce(to_time, job_end_time) AS to_time, coalesce(to_time, job_end_time, greatest(sampled_to, job_as_of)) AS known_to
          FROM device_holds)
), ended_minutes AS (
    -- One row per such hold and minute of its last hour.
    SELECT *, unnest(window_starts(from_time, known_to, 60000, plus_ms(known_to, -3600000), known_to)) AS window_start
    FROM all_holds
    WHERE place = 1
), ended_samples AS (
    -- Two rows per minute and device, under the two names by which a hold may know it.
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, gpu_index, framebuffer_used_max_bytes AS used_bytes,
           framebuffer_total_max_bytes AS capacity_bytes,
           unnest(make_array(coalesce(mig_uuid, gpu_uuid),
                             CASE WHEN mig_uuid IS NULL THEN node || '/' || CAST(gpu_index AS TEXT) END)) AS device
    FROM gpu_1m
), ended_sampled AS (
    -- One row per hold and minute, with the sample; x counts minutes back from the end.
    SELECT m.cluster, m.job_id, m.device, m.is_whole, m.from_time, m.to_time, m.window_start, s.used_bytes, s.capacity_bytes,
           coalesce(s.node, m.node) AS node, coalesce(s.gpu_uuid, m.gpu_uuid) AS gpu_uuid, coalesce(s.mig_uuid, m.mig_uuid) AS mig_uuid,
           coalesce(s.gpu_index, m.gpu_index) AS gpu_index, s.window_start IS NOT NULL AS is_sampled,
           m.window_start >= m.from_time AND plus_ms(m.window_start, 60000) <= m.known_to AND s.used_bytes IS NOT NULL AS is_counted,
           ms_between(m.known_to, m.window_start) / 60000 AS x,
           coalesce(s.mig_uuid, s.gpu_uuid, m.device) AS real_device
    FROM ended_minutes m
    LEFT JOIN ended_samples s ON s.window_start = m.window_start AND s.cluster = m.cluster AND s.device = m.device
), near_rows AS (
    -- One row per hold of the jobs that matter for those that last, with the number of holds that
    -- the job itself has of the device, as in device_holds.
    SELECT g.*, count(*) FILTER (WHERE step_id IS NULL)
                    OVER (PARTITION BY g.cluster, g.job_id, g.node, g.gpu_uuid, g.mig_uuid, g.gpu_index) AS job_holds
    FROM gpu_holds g
    JOIN lasting_jobs j ON j.cluster = g.cluster AND j.job_id = g.job_id
    WHERE g.is_repeated = 0 AND g.from_time IS NOT NULL
), near_spans AS (
    -- The same rows, as device_holds has them.
    SELECT h.cluster, h.job_id, h.hold_id, h.node, coalesce(h.mig_uuid, h.gpu_uuid, h.node || '/' || CAST(h.gpu_index AS TEXT)) AS device,
           h.gpu_uuid, h.mig_uuid, h.gpu_index,
           CASE WHEN h.quality = 'EXACT' AND (h.mig_uuid IS NOT NULL OR coalesce(h.share_milli, 1000) >= 1000) THEN 1 ELSE 0 END AS is_whole,
           h.from_time, coalesce(h.to_time, l.job_end_time) AS to_time, coalesce(h.to_time, l.known_to) AS known_to
    FROM near_rows h
    LEFT JOIN lasting_holds l ON l.cluster = h.cluster AND l.job_id = h.job_id AND l.hold_id = h.hold_id
    WHERE h.step_id IS NULL OR h.job_holds = 0
), near_holds AS (
    -- As all_holds.
    SELECT *, row_number() OVER (PARTITION BY cluster, job_id, device ORDER BY from_time DESC, known_to DESC NULLS LAST, hold_id) AS place
    FROM near_spans
), near_minutes AS (
    -- As ended_minutes.
    SELECT *, unnest(window_starts(from_time, known_to, 60000, plus_ms(known_to, -3600000), known_to)) AS window_start
    FROM near_holds
    WHERE place = 1
), lasting_minutes AS (
    -- Of these, the minutes since the last hours of holds that last began.
    SELECT * FROM near_minutes
    WHERE window_start >= (SELECT min(plus_ms(known_to, -3660000)) FROM lasting_holds WHERE job_end_time IS NULL)
), lasting_samples AS (
    -- As ended_samples, of that time.
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, gpu_index, framebuffer_used_max_bytes AS used_bytes,
           framebuffer_total_max_bytes AS capacity_bytes,
           unnest(make_array(coalesce(mig_uuid, gpu_uuid),
                             CASE WHEN mig_uuid IS NULL THEN node || '/' || CAST(gpu_index AS TEXT) END)) AS device
    FROM gpu_1m
    WHERE window_start >= (SELECT min(plus_ms(known_to, -3660000)) FROM lasting_holds WHERE job_end_time IS NULL)
), lasting_sampled AS (
    -- As ended_sampled.
    SELECT m.cluster, m.job_id, m.device, m.is_whole, m.from_time, m.to_time, m.window_start, s.used_bytes, s.capacity_bytes,
           coalesce(s.node, m.node) AS node, coalesce(s.gpu_uuid, m.gpu_uuid) AS gpu_uuid, coalesce(s.mig_uuid, m.mig_uuid) AS mig_uuid,
           coalesce(s.gpu_index, m.gpu_index) AS gpu_index, s.window_start IS NOT NULL AS is_sampled,
           m.window_start >= m.from_time AND plus_ms(m.window_start, 60000) <= m.known_to AND s.used_bytes IS NOT NULL AS is_counted,
           ms_between(m.known_to, m.window_start) / 60000 AS x,
           coalesce(s.mig_uuid, s.gpu_uuid, m.device) AS real_device
    FROM lasting_minutes m
    LEFT JOIN lasting_samples s ON s.window_start = m.window_start AND s.cluster = m.cluster AND s.device = m.device
)
-- Never NULL, so that a query for what lasts does not compute what has ended. A filter that names
-- is_shared stays up here, above the minutes; further down the planner would find no rows too, but
-- read the samples for them.
SELECT cluster, job_id, device, from_time, coalesce(CASE WHEN is_shared >= 0 THEN to_time END, arrow_cast(0, 'Timestamp(Microsecond, Some("UTC"))')) AS to_time, window_start, x, node, gpu_uuid, mig_uuid, gpu_index,
       CASE WHEN is_sampled THEN 1 ELSE 0 END AS is_sampled, CASE WHEN is_counted THEN 1 ELSE 0 END AS is_counted, is_shared, used_bytes, capacity_bytes
FROM (SELECT *, CASE WHEN is_whole = 0 OR min(job_id) OVER of_minute <> max(job_id) OVER of_minute THEN 1 ELSE 0 END AS is_shared
      FROM ended_sampled
      WINDOW of_minute AS (PARTITION BY cluster, real_device, window_start))
WHERE to_time IS NOT NULL
UNION ALL
SELECT cluster, job_id, device, from_time, to_time AS to_time, window_start, x, node, gpu_uuid, mig_uuid, gpu_index,
       CASE WHEN is_sampled THEN 1 ELSE 0 END AS is_sampled, CASE WHEN is_counted THEN 1 ELSE 0 END AS is_counted, is_shared, used_bytes, capacity_bytes
FROM (SELECT *, CASE WHEN is_whole = 0 OR min(job_id) OVER of_minute <> max(job_id) OVER of_minute THEN 1 ELSE 0 END AS is_shared
      FROM lasting_sampled
      WINDOW of_minute AS (PARTITION BY cluster, real_device, window_start))
WHERE to_time IS NULL
