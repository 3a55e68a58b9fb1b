--! name    = "device_holds"
--! doc     = "Holds of devices, each counted once: the holds of the job itself, and of its steps only for devices that the job itself does not hold. For a hold without a reported end it has the times at which it may have ended."
--! question = "Which holds of a device count, and where does a hold without a reported end stop?"
--! example  = "SELECT job_id, device, from_time, to_time, job_end_time, sampled_to FROM device_holds WHERE node = 'gpu-01' ORDER BY from_time DESC LIMIT 20"
--! sources = ["gpu_holds", "attempts", "gpu_1h", "gpu_1m"]
--! [columns]
--! cluster      = "Cluster."
--! job_id       = "Job."
--! hold_id      = "Name of the hold."
--! node         = "Node of the device."
--! device       = "Name of the device: UUID of the MIG slice, else UUID of the GPU, else node/index."
--! gpu_uuid     = "UUID of the GPU; NULL if not reported."
--! mig_uuid     = "UUID of the MIG slice; NULL for a whole GPU."
--! gpu_index    = "Index of the GPU in its node."
--! share_milli  = "Share of the device, thousandths, as reported."
--! quality      = "As in gpu_holds."
--! evidence     = "As in gpu_holds."
--! is_whole     = "1 if the hold is known to cover the whole device or MIG slice, else 0."
--! from_time    = "Start of the hold."
--! to_time      = "Reported end; NULL if none was reported."
--! job_end_time = "End of the job's last attempt; NULL while an attempt holds GPUs."
--! job_as_of    = "While an attempt holds GPUs: time up to which the cluster was observed."
--! job_known_to = "End of the job's last attempt, or the time up to which it was observed."
--! sampled_to   = "End of the last minute in which any device of the cluster was sampled."
WITH holds AS (
    -- One row per hold that counts, with the number of holds that the job itself has of the device.
    SELECT *,
           count(*) FILTER (WHERE step_id IS NULL) OVER (PARTITION BY cluster, job_id, node, gpu_uuid, mig_uuid, gpu_index) AS job_holds
    FROM gpu_holds
    WHERE is_repeated = 0 AND from_time IS NOT NULL
), job_ends AS (
    -- One row per job that ever held GPUs.
    SELECT cluster, job_id, CASE WHEN count(*) = count(to_time) THEN max(to_time) END AS job_end_time,
           max(as_of) AS job_as_of, max(coalesce(to_time, as_of)) AS job_known_to
    FROM attempts
    WHERE from_time IS NOT NULL
    GROUP BY cluster, job_id
), hours AS (
    -- One row per cluster with GPU samples: its last hour, before which no minutes are read.
    SELECT cluster, max(window_start) AS hour FROM gpu_1h GROUP BY cluster
), sampled AS (
    -- One row per cluster with GPU samples.
    SELECT cluster, plus_ms(max(window_start), 60000) AS sampled_to
    FROM gpu_1m
    WHERE window_start >= (SELECT min(hour) FROM hours)
    GROUP BY cluster
)
SELECT h.cluster, h.job_id, h.hold_id, h.node,
       coalesce(h.mig_uuid, h.gpu_uuid, h.node || '/' || CAST(h.gpu_index AS TEXT)) AS device,
       h.gpu_uuid, h.mig_uuid, h.gpu_index, h.share_milli, h.quality, h.evidence,
       CASE WHEN h.quality = 'EXACT' AND (h.mig_uuid IS NOT NULL OR coalesce(h.share_milli, 1000) >= 1000)
            THEN 1 ELSE 0 END AS is_whole,
       h.from_time, h.to_time, e.job_end_time, e.job_as_of, e.job_known_to, s.sampled_to
FROM holds h
LEFT JOIN job_ends e ON e.cluster = h.cluster AND e.job_id = h.job_id
LEFT JOIN sampled s ON s.cluster = h.cluster
-- A step shares the devices of its job.
WHERE h.step_id IS NULL OR h.job_holds = 0
