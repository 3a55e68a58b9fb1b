--! name    = "mfu_jobs"
--! doc     = "Model FLOP utilisation of whole jobs: mfu_1m summed up. Minute boundaries do not matter over a whole job, so an impossible report is detected reliably."
--! question = "Which MFU do jobs reach, and which of them report impossible operations?"
--! example  = "SELECT job_id, flops_convention, precision, gpu_model, mfu_ppm / 10000.0 AS mfu_percent, hfu_bound_ppm / 10000.0 AS hfu_bound_percent, is_impossible, reason FROM mfu_jobs ORDER BY gpu_us DESC LIMIT 20"
--! sources = ["mfu_1m"]
--! [columns]
--! cluster               = "Cluster."
--! job_id                = "Job."
--! flops_convention      = "Convention for counting operations."
--! precision             = "Precision of the multiplications."
--! gpu_model             = "Model of the devices; NULL if it is not known."
--! reason                = "Why counted_gflops is NULL, as in mfu_1m."
--! gpu_us                = "Time of the devices in steps, µs."
--! counted_gpu_us        = "Part of gpu_us for which operations and peak are known, µs."
--! counted_gflops        = "Numerator: operations, billions."
--! peak_gflops           = "Denominator: counted_gpu_us x peak."
--! mfu_ppm               = "Their ratio in millionths, rounded down."
--! hfu_bound_gflops      = "Upper bound of the operations of the tensor cores while activity and clock are known."
--! hfu_bound_peak_gflops = "Peak x that time."
--! hfu_bound_ppm         = "Their ratio in millionths."
--! limit_gflops          = "Most operations possible in the minutes of the job, see mfu_1m."
--! is_impossible         = "1 if counted_gflops is more than 1.1 x limit_gflops; else 0, NULL without a limit."
--! minutes_impossible    = "Minutes of mfu_1m that are impossible by themselves."
WITH summed AS (
    -- One row per job, model and reason.
    SELECT cluster, job_id, flops_convention, precision, gpu_model, reason,
           sum(gpu_us) AS gpu_us, sum(counted_gpu_us) AS counted_gpu_us, sum(counted_gflops) AS counted_gflops,
           sum(peak_gflops) AS peak_gflops, sum(hfu_bound_gflops) AS hfu_bound_gflops,
           sum(hfu_bound_peak_gflops) AS hfu_bound_peak_gflops, sum(limit_gflops) AS limit_gflops,
           coalesce(sum(is_impossible), 0) AS minutes_impossible
    FROM mfu_1m
    GROUP BY cluster, job_id, flops_convention, precision, gpu_model, reason
)
SELECT cluster, job_id, flops_convention, precision, gpu_model, reason, gpu_us, counted_gpu_us, counted_gflops, peak_gflops,
       part_of(1000000, 0, counted_gflops, peak_gflops) AS mfu_ppm,
       hfu_bound_gflops, hfu_bound_peak_gflops,
       part_of(1000000, 0, hfu_bound_gflops, hfu_bound_peak_gflops) AS hfu_bound_ppm,
       limit_gflops,
       CASE WHEN counted_gflops > part_of(limit_gflops, 0, 11, 10) THEN 1 WHEN limit_gflops IS NOT NULL THEN 0 END AS is_impossible,
       minutes_impossible
FROM summed
