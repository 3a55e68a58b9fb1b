--! name    = "gpu_spans"
--! doc     = "Which GPU or MIG slice each job held over time, each hold once and with an end: device_holds with the GPU of a slice or index taken from the samples. All tables about sharing start from it."
--! question = "Which job held which device, each hold once and with an end?"
--! example  = "SELECT device, job_id, share_milli, quality, from_time, to_time, is_open FROM gpu_spans WHERE node = 'gpu-01' ORDER BY from_time DESC LIMIT 20"
--! sources = ["device_holds", "gpu_1h"]
--! once    = true
--! [columns]
--! cluster     = "Cluster."
--! job_id      = "Job."
--! hold_id     = "Name of the hold."
--! node        = "Node of the device."
--! device      = "The GPU: its UUID; node/index if that is not known, or the slice if its GPU is not known."
--! gpu_uuid    = "UUID of the GPU, as reported or as sampled; NULL if neither."
--! mig_uuid    = "MIG slice; NULL for a whole GPU."
--! sevenths    = "Sevenths of the GPU's compute that the slice has; NULL if it was not sampled. 7 for a whole GPU."
--! share_milli = "Thousandths of the GPU or slice as reported; 1000 if the hold is exclusive; else NULL."
--! quality     = "As in gpu_holds."
--! evidence    = "As in gpu_holds."
--! from_time   = "Start of the hold."
--! to_time     = "Reported end; else the end of its job, the time up to which the job was observed, or the time up to which the cluster was sampled. A hold without any of these is left out."
--! is_open     = "1 if no end of the hold was reported, else 0."
--! crowd       = "Number of the group of overlapping holds of the GPU and its slices, in order of time. Each hold of a group starts while an earlier one lasts; a hold that starts exactly when all others end starts a new group."
--! is_met      = "1 if the group has holds of another job, else 0. Only these can have shared the GPU."
--! is_beside   = "1 if an earlier hold of the job, of any device, lasted when this one began, else 0."
WITH device_indexes AS (
    -- One row per node and index of a GPU; an index that several GPUs had in turn identifies none.
    SELECT cluster, node, gpu_index, max(gpu_uuid) AS gpu_uuid
    FROM gpu_1h
    WHERE mig_uuid IS NULL
    GROUP BY cluster, node, gpu_index
    HAVING count(DISTINCT gpu_uuid) = 1
), slices AS (
    -- One row per MIG slice.
    SELECT cluster, mig_uuid, max(gpu_uuid) AS gpu_uuid, max(mig_slices_max_count) AS sevenths
    FROM gpu_1h
    WHERE mig_uuid IS NOT NULL
    GROUP BY cluster, mig_uuid
), spans AS (
    -- One row per hold, with its GPU and an end.
    SELECT h.cluster, h.job_id, h.hold_id, h.node,
           coalesce(s.gpu_uuid, h.gpu_uuid, n.gpu_uuid, h.mig_uuid, concat(h.node, '/', CAST(h.gpu_index AS TEXT))) AS device,
           coalesce(s.gpu_uuid, h.gpu_uuid, n.gpu_uuid)                  AS gpu_uuid,
           h.mig_uuid,
           CASE WHEN h.mig_uuid IS NULL THEN 7 ELSE s.sevenths END       AS sevenths,
           CASE WHEN h.quality = 'EXACT' THEN coalesce(h.share_milli, 1000) ELSE h.share_milli END AS share_milli,
           h.quality, h.evidence, h.from_time,
           coalesce(h.to_time, h.job_known_to, h.sampled_to)             AS to_time,
           CASE WHEN h.to_time IS NULL THEN 1 ELSE 0 END                 AS is_open
    FROM device_holds h
    LEFT JOIN device_indexes n ON h.gpu_uuid IS NULL AND h.mig_uuid IS NULL
                       AND n.cluster = h.cluster AND n.node = h.node AND n.gpu_index = h.gpu_index
    LEFT JOIN slices s ON s.cluster = h.cluster AND s.mig_uuid = h.mig_uuid
), reaching AS (
    -- The same rows, with the latest end of the earlier holds of the device.
    SELECT *, max(to_time) OVER (PARTITION BY cluster, device ORDER BY from_time, to_time, job_id, hold_id
                                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
    FROM spans
    WHERE from_time < to_time
), numbered AS (
    -- The same rows, with the number of the crowd.
    SELECT *, CAST(sum(CASE WHEN reached > from_time THEN 0 ELSE 1 END)
                   OVER (PARTITION BY cluster, device ORDER BY from_time, to_time, job_id, hold_id
                         ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS crowd
    FROM reaching
)
SELECT cluster, job_id, hold_id, node, device, gpu_uuid, mig_uuid, sevenths, share_milli, quality, evidence,
       from_time, to_time, is_open, crowd,
       CASE WHEN min(job_id) OVER (PARTITION BY cluster, device, crowd) < max(job_id) OVER (PARTITION BY cluster, device, crowd)
            THEN 1 ELSE 0 END AS is_met,
       CASE WHEN max(to_time) OVER (PARTITION BY cluster, job_id ORDER BY from_time, to_time, device, mig_uuid
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > from_time THEN 1 ELSE 0 END AS is_beside
FROM numbered
