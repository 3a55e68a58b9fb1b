--! name    = "shared_devices"
--! doc     = "Times in which several jobs held one GPU: one row per stretch in which the same jobs held it, and job and slice. It shows how they shared it, the part given to each, and which use cannot be attributed. Slices have counters of their own, sampled processes have memory of their own; everything else is known for the GPU as a whole, energy always."
--! question = "Which jobs share a GPU, how, and which part of its use cannot be attributed?"
--! example  = "SELECT node, device, from_time, to_time, job_id, jobs, how, share_milli, not_told_apart FROM shared_devices WHERE from_time >= now() - INTERVAL '1 day' ORDER BY from_time DESC LIMIT 20"
--! sources = ["gpu_spans", "gpu_samples"]
--! [columns]
--! cluster          = "Cluster."
--! node             = "Node."
--! device           = "The GPU, as in gpu_spans."
--! mig_uuid         = "MIG slice that the job held; NULL for the whole GPU."
--! from_time        = "Start."
--! to_time          = "End: a job came or left."
--! job_id           = "Job."
--! jobs             = "Jobs that held the GPU or slices of it."
--! job_ids          = "These jobs, comma separated."
--! how              = "mig: the job had its slice to itself, others had other slices. mps: processes of several jobs ran as MPS clients. conflict: a hold is reported as exclusive, but another job held the device too. shared: by time-slicing, MPS or without any mechanism; not known which."
--! evidence         = "How that is known: slices; mps_process (an MPS client was sampled); alone_told (a hold of quality EXACT); shares_told (every hold reports a share); holds (only that they overlap)."
--! quality          = "Of the job's hold, as in gpu_holds."
--! held_ms          = "Length of the stretch, ms."
--! share_milli      = "Thousandths of the GPU or slice given to the job; NULL if not known."
--! all_share_milli  = "Sum over all jobs that held this GPU or slice; NULL if one share is not known. Above 1000, more was given than exists."
--! sevenths         = "Sevenths of the GPU that are shared here: 7, or the size of the slice; NULL if not known."
--! part_gpu_ms      = "The job's part, GPU x ms: by share_milli, or in proportion if the shares exceed the device. By what was given, not by what was used. NULL if all_share_milli or sevenths is not known."
--! told_by          = "How the use of the job is attributed: slice, process, or NULL if it is not."
--! not_told_apart   = "Use of the GPU that cannot be attributed to one of its jobs: memory, activity, energy."
--! memory_max_bytes = "Most device memory that the job's processes held, as they were first seen together, bytes; NULL where no process of the job was sampled, or the driver does not say."
WITH shared_holds AS (
    -- One row per hold of a GPU that jobs may have shared.
    SELECT *, coalesce(mig_uuid, '') AS slice FROM gpu_spans WHERE is_met = 1
), times AS (
    -- One row per time at which a hold of the crowd began or ended.
    SELECT DISTINCT cluster, device, crowd, unnest(make_array(from_time, to_time)) AS at FROM shared_holds
), stretches AS (
    -- One row per stretch between two such times.
    SELECT cluster, device, crowd, at AS from_time, lead(at) OVER (PARTITION BY cluster, device, crowd ORDER BY at) AS to_time FROM times
), active AS (
    -- One row per stretch and job and slice that it held.
    SELECT m.cluster, m.device, m.slice, s.from_time, s.to_time, m.job_id, max(m.node) AS node, max(m.gpu_uuid) AS gpu_uuid,
           max(m.sevenths) AS sevenths, max(m.quality) FILTER (WHERE m.quality = 'EXACT') AS alone, min(m.quality) AS quality,
           CASE WHEN count(m.share_milli) = count(*) THEN max(m.share_milli) END AS share_milli
    FROM stretches s
    JOIN shared_holds m ON m.cluster = s.cluster AND m.device = s.device AND m.crowd = s.crowd
              AND m.from_time <= s.from_time AND m.to_time >= s.to_time
    GROUP BY m.cluster, m.device, m.slice, s.from_time, s.to_time, m.job_id
), counted AS (
    -- The same rows, with counts over the slice (here) and over the GPU (everywhere).
    SELECT *,
           count(*) OVER here                                                        AS here,
           count(alone) OVER here                                                    AS alone_here,
           CASE WHEN count(share_milli) OVER here = count(*) OVER here THEN sum(share_milli) OVER here END AS all_share_milli,
           sum(share_milli) OVER (PARTITION BY cluster, device, slice, from_time ORDER BY job_id
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - share_milli AS before_milli,
           sum(CASE slice WHEN '' THEN 1 ELSE 0 END) OVER everywhere                 AS on_whole,
           count(*) OVER everywhere                                                  AS everyone,
           count(alone) OVER everywhere                                              AS alone_anywhere,
           count(share_milli) OVER everywhere                                        AS shares_told,
           array_sort(array_distinct(array_agg(job_id) OVER everywhere))             AS job_ids
    FROM active
    WINDOW here AS (PARTITION BY cluster, device, slice, from_time), everywhere AS (PARTITION BY cluster, device, from_time)
), processes AS (
    -- One row per sampled process, as text.
    -- Samples list the pid first, then kind and memory if known, job and ticks last. Quotes in
    -- names are escaped.
    SELECT cluster, gpu_uuid, coalesce(mig_uuid, '') AS slice, event_time, unnest(string_to_array(processes, '},{"pid":')) AS process
    FROM gpu_samples
    WHERE processes IS NOT NULL
), process_fields AS (
    -- The same rows, with job, memory and kind.
    SELECT cluster, gpu_uuid, slice, event_time,
           regexp_match(process, '"job":"([^"]*)","ticks":[0-9]+[}\]]*$')[1]                                            AS job_id,
           CAST(regexp_match(process, '^(?:\[\{"pid":)?[0-9]+,(?:"kind":"[A-Z]+",)?"memory_bytes":([0-9]+)')[1] AS BIGINT) AS memory_bytes,
           CASE WHEN regexp_like(process, '^(?:\[\{"pid":)?[0-9]+,"kind":"MPS"') THEN 1 ELSE 0 END                         AS is_mps
    FROM processes
), sampled AS (
    -- One row per stretch, job and sample.
    SELECT a.cluster, a.device, a.slice, a.from_time, a.job_id, p.event_time,
           sum(p.memory_bytes) FILTER (WHERE p.job_id = a.job_id) AS memory_bytes, max(p.is_mps) AS is_mps
    FROM active a
    JOIN process_fields p ON p.cluster = a.cluster AND p.gpu_uuid = a.gpu_uuid AND p.slice = a.slice
                    AND p.event_time > a.from_time AND p.event_time <= a.to_time
    GROUP BY a.cluster, a.device, a.slice, a.from_time, a.job_id, p.event_time
), used AS (
    -- One row per stretch and job, with its memory.
    SELECT cluster, device, slice, from_time, job_id, max(memory_bytes) AS memory_max_bytes, max(is_mps) AS is_mps
    FROM sampled
    GROUP BY cluster, device, slice, from_time, job_id
), classified AS (
    -- One row per stretch and job on shared GPUs, with the way of sharing.
    SELECT c.*, u.memory_max_bytes,
           CASE WHEN c.slice <> '' AND c.here = 1 AND c.on_whole = 0                        THEN 'mig'
                WHEN u.is_mps = 1                                                           THEN 'mps'
                WHEN c.alone_here > 0                                                       THEN 'conflict'
                WHEN c.on_whole BETWEEN 1 AND c.everyone - 1 AND c.alone_anywhere > 0       THEN 'conflict'
                ELSE 'shared' END AS how
    FROM counted c
    LEFT JOIN used u ON u.cluster = c.cluster AND u.device = c.device AND u.slice = c.slice
                    AND u.from_time = c.from_time AND u.job_id = c.job_id
    WHERE array_length(c.job_ids) > 1
)
SELECT cluster, node, device, nullif(slice, '') AS mig_uuid, from_time, to_time, job_id,
       CAST(array_length(job_ids) AS BIGINT) AS jobs, array_to_string(job_ids, ',') AS job_ids, how,
       CASE WHEN how = 'mig' THEN 'slices' WHEN how = 'mps' THEN 'mps_process' WHEN how = 'conflict' THEN 'alone_told'
            WHEN shares_told = everyone THEN 'shares_told' ELSE 'holds' END AS evidence,
       coalesce(alone, quality) AS quality,
       ms_between(from_time, to_time) AS held_ms, share_milli, CAST(all_share_milli AS BIGINT) AS all_share_milli, sevenths,
       CASE WHEN all_share_milli IS NOT NULL
            THEN share_of(share_of(ms_between(from_time, to_time), 0, sevenths, 7), CAST(before_milli AS BIGINT), share_milli,
                          greatest(CAST(all_share_milli AS BIGINT), 1000)) END AS part_gpu_ms,
       CASE WHEN how = 'mig' THEN 'slice' WHEN memory_max_bytes IS NOT NULL THEN 'process' END AS told_by,
       CASE WHEN how = 'mig' THEN 'energy' WHEN memory_max_bytes IS NOT NULL THEN 'activity,energy'
            ELSE 'memory,activity,energy' END AS not_told_apart,
       memory_max_bytes
FROM classified
