--! name    = "device_peaks"
--! doc     = "Peak performance of the sampled GPU models, by precision. Of the matching rows of gpu_peaks, a user's row wins over a shipped one, then the longest name wins. A model that is missing here has no known peak."
--! question = "Which peak is taken for each GPU model that is here, and from which source?"
--! example  = "SELECT gpu_model, precision, peak_gflop_per_second / 1000 AS tflop_per_second, boost_clock_mhz, peak_source FROM device_peaks ORDER BY gpu_model, precision"
--! sources = ["gpu_1h", "gpu_peaks"]
--! [columns]
--! gpu_model               = "Model as the driver names it."
--! precision               = "Precision of the multiplications, as in steps."
--! peak_gflop_per_second   = "Peak rate, billions of operations per second; NULL if not known."
--! memory_bytes            = "Device memory by its data sheet."
--! memory_bytes_per_second = "Peak bandwidth of device memory, bytes per second."
--! boost_clock_mhz         = "Clock at which the peak is stated, MHz."
--! peak_source             = "Source of the peak."
--! origin                  = "File that holds the row."
WITH models AS (
    -- One row per sampled GPU model.
    SELECT DISTINCT gpu_model FROM gpu_1h
), fitting AS (
    -- One row per model, precision and matching row of gpu_peaks; place 1 is the best match.
    SELECT m.gpu_model, p.precision, p.peak_gflop_per_second, p.memory_bytes, p.memory_bytes_per_second, p.boost_clock_mhz,
           p.peak_source, p.origin,
           row_number() OVER (PARTITION BY m.gpu_model, p.precision
                              ORDER BY p.is_own DESC, character_length(p.model) DESC, p.model) AS place
    FROM models m
    JOIN gpu_peaks p ON m.gpu_model LIKE p.model
)
SELECT gpu_model, precision, peak_gflop_per_second, memory_bytes, memory_bytes_per_second, boost_clock_mhz, peak_source, origin
FROM fitting
WHERE place = 1
