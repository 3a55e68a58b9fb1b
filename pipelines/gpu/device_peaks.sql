--! name    = "device_peaks"
--! doc     = "Peaks of the GPU models that were sampled, by precision: of the rows of gpu_peaks whose name fits, an own one before a shipped one, then the longest name. A model that is not here has no known peak."
--! question = "Which peak is taken for each GPU model that is here, and from which source?"
--! example  = "SELECT gpu_model, precision, peak_gflop_per_second / 1000 AS tflop_per_second, boost_clock_mhz, peak_source FROM device_peaks ORDER BY gpu_model, precision"
--! sources = ["gpu_1h", "gpu_peaks"]
--! [columns]
--! gpu_model               = "Model as the driver names it."
--! precision               = "Of the multiplications, as in steps."
--! peak_gflop_per_second   = "Operations per second at most, thousands of millions; NULL if the row says that it is not known."
--! memory_bytes            = "Device memory by its data sheet."
--! memory_bytes_per_second = "Bytes per second to and from device memory at most."
--! boost_clock_mhz         = "Clock at which the peak is stated, MHz."
--! peak_source             = "Where the peak is from."
--! origin                  = "File the row stands in."
WITH models AS (
    SELECT DISTINCT gpu_model FROM gpu_1h
), fitting AS (
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
