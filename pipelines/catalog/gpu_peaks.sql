--! name    = "gpu_peaks"
--! doc     = "What a GPU can do at most, dense, by model and precision: schemas/gpu_peaks.csv, and before it the file that --peaks names. What is not here is not known; nothing stands in for it."
--! question = "What can a GPU model do at most, and who says so?"
--! example  = "SELECT model, peak_gflop_per_second / 1000 AS tflop_per_second, memory_bytes_per_second / 1000000000 AS gb_per_second, peak_source FROM gpu_peaks WHERE precision = 'bf16' ORDER BY peak_gflop_per_second DESC"
--! sources = []
--! catalog = { file = "schemas/gpu_peaks.csv", key = ["model", "precision"], whole_numbers = ["peak_gflop_per_second", "memory_bytes", "memory_bytes_per_second", "boost_clock_mhz"] }
--! [columns]
--! model                   = "Model as NVML names it; % stands for any text. Rows of an own file go before the shipped ones, then the longest name that fits."
--! precision               = "Of the multiplications, as in steps; fp64_tensor is FP64 on tensor cores."
--! peak_gflop_per_second   = "Operations per second at most, thousands of millions, without sparsity; for int8 and int4 whole-number operations."
--! memory_bytes            = "Device memory by its data sheet, a GB taken for 2^30 bytes; what a device really has is framebuffer_total_bytes of gpu_samples."
--! memory_bytes_per_second = "Bytes per second to and from device memory at most."
--! boost_clock_mhz         = "Clock of the multiprocessors at which the peak is stated, MHz; NULL if no source says it."
--! since                   = "Version of this table from which on the row is as it is, a date."
--! peak_source             = "Where the peak is from; where sources differ, which one was taken."
--! memory_source           = "Where size and speed of the memory are from."
--! clock_source            = "Where the clock is from, as SMs x tensor cores each x FMA per clock x 2 x clock."
--! origin                  = "File the row stands in."
--! is_own                  = "1 for a row of the file that --peaks names, else 0."
SELECT model, precision, peak_gflop_per_second, memory_bytes, memory_bytes_per_second,
       boost_clock_mhz, since, peak_source, memory_source, clock_source, origin, is_own
FROM catalog
