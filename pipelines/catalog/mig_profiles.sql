--! name    = "mig_profiles"
--! doc     = "MIG profiles by GPU model, what a slice of each has: schemas/mig_profiles.csv as a table. Drivers differ a little; the least is here. A model that is not here has no known profiles."
--! question = "Into which MIG slices can a GPU model be cut, and what has each?"
--! example  = "SELECT model, profile, compute_slices, multiprocessors, memory_bytes / 1073741824 AS memory_gib FROM mig_profiles ORDER BY model, memory_bytes"
--! sources = []
--! catalog = { file = "schemas/mig_profiles.csv", key = ["model", "profile"], whole_numbers = ["compute_slices", "memory_slices", "multiprocessors", "memory_bytes", "gpu_compute_slices", "gpu_memory_slices", "gpu_multiprocessors"] }
--! [columns]
--! model               = "Model as NVML names it; % stands for any text."
--! profile             = "Name of the profile."
--! compute_slices      = "Compute slices that it takes."
--! memory_slices       = "Memory slices that it takes."
--! multiprocessors     = "Multiprocessors that it has. They are not in proportion to compute_slices on all models."
--! memory_bytes        = "Device memory that it has, bytes."
--! gpu_compute_slices  = "Compute slices of the whole GPU."
--! gpu_memory_slices   = "Memory slices of the whole GPU."
--! gpu_multiprocessors = "Multiprocessors of the whole GPU without MIG."
--! since               = "Version of this table from which on the row is as it is, a date."
--! source              = "Where the figures are from."
SELECT model, profile, compute_slices, memory_slices, multiprocessors, memory_bytes,
       gpu_compute_slices, gpu_memory_slices, gpu_multiprocessors, since, source
FROM catalog
