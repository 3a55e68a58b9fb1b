--! name    = "mig_profiles"
--! doc     = "MIG profiles by GPU model and the resources of a slice of each: schemas/mig_profiles.csv. Drivers differ a little; the lowest values are listed. A model that is missing here has no known profiles."
--! question = "Which MIG profiles does a GPU model have, and what are their resources?"
--! example  = "SELECT model, profile, compute_slices, multiprocessors, memory_bytes / 1073741824 AS memory_gib FROM mig_profiles ORDER BY model, memory_bytes"
--! sources = []
--! catalog = { file = "schemas/mig_profiles.csv", key = ["model", "profile"], whole_numbers = ["compute_slices", "memory_slices", "multiprocessors", "memory_bytes", "gpu_compute_slices", "gpu_memory_slices", "gpu_multiprocessors"] }
--! [columns]
--! model               = "Model in NVML's words; % stands for any text."
--! profile             = "Name of the profile."
--! compute_slices      = "Compute slices of the profile."
--! memory_slices       = "Memory slices of the profile."
--! multiprocessors     = "Multiprocessors of the profile. Not proportional to compute_slices on all models."
--! memory_bytes        = "Device memory of the profile, bytes."
--! gpu_compute_slices  = "Compute slices of the whole GPU."
--! gpu_memory_slices   = "Memory slices of the whole GPU."
--! gpu_multiprocessors = "Multiprocessors of the whole GPU without MIG."
--! since               = "Date of the version of this table that introduced the row."
--! source              = "Source of the figures."
SELECT model, profile, compute_slices, memory_slices, multiprocessors, memory_bytes,
       gpu_compute_slices, gpu_memory_slices, gpu_multiprocessors, since, source
FROM catalog
