--! name    = "right_size"
--! doc     = "The smallest MIG slice that would have been enough for a job, by job, GPU model and size of what it held. Memory: 99.9th percentile of the highest memory use of each minute, plus 15 %. That is no less than the percentile of the samples; with fewer than 1000 minutes it is the maximum. Multiprocessors: 95th percentile of the mean SM activity of each minute, plus 20 %, as busy multiprocessors. Both by nearest rank, for the device with the highest need, over whole minutes in which the job alone held it. A candidate, not a guarantee: bandwidth and L2 of a slice are smaller too, and peaks shorter than a minute are averaged out."
--! question = "Which jobs hold a whole GPU where a slice would be enough?"
--! example  = "SELECT job_id, gpu_model, held, fits, needed_memory_bytes / 1048576 AS needs_mib, needed_sms_milli / 1000.0 AS needs_sms, saved_gpu_milli / 1000.0 AS saved_gpus FROM right_size WHERE saved_gpu_milli > 0 ORDER BY saved_gpu_milli DESC LIMIT 20"
--! sources = ["gpu_spans", "gpu_1m", "mig_profiles"]
--! [columns]
--! cluster               = "Cluster."
--! job_id                = "Job."
--! gpu_model             = "Model of the devices as the driver names it; NULL if they were not sampled."
--! held                  = "What the job held of each device: whole, or the profile of its slices; NULL if not known."
--! held_devices          = "All GPUs and slices that the job held."
--! devices               = "Devices of this row that were sampled."
--! minutes               = "Whole minutes x devices that the job alone held and that were sampled."
--! shared_minutes        = "Minutes x devices that another job held too; left out, because use cannot be attributed."
--! memory_minutes        = "Part of minutes in which memory use is known."
--! memory_p999_bytes     = "99.9th percentile over minutes of the greatest used memory in each, of the device that used most, bytes."
--! needed_memory_bytes   = "That and 15 %, rounded up."
--! sm_minutes            = "Part of minutes in which SM activity is known."
--! sm_p95_ppm            = "95th percentile over minutes of their mean SM activity, for the busiest device, millionths of what was held."
--! needed_sms_milli      = "Multiprocessors that this keeps busy, plus 20 %, thousandths, rounded up."
--! fits                  = "Smallest profile that satisfies both needs. If no smaller one does: whole, or the profile it held. NULL if reason is set."
--! fits_compute_slices   = "Its compute slices; NULL for whole."
--! of_compute_slices     = "Compute slices of the whole GPU: 7, of an A30 4."
--! held_gpu_milli        = "What it held of each GPU, thousandths. For a slice: the larger of its fractions of compute and memory slices, which no other job can use."
--! fits_gpu_milli        = "The same for the profile that fits."
--! saved_gpu_milli       = "What this would leave to other jobs on each device, thousandths of a GPU: held - fits. Times minutes it is GPU time."
--! reason                = "Why fits is NULL: no_samples (no whole minute of its holds was sampled), shared (only minutes that it shared), unknown_model (not in mig_profiles), unknown_slice (held a slice of no known profile), no_memory or no_sm_activity (never known), several_devices (held several at once; slices cannot reach each other by NVLink or PCIe peer to peer)."
WITH jobs AS (
    -- One row per job.
    SELECT cluster, job_id, count(DISTINCT concat(device, ' ', coalesce(mig_uuid, ''))) AS held_devices, max(is_beside) AS is_beside
    FROM gpu_spans
    GROUP BY cluster, job_id
), minutes AS (
    -- One row per minute and GPU or slice.
    SELECT window_start, cluster, gpu_uuid, coalesce(mig_uuid, '') AS slice, gpu_model,
           max(framebuffer_used_max_bytes) AS used_bytes, max(framebuffer_total_max_bytes) AS total_bytes, max(mig_slices_max_count) AS slices,
           part_of(1000000, 0, sum(sm_active_us), sum(sm_active_known_us)) AS sm_ppm
    FROM gpu_1m
    GROUP BY window_start, cluster, gpu_uuid, mig_uuid, gpu_model
), spans AS (
    -- One row per hold of a known GPU or slice.
    SELECT cluster, job_id, gpu_uuid, coalesce(mig_uuid, '') AS slice, from_time, to_time FROM gpu_spans WHERE gpu_uuid IS NOT NULL
), held_at AS (
    -- One row per such hold and minute that it touches. Minutes, so that for one job the samples of
    -- its time alone are read.
    SELECT *, plus_ms(window_start, 60000) AS window_end
    FROM (SELECT *, unnest(window_starts(from_time, to_time, 60000, from_time, to_time)) AS window_start FROM spans)
    WHERE from_time < plus_ms(window_start, 60000) AND to_time > window_start
), shared AS (
    -- One row per minute, device and job beside which another job held it.
    SELECT DISTINCT h.window_start, h.cluster, h.gpu_uuid, h.slice, h.job_id
    FROM held_at h
    JOIN spans o ON o.cluster = h.cluster AND o.gpu_uuid = h.gpu_uuid AND o.slice = h.slice AND o.job_id <> h.job_id
                AND o.from_time < h.window_end AND o.to_time > h.window_start
), held_minutes AS (
    -- One row per minute, device and job that held it; kind says whether the job was alone for the
    -- whole minute.
    SELECT m.*, h.job_id,
           CASE WHEN s.job_id IS NOT NULL THEN 'shared'
                WHEN h.from_time <= h.window_start AND h.to_time >= h.window_end THEN 'alone'
                ELSE 'edge' END AS kind
    FROM held_at h
    JOIN minutes m ON m.window_start = h.window_start AND m.cluster = h.cluster AND m.gpu_uuid = h.gpu_uuid AND m.slice = h.slice
    LEFT JOIN shared s ON s.window_start = h.window_start AND s.cluster = h.cluster AND s.gpu_uuid = h.gpu_uuid AND s.slice = h.slice
                       AND s.job_id = h.job_id
), ranked AS (
    -- The same rows, ranked by memory and by activity.
    SELECT *,
           row_number() OVER (PARTITION BY cluster, job_id, gpu_uuid, slice, gpu_model, kind
                              ORDER BY used_bytes NULLS LAST, window_start) AS memory_place,
           row_number() OVER (PARTITION BY cluster, job_id, gpu_uuid, slice, gpu_model, kind
                              ORDER BY sm_ppm NULLS LAST, window_start)     AS sm_place,
           count(used_bytes) OVER of_device AS memory_minutes, count(sm_ppm) OVER of_device AS sm_minutes
    FROM held_minutes
    WINDOW of_device AS (PARTITION BY cluster, job_id, gpu_uuid, slice, gpu_model, kind)
), device_needs AS (
    -- One row per job and device, with its percentiles.
    SELECT cluster, job_id, gpu_uuid, slice, gpu_model, max(slices) AS slices, max(total_bytes) AS total_bytes,
           count(*) FILTER (WHERE kind = 'alone')             AS minutes,
           count(*) FILTER (WHERE kind = 'shared')            AS shared_minutes,
           count(used_bytes) FILTER (WHERE kind = 'alone')    AS memory_minutes,
           count(sm_ppm) FILTER (WHERE kind = 'alone')        AS sm_minutes,
           max(used_bytes) FILTER (WHERE kind = 'alone' AND memory_place = (memory_minutes * 999 + 999) / 1000) AS memory_p999_bytes,
           max(sm_ppm) FILTER (WHERE kind = 'alone' AND sm_place = (sm_minutes * 95 + 99) / 100)                AS sm_p95_ppm
    FROM ranked
    GROUP BY cluster, job_id, gpu_uuid, slice, gpu_model
), size_needs AS (
    -- One row per job, model and size of what it held.
    SELECT cluster, job_id, gpu_model, CASE slice WHEN '' THEN 0 ELSE 1 END AS is_slice, slices, max(total_bytes) AS total_bytes,
           count(*) AS devices, sum(minutes) AS minutes, sum(shared_minutes) AS shared_minutes,
           sum(memory_minutes) AS memory_minutes, sum(sm_minutes) AS sm_minutes,
           max(memory_p999_bytes) AS memory_p999_bytes, max(sm_p95_ppm) AS sm_p95_ppm
    FROM device_needs
    GROUP BY cluster, job_id, gpu_model, 4, slices
), profiled AS (
    -- One row per size and profile of the model; held_place 1 is the profile that it held, the one
    -- nearest in memory.
    SELECT s.*, p.profile, p.compute_slices, p.memory_bytes, p.multiprocessors, p.gpu_compute_slices, p.gpu_multiprocessors,
           greatest((1000 * p.compute_slices + p.gpu_compute_slices - 1) / p.gpu_compute_slices,
                    (1000 * p.memory_slices + p.gpu_memory_slices - 1) / p.gpu_memory_slices) AS gpu_milli,
           CASE WHEN s.is_slice = 1 AND p.compute_slices = s.slices
                THEN row_number() OVER (PARTITION BY s.cluster, s.job_id, s.gpu_model, s.is_slice, s.slices, p.compute_slices
                                        ORDER BY abs(p.memory_bytes - s.total_bytes), p.memory_bytes) END AS held_place
    FROM size_needs s
    LEFT JOIN mig_profiles p ON s.gpu_model LIKE p.model
), held AS (
    -- The same rows, with what was held.
    SELECT *,
           CASE is_slice WHEN 0 THEN 'whole' ELSE max(CASE held_place WHEN 1 THEN profile END) OVER of_size END AS held,
           CASE is_slice WHEN 0 THEN 1000 ELSE max(CASE held_place WHEN 1 THEN gpu_milli END) OVER of_size END  AS held_gpu_milli,
           CASE is_slice WHEN 0 THEN gpu_multiprocessors
                ELSE max(CASE held_place WHEN 1 THEN multiprocessors END) OVER of_size END                      AS held_sms,
           CASE is_slice WHEN 1 THEN slices END                                                                 AS held_compute_slices
    FROM profiled
    WINDOW of_size AS (PARTITION BY cluster, job_id, gpu_model, is_slice, slices)
), needed AS (
    -- The same rows, with what was needed.
    SELECT *, (memory_p999_bytes * 115 + 99) / 100               AS needed_memory_bytes,
           (sm_p95_ppm * held_sms * 12 + 9999) / 10000           AS needed_sms_milli
    FROM held
), fitting AS (
    -- The same rows; is_fit = 1 if the profile is smaller and has what is needed.
    SELECT *,
           CASE WHEN gpu_milli < held_gpu_milli AND memory_bytes >= needed_memory_bytes AND multiprocessors * 1000 >= needed_sms_milli
                THEN 1 ELSE 0 END AS is_fit
    FROM needed
), chosen AS (
    -- The same rows; place 1 is the smallest that fits.
    SELECT *, row_number() OVER (PARTITION BY cluster, job_id, gpu_model, is_slice, slices
                                 ORDER BY is_fit DESC, gpu_milli, compute_slices, profile) AS place
    FROM fitting
), explained AS (
    -- One row per job, with the reason if no profile is given.
    SELECT j.cluster, j.job_id, j.held_devices, j.is_beside, c.gpu_model, c.held, c.devices, c.minutes, c.shared_minutes, c.memory_minutes,
           c.memory_p999_bytes, c.needed_memory_bytes, c.sm_minutes, c.sm_p95_ppm, c.needed_sms_milli, c.gpu_compute_slices,
           c.held_gpu_milli, c.is_fit, c.gpu_milli, c.profile, c.compute_slices, c.held_compute_slices,
           CASE WHEN coalesce(c.minutes, 0) = 0 AND c.shared_minutes > 0 THEN 'shared'
                WHEN coalesce(c.minutes, 0) = 0                          THEN 'no_samples'
                WHEN c.profile IS NULL                                   THEN 'unknown_model'
                WHEN c.held IS NULL                                      THEN 'unknown_slice'
                WHEN c.memory_p999_bytes IS NULL                         THEN 'no_memory'
                WHEN c.sm_p95_ppm IS NULL                                THEN 'no_sm_activity'
                WHEN j.is_beside = 1                                     THEN 'several_devices' END AS reason
    FROM jobs j
    LEFT JOIN chosen c ON c.cluster = j.cluster AND c.job_id = j.job_id AND c.place = 1
)
SELECT cluster, job_id, gpu_model, held, held_devices, coalesce(devices, 0) AS devices, coalesce(minutes, 0) AS minutes,
       coalesce(shared_minutes, 0) AS shared_minutes, coalesce(memory_minutes, 0) AS memory_minutes, memory_p999_bytes, needed_memory_bytes,
       coalesce(sm_minutes, 0) AS sm_minutes, sm_p95_ppm, needed_sms_milli,
       CASE WHEN reason IS NULL THEN CASE is_fit WHEN 1 THEN profile ELSE held END END                            AS fits,
       CASE WHEN reason IS NULL THEN CASE is_fit WHEN 1 THEN compute_slices ELSE held_compute_slices END END      AS fits_compute_slices,
       gpu_compute_slices AS of_compute_slices, held_gpu_milli,
       CASE WHEN reason IS NULL THEN CASE is_fit WHEN 1 THEN gpu_milli ELSE held_gpu_milli END END                AS fits_gpu_milli,
       CASE WHEN reason IS NULL THEN CASE is_fit WHEN 1 THEN held_gpu_milli - gpu_milli ELSE 0 END END            AS saved_gpu_milli,
       reason
FROM explained
