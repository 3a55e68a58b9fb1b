--! name    = "memory_growth"
--! doc     = "Growth rate of the memory of each device under the job that holds it, and the time until it is full: least squares through the highest memory use of each whole minute, over the last 60 minutes of the hold (growth_minutes). bytes_per_hour is the slope; r2_ppm is the share of variance that the line explains. A time is given only if 10 minutes are known, r2 is at least 0.8, the later half alone grows at least half as fast, and memory would be full within 24 hours. Limits: this is memory allocated from the driver, so a pool that keeps its memory (PyTorch's caching allocator, JAX, vLLM) hides growth inside it and looks flat. A single jump in the middle of the hour has r2 = 0.75 and yields no time, because the next jump cannot be predicted. The driver reserves some of the capacity, so memory is full a little earlier."
--! question = "Which jobs' device memory grows, and when will it be full?"
--! example  = "SELECT job_id, node, gpu_index, used_bytes / 1048576 AS used_mib, capacity_bytes / 1048576 AS of_mib, bytes_per_hour / 1048576 AS mib_per_hour, time_to_oom_ms / 60000 AS minutes_to_oom FROM memory_growth WHERE to_time IS NULL AND time_to_oom_ms IS NOT NULL ORDER BY time_to_oom_ms LIMIT 20"
--! sources = ["growth_minutes"]
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
WITH ranged AS (
    -- One row per hold and minute, with least memory use and twice the middle of the time.
    SELECT *, min(CASE WHEN is_counted = 1 THEN used_bytes END) OVER of_hold AS least_bytes,
           min(CASE WHEN is_counted = 1 THEN x END) OVER of_hold + max(CASE WHEN is_counted = 1 THEN x END) OVER of_hold AS twice_middle
    FROM growth_minutes
    WINDOW of_hold AS (PARTITION BY cluster, job_id, device, from_time, to_time)
), points AS (
    -- The same rows as points (x, y), y in KiB; is_later for the later half.
    SELECT *, (used_bytes - least_bytes) / 1024 AS y, is_counted = 1 AND x * 2 >= twice_middle AS is_later FROM ranged
), sums AS (
    -- One row per job and device: the sums of least squares.
    SELECT cluster, job_id, device, max(node) AS node, max(gpu_uuid) AS gpu_uuid, max(mig_uuid) AS mig_uuid, max(gpu_index) AS gpu_index,
           from_time, to_time, max(is_shared) AS is_shared,
           count(*) FILTER (WHERE is_sampled = 1) AS minutes_sampled, count(used_bytes) AS minutes_told,
           plus_ms(max(window_start) FILTER (WHERE is_counted = 1), 60000) AS as_of,
           latest(used_bytes, window_start) FILTER (WHERE is_counted = 1)  AS used_bytes,
           latest(capacity_bytes, window_start)                        AS capacity_bytes,
           count(*) FILTER (WHERE is_counted = 1) AS n, sum(x) FILTER (WHERE is_counted = 1) AS sx, sum(y) FILTER (WHERE is_counted = 1) AS sy,
           sum(x * x) FILTER (WHERE is_counted = 1) AS sxx, sum(x * y) FILTER (WHERE is_counted = 1) AS sxy,
           sum(y * y) FILTER (WHERE is_counted = 1) AS syy, count(*) FILTER (WHERE is_later) AS later_n,
           sum(x) FILTER (WHERE is_later) AS later_sx, sum(y) FILTER (WHERE is_later) AS later_sy,
           sum(x * x) FILTER (WHERE is_later) AS later_sxx, sum(x * y) FILTER (WHERE is_later) AS later_sxy
    FROM points
    GROUP BY cluster, job_id, device, from_time, to_time
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
