--! name    = "memory_growth_before"
--! doc     = "Growth rate of the memory of each device under the job that holds it, and the time until it is full: least squares through the highest memory use of each whole minute, over the last 60 minutes of the hold (device_holds x gpu_1m). bytes_per_hour is the slope; r2_ppm is the share of variance that the line explains. A time is given only if 10 minutes are known, r2 is at least 0.8, the later half alone grows at least half as fast, and memory would be full within 24 hours. Limits: this is memory allocated from the driver, so a pool that keeps its memory (PyTorch's caching allocator, JAX, vLLM) hides growth inside it and looks flat. A single jump in the middle of the hour has r2 = 0.75 and yields no time, because the next jump cannot be predicted. The driver reserves some of the capacity, so memory is full a little earlier."
--! question = "Which jobs' device memory grows, and when will it be full?"
--! example  = "SELECT job_id, node, gpu_index, used_bytes / 1048576 AS used_mib, capacity_bytes / 1048576 AS of_mib, bytes_per_hour / 1048576 AS mib_per_hour, time_to_oom_ms / 60000 AS minutes_to_oom FROM memory_growth WHERE to_time IS NULL AND time_to_oom_ms IS NOT NULL ORDER BY time_to_oom_ms LIMIT 20"
--! sources = ["device_holds", "gpu_1m"]
--! [columns]
--! cluster              = "Cluster."
--! job_id               = "Job."
--! node                 = "Node of the device."
--! gpu_uuid             = "Device, by its UUID; of a MIG slice the GPU it is cut from."
--! mig_uuid             = "MIG slice; NULL for a whole device."
--! gpu_index            = "Number of the device in its node."
--! from_time            = "Start of the hold; of several holds of the device by the job, the latest."
--! to_time              = "End of the hold; NULL while it lasts."
--! as_of                = "End of the last known minute."
--! minutes              = "Minutes of the last 60 that count: wholly held, memory known."
--! used_bytes           = "Most memory taken in the last one of them, bytes."
--! capacity_bytes       = "Memory there is, bytes."
--! bytes_per_hour       = "Growth: slope of the line, bytes per hour, with readings rounded to KiB; negative if memory shrinks; NULL with less than 2 minutes."
--! later_bytes_per_hour = "Slope through the later half of the time alone."
--! r2_ppm               = "Coefficient of determination, millionths; NULL if memory did not change at all."
--! time_to_oom_ms       = "Time from as_of until memory is full at this rate: (capacity_bytes - used_bytes) / bytes_per_hour, ms; NULL if reason is set."
--! reason               = "Why time_to_oom_ms is NULL: no_samples, no_memory_used (not in the samples), shared_device (other jobs use the device, or its owner is not known, so the growth cannot be attributed), few_minutes (less than 10), not_growing, poor_fit (r2 under 0.8), stopped (the later half grows less than half as fast), no_capacity, far (more than 24 hours), released (the hold has ended)."
WITH spans AS (
    -- One row per hold. A hold without a reported end ends with its job, or lasts up to the last
    -- sample or observation.
    SELECT cluster, job_id, hold_id, node, gpu_uuid, mig_uuid, gpu_index, device, is_whole,
           from_time, coalesce(to_time, job_end_time) AS to_time,
           coalesce(to_time, job_end_time, greatest(sampled_to, job_as_of)) AS known_to
    FROM device_holds
), ordered AS (
    -- The same rows; place 1 is the latest hold of the device by the job.
    SELECT *, row_number() OVER (PARTITION BY cluster, job_id, device ORDER BY from_time DESC, known_to DESC, hold_id) AS place FROM spans
), minutes AS (
    -- One row per such hold and minute of its last hour.
    SELECT *, unnest(window_starts(from_time, known_to, 60000, plus_ms(known_to, -3600000), known_to)) AS window_start
    FROM ordered
    WHERE place = 1
), samples AS (
    -- Two rows per minute and device, under the two names by which a hold may know it.
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, gpu_index, framebuffer_used_max_bytes AS used_bytes,
           framebuffer_total_max_bytes AS capacity_bytes,
           unnest(make_array(coalesce(mig_uuid, gpu_uuid),
                             CASE WHEN mig_uuid IS NULL THEN node || '/' || CAST(gpu_index AS TEXT) END)) AS device
    FROM gpu_1m
), sampled_minutes AS (
    -- One row per hold and minute, with the sample; x counts minutes back from the end.
    SELECT m.cluster, m.job_id, m.device, m.is_whole, m.from_time, m.to_time, m.window_start, s.used_bytes, s.capacity_bytes,
           coalesce(s.node, m.node) AS node, coalesce(s.gpu_uuid, m.gpu_uuid) AS gpu_uuid, coalesce(s.mig_uuid, m.mig_uuid) AS mig_uuid,
           coalesce(s.gpu_index, m.gpu_index) AS gpu_index, s.window_start IS NOT NULL AS is_sampled,
           m.window_start >= m.from_time AND plus_ms(m.window_start, 60000) <= m.known_to AND s.used_bytes IS NOT NULL AS is_counted,
           ms_between(m.known_to, m.window_start) / 60000 AS x,
           coalesce(s.mig_uuid, s.gpu_uuid, m.device) AS real_device
    FROM minutes m
    LEFT JOIN samples s ON s.window_start = m.window_start AND s.cluster = m.cluster AND s.device = m.device
), shared AS (
    -- The same rows, marked if another job used the device.
    SELECT *, CASE WHEN is_whole = 0 OR min(job_id) OVER of_minute <> max(job_id) OVER of_minute THEN 1 ELSE 0 END AS is_shared
    FROM sampled_minutes
    WINDOW of_minute AS (PARTITION BY cluster, real_device, window_start)
), ranged AS (
    -- The same rows, with least memory use and twice the middle of the time.
    SELECT *, min(CASE WHEN is_counted THEN used_bytes END) OVER of_hold AS least_bytes,
           min(CASE WHEN is_counted THEN x END) OVER of_hold + max(CASE WHEN is_counted THEN x END) OVER of_hold AS twice_middle
    FROM shared
    WINDOW of_hold AS (PARTITION BY cluster, job_id, device)
), points AS (
    -- The same rows as points (x, y), y in KiB; is_later for the later half.
    SELECT *, (used_bytes - least_bytes) / 1024 AS y, is_counted AND x * 2 >= twice_middle AS is_later FROM ranged
), sums AS (
    -- One row per job and device: the sums of least squares.
    SELECT cluster, job_id, device, max(node) AS node, max(gpu_uuid) AS gpu_uuid, max(mig_uuid) AS mig_uuid, max(gpu_index) AS gpu_index,
           max(from_time) AS from_time, max(to_time) AS to_time, max(is_shared) AS is_shared,
           count(*) FILTER (WHERE is_sampled) AS minutes_sampled, count(used_bytes) AS minutes_told,
           plus_ms(max(window_start) FILTER (WHERE is_counted), 60000) AS as_of,
           latest(used_bytes, window_start) FILTER (WHERE is_counted)  AS used_bytes,
           latest(capacity_bytes, window_start)                        AS capacity_bytes,
           count(*) FILTER (WHERE is_counted) AS n, sum(x) FILTER (WHERE is_counted) AS sx, sum(y) FILTER (WHERE is_counted) AS sy,
           sum(x * x) FILTER (WHERE is_counted) AS sxx, sum(x * y) FILTER (WHERE is_counted) AS sxy,
           sum(y * y) FILTER (WHERE is_counted) AS syy, count(*) FILTER (WHERE is_later) AS later_n,
           sum(x) FILTER (WHERE is_later) AS later_sx, sum(y) FILTER (WHERE is_later) AS later_sy,
           sum(x * x) FILTER (WHERE is_later) AS later_sxx, sum(x * y) FILTER (WHERE is_later) AS later_sxy
    FROM points
    GROUP BY cluster, job_id, device
), fits AS (
    -- The same rows, with covariance and variances.
    -- KiB per minute x 61,440 = bytes per hour. Sums are integers, so the order of rows does not
    -- matter.
    SELECT *, n * sxy - sx * sy AS covariance, nullif(n * sxx - sx * sx, 0) AS x_variance,
           nullif(CAST(n AS DOUBLE) * CAST(syy AS DOUBLE) - CAST(sy AS DOUBLE) * CAST(sy AS DOUBLE), 0) AS y_variance,
           (later_n * later_sxy - later_sx * later_sy) * 61440 / nullif(later_n * later_sxx - later_sx * later_sx, 0)
               AS later_bytes_per_hour
    FROM sums
), slopes AS (
    -- The same rows, with slope and r2.
    SELECT *, covariance * 61440 / x_variance AS bytes_per_hour,
           CAST(round(CAST(covariance AS DOUBLE) * CAST(covariance AS DOUBLE) * 1000000 / (CAST(x_variance AS DOUBLE) * y_variance))
                AS BIGINT) AS r2_ppm
    FROM fits
), explained AS (
    -- The same rows, with the reason if no time is given.
    SELECT *, CASE WHEN minutes_sampled = 0 THEN 'no_samples'
                   WHEN minutes_told = 0 THEN 'no_memory_used'
                   WHEN is_shared = 1 THEN 'shared_device'
                   WHEN n < 10 THEN 'few_minutes'
                   WHEN bytes_per_hour <= 0 THEN 'not_growing'
                   WHEN r2_ppm < 800000 THEN 'poor_fit'
                   WHEN later_bytes_per_hour * 2 < bytes_per_hour THEN 'stopped'
                   WHEN capacity_bytes IS NULL THEN 'no_capacity'
                   WHEN (capacity_bytes - used_bytes) / 24 > bytes_per_hour THEN 'far'
                   WHEN to_time IS NOT NULL THEN 'released' END AS reason
    FROM slopes
)
SELECT cluster, job_id, node, gpu_uuid, mig_uuid, gpu_index, from_time, to_time, as_of, n AS minutes, used_bytes, capacity_bytes,
       bytes_per_hour, later_bytes_per_hour, r2_ppm,
       CASE WHEN reason IS NULL THEN greatest(capacity_bytes - used_bytes, 0) * 3600000 / bytes_per_hour END AS time_to_oom_ms,
       reason
FROM explained
