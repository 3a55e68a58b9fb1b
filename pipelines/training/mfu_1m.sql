--! name    = "mfu_1m"
--! doc     = "Model FLOP utilisation per UTC minute: operations that training jobs report, over the peak of the devices that they ran on. MFU = counted_gflops / peak_gflops (PaLM, arXiv 2204.02311, appendix B). Operations follow the job's own convention; for a mixture of experts they are those of the active parameters. Tensor activity and clock give an upper bound of hardware FLOP utilisation; a report above it is impossible. A step is spread over the minutes that it lasted."
--! question = "What share of the hardware's peak do training jobs reach, minute by minute?"
--! example  = "SELECT window_start, job_id, flops_convention, round(100.0 * sum(counted_gflops) / nullif(sum(peak_gflops), 0), 1) AS mfu_percent, max(is_impossible) AS is_impossible FROM mfu_1m WHERE window_start >= now() - INTERVAL '1 hour' GROUP BY window_start, job_id, flops_convention ORDER BY job_id, window_start LIMIT 100"
--! sources = ["steps", "gpu_1m", "gpu_1h", "device_peaks"]
--! [columns]
--! window_start          = "Start of the UTC minute."
--! cluster               = "Cluster."
--! job_id                = "Job."
--! flops_convention      = "Convention for counting operations. Never compare MFU across conventions."
--! precision             = "Precision of the multiplications, e.g. bf16."
--! gpu_model             = "Model of the devices in the driver's words; NULL if not known."
--! ranks                 = "Ranks that were in a step."
--! devices               = "Devices that they ran on; a rank of unknown device counts as one."
--! gpu_us                = "Time of the devices in steps, µs; ranks on one device use it together."
--! model_gflops          = "Operations reported, billions, each report rounded down; the rest is in model_flops_rest."
--! model_flops_rest      = "Operations beyond those of model_gflops: together they are exact."
--! counted_gpu_us        = "Part of gpu_us in steps whose operations and device peak are known, µs."
--! counted_gflops        = "Numerator: operations in this time, billions; NULL if reason is set."
--! peak_gflops           = "Denominator: counted_gpu_us x peak, billions of operations. For any group of rows, sum numerators and denominators, then divide."
--! mfu_ppm               = "counted_gflops / peak_gflops in millionths, rounded down."
--! reason                = "Why counted_gflops is NULL: no_flops (operations not reported), no_precision (precision not reported), no_device (device not reported), no_samples (the device was not sampled in that hour, so its model is not known), mig_slice (a slice has no peak of its own), unknown_model or unknown_precision (not in gpu_peaks); NULL if nothing is missing."
--! peak_source           = "Source of the peak."
--! hfu_bound_gflops      = "Upper bound of the operations of the tensor cores: clocks in which they were active x peak / boost clock, billions; NULL if activity or clocks are not known. Assumes full rate in each active clock, so it is a bound of HFU, not an estimate."
--! hfu_bound_peak_gflops = "Operations at peak in the time for which that is known; hfu_bound_gflops / this is the bound of HFU."
--! hfu_bound_ppm         = "That ratio, millionths; above 1,000,000 if the clock exceeds the one of the stated peak."
--! whole_gflops          = "Part of counted_gflops in steps that began and ended within the minute."
--! limit_gflops          = "Most operations possible in the minute: hfu_bound_gflops, plus the peak for the time in which it is not known and for one sampling interval, which may extend past the minute; NULL without a peak."
--! is_impossible         = "1 if whole_gflops exceeds 1.1 x limit_gflops: operations, precision or peak are wrong. Else 0, NULL without a limit. Steps that extend past the minute are judged in mfu_jobs."
WITH reports AS (
    -- One row per report of a step.
    SELECT cluster, job_id, flops_convention, precision, rank, node, gpu_uuid, gpu_index, model_flops, duration_us, event_time,
           CAST(event_time AS BIGINT) AS begin_us,
           arrow_cast(CAST(event_time AS BIGINT) + duration_us, 'Timestamp(Microsecond, Some("UTC"))') AS end_time
    FROM steps
    WHERE duration_us > 0
), spread AS (
    -- One row per report and minute that the step lasted.
    SELECT *, unnest(window_starts(event_time, end_time, 60000, event_time, end_time)) AS window_start FROM reports
), cut AS (
    -- The same rows, with the part of the step in the minute.
    SELECT *,
           greatest(CAST(window_start AS BIGINT) - begin_us, 0)                       AS cut_from_us,
           least(CAST(window_start AS BIGINT) + 60000000 - begin_us, duration_us)     AS cut_to_us
    FROM spread
), pieces AS (
    -- The same rows, with time and operations of this part.
    SELECT *, cut_to_us - cut_from_us AS piece_us, part_of(model_flops, cut_from_us, cut_to_us, duration_us) AS piece_flops FROM cut
), by_rank AS (
    -- One row per minute, job and rank.
    SELECT window_start, cluster, job_id, flops_convention, precision, rank, node, gpu_uuid, gpu_index,
           sum(piece_us)                            AS gpu_us,
           sum(us_known(model_flops, piece_us))     AS flops_known_us,
           sum(piece_flops / 1000000000)            AS model_gflops,
           sum(piece_flops % 1000000000)            AS model_flops_rest,
           sum(piece_flops / 1000000000) FILTER (WHERE piece_us = duration_us) AS whole_gflops
    FROM pieces
    GROUP BY window_start, cluster, job_id, flops_convention, precision, rank, node, gpu_uuid, gpu_index
), devices AS (
    -- One row per hour and sampled GPU.
    SELECT window_start AS hour_start, cluster, node, gpu_uuid, max(gpu_index) AS gpu_index, max(gpu_model) AS gpu_model
    FROM gpu_1h
    WHERE mig_uuid IS NULL
    GROUP BY window_start, cluster, node, gpu_uuid
), placed AS (
    -- One row per minute and rank, with its GPU.
    SELECT r.*, coalesce(d.gpu_uuid, i.gpu_uuid) AS device, coalesce(d.gpu_model, i.gpu_model) AS gpu_model
    FROM by_rank r
    LEFT JOIN devices d ON d.cluster = r.cluster AND d.gpu_uuid = r.gpu_uuid AND d.hour_start = window_of(r.window_start, 3600000)
    LEFT JOIN devices i ON r.gpu_uuid IS NULL AND i.cluster = r.cluster AND i.node = r.node AND i.gpu_index = r.gpu_index
                       AND i.hour_start = window_of(r.window_start, 3600000)
), by_device AS (
    -- One row per minute, job and GPU.
    SELECT window_start, cluster, job_id, flops_convention, precision, gpu_model, device,
           coalesce(device, gpu_uuid, concat(node, '/', CAST(gpu_index AS TEXT)), concat('rank ', CAST(rank AS TEXT))) AS device_name,
           count(DISTINCT rank)    AS ranks,
           max(gpu_us)             AS gpu_us,
           max(flops_known_us)     AS flops_known_us,
           sum(model_gflops)       AS model_gflops,
           sum(model_flops_rest)   AS model_flops_rest,
           sum(whole_gflops)       AS whole_gflops,
           max(CASE WHEN device IS NOT NULL THEN NULL
                    WHEN gpu_uuid IS NULL AND (node IS NULL OR gpu_index IS NULL) THEN 'no_device'
                    WHEN gpu_uuid LIKE 'MIG-%' THEN 'mig_slice'
                    ELSE 'no_samples' END) AS not_placed
    FROM placed
    GROUP BY window_start, cluster, job_id, flops_convention, precision, gpu_model, device, 8
), activity AS (
    -- One row per minute and GPU: its tensor clocks.
    SELECT window_start, cluster, gpu_uuid,
           sum(tensor_clock_count) AS tensor_clock_count, sum(tensor_clock_known_us) AS tensor_clock_known_us,
           sum(us_sampled) / nullif(sum(samples), 0) AS interval_us
    FROM gpu_1m
    WHERE mig_uuid IS NULL
    GROUP BY window_start, cluster, gpu_uuid
), known_models AS (
    -- One row per model with a known peak.
    SELECT DISTINCT gpu_model FROM device_peaks
), measured AS (
    -- One row per minute, job and GPU, with peak and reason.
    SELECT b.*, p.peak_gflop_per_second, p.peak_source,
           CASE WHEN b.flops_known_us = 0 THEN 'no_flops'
                WHEN b.precision IS NULL THEN 'no_precision'
                WHEN b.not_placed IS NOT NULL THEN b.not_placed
                WHEN m.gpu_model IS NULL THEN 'unknown_model'
                WHEN p.peak_gflop_per_second IS NULL THEN 'unknown_precision' END AS reason,
           CASE WHEN p.boost_clock_mhz IS NOT NULL
                THEN part_of(p.peak_gflop_per_second, 0, a.tensor_clock_count, p.boost_clock_mhz * 1000000) END AS bound_gflops,
           CASE WHEN a.tensor_clock_count IS NOT NULL AND p.boost_clock_mhz IS NOT NULL
                THEN a.tensor_clock_known_us ELSE 0 END AS bound_known_us,
           coalesce(a.interval_us, 0) AS interval_us
    FROM by_device b
    LEFT JOIN device_peaks p ON p.gpu_model = b.gpu_model AND p.precision = b.precision
    LEFT JOIN known_models m ON m.gpu_model = b.gpu_model
    LEFT JOIN activity a ON a.window_start = b.window_start AND a.cluster = b.cluster AND a.gpu_uuid = b.device
), limited AS (
    -- The same rows, with the most operations possible.
    SELECT *,
           coalesce(bound_gflops, 0)
               + millionths(peak_gflop_per_second, greatest(60000000 - bound_known_us, 0) + CASE WHEN bound_known_us > 0 THEN interval_us ELSE 0 END)
               AS limit_gflops
    FROM measured
), summed AS (
    -- One row per minute, job, model and reason.
    SELECT window_start, cluster, job_id, flops_convention, precision, gpu_model, reason, peak_source,
           sum(ranks) AS ranks, count(*) AS devices, sum(gpu_us) AS gpu_us,
           sum(model_gflops) AS model_gflops, sum(model_flops_rest) AS model_flops_rest,
           CASE WHEN reason IS NULL THEN sum(flops_known_us) ELSE 0 END AS counted_gpu_us,
           CASE WHEN reason IS NULL THEN sum(model_gflops) + sum(model_flops_rest) / 1000000000 END AS counted_gflops,
           CASE WHEN reason IS NULL THEN sum(millionths(peak_gflop_per_second, flops_known_us)) END AS peak_gflops,
           sum(bound_gflops) AS hfu_bound_gflops,
           CASE WHEN sum(bound_gflops) IS NOT NULL
                THEN sum(millionths(peak_gflop_per_second, bound_known_us)) END AS hfu_bound_peak_gflops,
           CASE WHEN reason IS NULL THEN coalesce(sum(whole_gflops), 0) END AS whole_gflops,
           CASE WHEN reason IS NULL THEN sum(limit_gflops) END AS limit_gflops
    FROM limited
    GROUP BY window_start, cluster, job_id, flops_convention, precision, gpu_model, reason, peak_source
)
SELECT window_start, cluster, job_id, flops_convention, precision, gpu_model, ranks, devices, gpu_us, model_gflops,
       model_flops_rest, counted_gpu_us, counted_gflops, peak_gflops,
       part_of(1000000, 0, counted_gflops, peak_gflops) AS mfu_ppm,
       reason, peak_source, hfu_bound_gflops, hfu_bound_peak_gflops,
       part_of(1000000, 0, hfu_bound_gflops, hfu_bound_peak_gflops) AS hfu_bound_ppm,
       whole_gflops, limit_gflops,
       CASE WHEN whole_gflops > part_of(limit_gflops, 0, 11, 10) THEN 1 WHEN limit_gflops IS NOT NULL THEN 0 END AS is_impossible
FROM summed
