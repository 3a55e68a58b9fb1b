--! name    = "memory_growth"
--! doc     = "How fast the memory of each device grows under the job that holds it, and when it would be full: least squares through the most used device memory of each whole minute, over the last 60 minutes of the hold (gpu_holds x gpu_1m). bytes_per_hour is the slope, r2_ppm how much of the variance the line explains. A time to out of memory is given only where 10 minutes are known, r2 is at least 0.8, the later half alone grows at least half as fast, and memory would be full within 24 hours. Limits: it is memory taken from the driver, so a pool (PyTorch's caching allocator, JAX, vLLM) that keeps what it once took hides growth inside it and looks flat; one step in the middle of the hour has r2 of 0.75 and gives no time, as the next step cannot be told; the driver keeps some of the capacity, so memory is full a little earlier."
--! question = "Whose device memory grows, and when will it be full?"
--! example  = "SELECT job_id, node, gpu_index, used_bytes / 1048576 AS used_mib, capacity_bytes / 1048576 AS of_mib, bytes_per_hour / 1048576 AS mib_per_hour, time_to_oom_ms / 60000 AS minutes_to_oom FROM memory_growth WHERE to_time IS NULL AND time_to_oom_ms IS NOT NULL ORDER BY time_to_oom_ms LIMIT 20"
--! sources = ["gpu_holds", "gpu_1m", "attempts"]
--! [columns]
--! cluster              = "Cluster."
--! job_id               = "Job."
--! node                 = "Node of the device."
--! gpu_uuid             = "Device, by its UUID; of a MIG slice the GPU it is cut from."
--! mig_uuid             = "MIG slice; NULL for a whole device."
--! gpu_index            = "Number of the device in its node."
--! from_time            = "When the hold began; of several holds of the job on the device the latest one."
--! to_time              = "When it ended; NULL while it lasts."
--! as_of                = "End of the last minute that is known."
--! minutes              = "Minutes it rests on, of the last 60: wholly held, memory known."
--! used_bytes           = "Most memory taken in the last one of them, bytes."
--! capacity_bytes       = "Memory there is, bytes."
--! bytes_per_hour       = "Growth: slope of the line, bytes per hour, to a KiB of each reading; negative if it shrinks; NULL with less than 2 minutes."
--! later_bytes_per_hour = "The same through the later half of the time alone."
--! r2_ppm               = "Coefficient of determination, millionths; NULL if memory did not change at all."
--! time_to_oom_ms       = "From as_of until memory is full if it goes on like that: (capacity_bytes - used_bytes) / bytes_per_hour, ms; NULL where reason says why."
--! reason               = "Why time_to_oom_ms is NULL: no_samples, no_memory_used (samples do not tell it), shared_device (others use the device too, or it is not known whose it is: the growth is not the job's), few_minutes (less than 10), not_growing, poor_fit (r2 under 0.8), stopped (the later half grows less than half as fast), no_capacity, far (more than 24 hours), released (the hold has ended)."
WITH holds AS (
    SELECT *,
           count(*) FILTER (WHERE step_id IS NULL) OVER (PARTITION BY cluster, job_id, node, gpu_uuid, mig_uuid, gpu_index) AS of_job
    FROM gpu_holds
    WHERE is_repeated = 0 AND from_time IS NOT NULL
), ends AS (
    SELECT cluster, job_id, CASE WHEN count(*) = count(to_time) THEN max(to_time) END AS end_time, max(as_of) AS as_of
    FROM attempts
    WHERE from_time IS NOT NULL
    GROUP BY cluster, job_id
), seen AS (
    SELECT cluster, plus_ms(max(window_start), 60000) AS seen_time FROM gpu_1m GROUP BY cluster
), spans AS (
    -- A step of a job shares its devices. A hold whose end nobody told ends with the job, or goes
    -- on up to what was sampled.
    SELECT h.cluster, h.job_id, h.hold_id, h.node, h.gpu_uuid, h.mig_uuid, h.gpu_index,
           coalesce(h.mig_uuid, h.gpu_uuid, h.node || '/' || CAST(h.gpu_index AS TEXT)) AS device,
           CASE WHEN h.quality = 'EXACT' AND (h.mig_uuid IS NOT NULL OR coalesce(h.share_milli, 1000) >= 1000)
                THEN 1 ELSE 0 END AS is_whole,
           h.from_time, coalesce(h.to_time, e.end_time) AS to_time,
           coalesce(h.to_time, e.end_time, greatest(s.seen_time, e.as_of)) AS known_to
    FROM holds h
    LEFT JOIN ends e ON e.cluster = h.cluster AND e.job_id = h.job_id
    LEFT JOIN seen s ON s.cluster = h.cluster
    WHERE h.step_id IS NULL OR h.of_job = 0
), ordered AS (
    SELECT *, row_number() OVER (PARTITION BY cluster, job_id, device ORDER BY from_time DESC, known_to DESC, hold_id) AS place FROM spans
), minutes AS (
    SELECT *, unnest(window_starts(from_time, known_to, 60000, plus_ms(known_to, -3600000), known_to)) AS window_start
    FROM ordered
    WHERE place = 1
), samples AS (
    -- Under both names that a hold may know the device by: its UUID, or node and number.
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, gpu_index, framebuffer_used_max_bytes AS used_bytes,
           framebuffer_total_max_bytes AS capacity_bytes,
           unnest(make_array(coalesce(mig_uuid, gpu_uuid),
                             CASE WHEN mig_uuid IS NULL THEN node || '/' || CAST(gpu_index AS TEXT) END)) AS device
    FROM gpu_1m
), met AS (
    SELECT m.cluster, m.job_id, m.device, m.is_whole, m.from_time, m.to_time, m.window_start, s.used_bytes, s.capacity_bytes,
           coalesce(s.node, m.node) AS node, coalesce(s.gpu_uuid, m.gpu_uuid) AS gpu_uuid, coalesce(s.mig_uuid, m.mig_uuid) AS mig_uuid,
           coalesce(s.gpu_index, m.gpu_index) AS gpu_index, s.window_start IS NOT NULL AS is_sampled,
           m.window_start >= m.from_time AND plus_ms(m.window_start, 60000) <= m.known_to AND s.used_bytes IS NOT NULL AS is_counted,
           ms_between(m.known_to, m.window_start) / 60000 AS x,
           coalesce(s.mig_uuid, s.gpu_uuid, m.device) AS real_device
    FROM minutes m
    LEFT JOIN samples s ON s.window_start = m.window_start AND s.cluster = m.cluster AND s.device = m.device
), shared AS (
    SELECT *, CASE WHEN is_whole = 0 OR min(job_id) OVER of_minute <> max(job_id) OVER of_minute THEN 1 ELSE 0 END AS is_shared
    FROM met
    WINDOW of_minute AS (PARTITION BY cluster, real_device, window_start)
), ranged AS (
    SELECT *, min(CASE WHEN is_counted THEN used_bytes END) OVER of_hold AS least_bytes,
           min(CASE WHEN is_counted THEN x END) OVER of_hold + max(CASE WHEN is_counted THEN x END) OVER of_hold AS twice_middle
    FROM shared
    WINDOW of_hold AS (PARTITION BY cluster, job_id, device)
), points AS (
    SELECT *, (used_bytes - least_bytes) / 1024 AS y, is_counted AND x * 2 >= twice_middle AS is_later FROM ranged
), summed AS (
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
), fitted AS (
    -- KiB a minute x 61,440 = bytes an hour. Sums are whole numbers, so the order of rows does not
    -- matter.
    SELECT *, n * sxy - sx * sy AS covariance, nullif(n * sxx - sx * sx, 0) AS x_variance,
           nullif(CAST(n AS DOUBLE) * CAST(syy AS DOUBLE) - CAST(sy AS DOUBLE) * CAST(sy AS DOUBLE), 0) AS y_variance,
           (later_n * later_sxy - later_sx * later_sy) * 61440 / nullif(later_n * later_sxx - later_sx * later_sx, 0)
               AS later_bytes_per_hour
    FROM summed
), judged AS (
    SELECT *, covariance * 61440 / x_variance AS bytes_per_hour,
           CAST(round(CAST(covariance AS DOUBLE) * CAST(covariance AS DOUBLE) * 1000000 / (CAST(x_variance AS DOUBLE) * y_variance))
                AS BIGINT) AS r2_ppm
    FROM fitted
), reasoned AS (
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
    FROM judged
)
SELECT cluster, job_id, node, gpu_uuid, mig_uuid, gpu_index, from_time, to_time, as_of, n AS minutes, used_bytes, capacity_bytes,
       bytes_per_hour, later_bytes_per_hour, r2_ppm,
       CASE WHEN reason IS NULL THEN greatest(capacity_bytes - used_bytes, 0) * 3600000 / bytes_per_hour END AS time_to_oom_ms,
       reason
FROM reasoned
