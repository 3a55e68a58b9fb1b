--! name    = "gpu_spans"
--! doc     = "Which GPU or MIG slice each job held, from when to when, once each: gpu_holds without what is told twice, with the GPU of a slice or of a number found in the samples, and an end where nobody told one. What sharing is found from."
--! question = "Which job held which device, each hold once and with an end?"
--! example  = "SELECT device, job_id, share_milli, quality, from_time, to_time, is_open FROM gpu_spans WHERE node = 'gpu-01' ORDER BY from_time DESC LIMIT 20"
--! sources = ["gpu_holds", "gpu_1h", "gpu_1m", "attempts"]
--! once    = true
--! [columns]
--! cluster     = "Cluster."
--! job_id      = "Job."
--! hold_id     = "Name of the hold."
--! node        = "Node of the device."
--! device      = "The GPU: its UUID; node/number where that is not known, or the slice where its GPU is not."
--! gpu_uuid    = "The GPU by its UUID, as told or as sampled; NULL if neither."
--! mig_uuid    = "MIG slice; NULL for a whole GPU."
--! sevenths    = "Of a slice, sevenths of the GPU's compute that it has; NULL if it was not sampled. 7 for a whole GPU."
--! share_milli = "Thousandths of the GPU or slice: as told, 1000 if it was told to be the job's alone, else NULL."
--! quality     = "As in gpu_holds."
--! evidence    = "As in gpu_holds."
--! from_time   = "When the hold began."
--! to_time     = "When it ended; where nobody told, when its job ended or up to when it was observed, or up to when the cluster was sampled. Without any of these the hold is left out."
--! is_open     = "1 if nobody told its end, nor that its job had ended; else 0."
--! crowd       = "Number of the crowd of holds, of the GPU and its slices, each of which began while an earlier one lasted; in order of time. One that begins as all others end begins a new one."
--! is_met      = "1 if another job is of the same crowd; else 0. Only these can have shared the GPU."
WITH holds AS (
    SELECT *,
           count(*) FILTER (WHERE step_id IS NULL) OVER (PARTITION BY cluster, job_id, node, gpu_uuid, mig_uuid, gpu_index) AS of_job
    FROM gpu_holds
    WHERE is_repeated = 0 AND from_time IS NOT NULL
), ends AS (
    SELECT cluster, job_id, max(coalesce(to_time, as_of)) AS end_time FROM attempts WHERE from_time IS NOT NULL GROUP BY cluster, job_id
), seen AS (
    SELECT cluster, plus_ms(max(window_start), 60000) AS seen_time FROM gpu_1m GROUP BY cluster
), numbers AS (
    -- A number that stood for several GPUs in turn names none of them.
    SELECT cluster, node, gpu_index, max(gpu_uuid) AS gpu_uuid
    FROM gpu_1h
    WHERE mig_uuid IS NULL
    GROUP BY cluster, node, gpu_index
    HAVING count(DISTINCT gpu_uuid) = 1
), slices AS (
    SELECT cluster, mig_uuid, max(gpu_uuid) AS gpu_uuid, max(mig_slices_max_count) AS sevenths
    FROM gpu_1h
    WHERE mig_uuid IS NOT NULL
    GROUP BY cluster, mig_uuid
), spans AS (
    -- A step shares the devices of its job.
    SELECT h.cluster, h.job_id, h.hold_id, h.node,
           coalesce(s.gpu_uuid, h.gpu_uuid, n.gpu_uuid, h.mig_uuid, concat(h.node, '/', CAST(h.gpu_index AS TEXT))) AS device,
           coalesce(s.gpu_uuid, h.gpu_uuid, n.gpu_uuid)                  AS gpu_uuid,
           h.mig_uuid,
           CASE WHEN h.mig_uuid IS NULL THEN 7 ELSE s.sevenths END       AS sevenths,
           CASE WHEN h.quality = 'EXACT' THEN coalesce(h.share_milli, 1000) ELSE h.share_milli END AS share_milli,
           h.quality, h.evidence, h.from_time,
           coalesce(h.to_time, e.end_time, o.seen_time)                  AS to_time,
           CASE WHEN h.to_time IS NULL THEN 1 ELSE 0 END                 AS is_open
    FROM holds h
    LEFT JOIN ends e ON e.cluster = h.cluster AND e.job_id = h.job_id
    LEFT JOIN seen o ON o.cluster = h.cluster
    LEFT JOIN numbers n ON h.gpu_uuid IS NULL AND h.mig_uuid IS NULL
                       AND n.cluster = h.cluster AND n.node = h.node AND n.gpu_index = h.gpu_index
    LEFT JOIN slices s ON s.cluster = h.cluster AND s.mig_uuid = h.mig_uuid
    WHERE h.step_id IS NULL OR h.of_job = 0
), reaching AS (
    SELECT *, max(to_time) OVER (PARTITION BY cluster, device ORDER BY from_time, to_time, job_id, hold_id
                                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
    FROM spans
    WHERE from_time < to_time
), numbered AS (
    SELECT *, CAST(sum(CASE WHEN reached > from_time THEN 0 ELSE 1 END)
                   OVER (PARTITION BY cluster, device ORDER BY from_time, to_time, job_id, hold_id
                         ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS crowd
    FROM reaching
)
SELECT cluster, job_id, hold_id, node, device, gpu_uuid, mig_uuid, sevenths, share_milli, quality, evidence,
       from_time, to_time, is_open, crowd,
       CASE WHEN min(job_id) OVER (PARTITION BY cluster, device, crowd) < max(job_id) OVER (PARTITION BY cluster, device, crowd)
            THEN 1 ELSE 0 END AS is_met
FROM numbered
