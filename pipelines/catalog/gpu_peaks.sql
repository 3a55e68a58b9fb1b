--! name    = "gpu_peaks"
--! doc     = "Peak performance of GPU models, dense, by precision: schemas/gpu_peaks.csv, preceded by the file of --peaks. A model or precision that is missing here has no known peak; there is no default."
--! question = "What is the peak performance of a GPU model, and what is the source?"
--! example  = "SELECT model, peak_gflop_per_second / 1000 AS tflop_per_second, memory_bytes_per_second / 1000000000 AS gb_per_second, peak_source FROM gpu_peaks WHERE precision = 'bf16' ORDER BY peak_gflop_per_second DESC"
--! sources = []
--! catalog = { file = "schemas/gpu_peaks.csv", key = ["model", "precision"], whole_numbers = ["peak_gflop_per_second", "memory_bytes", "memory_bytes_per_second", "boost_clock_mhz"] }
--! [columns]
--! model                   = "Model in NVML's words; % stands for any text. A user's rows come before the shipped ones, then the longest matching name wins."
--! precision               = "Precision of the multiplications, as in steps; fp64_tensor is FP64 on tensor cores."
--! peak_gflop_per_second   = "Peak rate without sparsity, billions of operations per second; integer operations for int8 and int4."
--! memory_bytes            = "Device memory by its data sheet, a GB taken as 2^30 bytes. The actual size is framebuffer_total_bytes of gpu_samples."
--! memory_bytes_per_second = "Peak bandwidth of device memory, bytes per second."
--! boost_clock_mhz         = "Clock of the multiprocessors at which the peak is stated, MHz; NULL if no source states it."
--! since                   = "Date of the version of this table that introduced the row."
--! peak_source             = "Source of the peak; if sources differ, the one that was chosen."
--! memory_source           = "Source of memory size and bandwidth."
--! clock_source            = "Source of the clock, as SMs x tensor cores each x FMA per clock x 2 x clock."
--! origin                  = "File that holds the row."
--! is_own                  = "1 for a row of the file that --peaks names, else 0."
SELECT model, precision, peak_gflop_per_second, memory_bytes, memory_bytes_per_second,
       boost_clock_mhz, since, peak_source, memory_source, clock_source, origin, is_own
FROM catalog
