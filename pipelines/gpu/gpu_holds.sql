--! name    = "gpu_holds"
--! version = 4
--! doc     = "Which device a job held over time, as reported by the scheduler and as observed on the node. `quality` says how certain a hold is. To count each device once, select is_repeated = 0."
--! question = "Which job held which GPU of a node, and how surely is that known?"
--! example  = "SELECT gpu_index, gpu_uuid, job_id, user_name, share_milli, quality, from_time, to_time FROM gpu_holds WHERE is_repeated = 0 AND node = 'gpu-01' ORDER BY from_time DESC LIMIT 20"
--! sources = ["job_events"]
--! per     = ["cluster", "job_id"]
--! key     = ["cluster", "job_id", "hold_id"]
--! [columns]
--! cluster     = "Cluster."
--! job_id      = "Job that held the device."
--! hold_id     = "Name of the hold."
--! attempt_id  = "Attempt of the job, as in attempts, if known."
--! step_id     = "Step of the job; NULL for the job itself."
--! team        = "Account, group or namespace, if known."
--! user_name   = "User of the job, if known."
--! node        = "Node of the device."
--! gpu_uuid    = "UUID of the device."
--! mig_uuid    = "MIG slice; NULL for a whole device."
--! gpu_index   = "Index of the device in its node."
--! share_milli = "Thousandths of the device; an estimate unless quality is EXACT; NULL if not known."
--! quality     = "EXACT: the device belonged to the job alone. SHARED_ESTIMATED: other jobs used it too. UNKNOWN: a process of the job was seen on it, but no source reports an allocation."
--! evidence    = "Source: slurm (the scheduler itself), prolog, cgroup, pid, pod_resources."
--! is_repeated = "1 if the scheduler itself reports the same device of the node and job, so that this hold would count twice; else 0."
--! from_time   = "Start of the hold; NULL if only its end was seen."
--! to_time     = "End of the hold as reported; else the end of its attempt or job (a resize is not an end); NULL while it lasts."
WITH holds AS (
    -- One row per hold.
    SELECT cluster, job_id, hold_id,
           latest(attempt_id, event_time)    AS attempt_id,
           latest(step_id, event_time)       AS step_id,
           latest(team, event_time)          AS team,
           latest(user_name, event_time)     AS user_name,
           latest(node, event_time)          AS node,
           latest(gpu_uuid, event_time)      AS gpu_uuid,
           latest(mig_uuid, event_time)      AS mig_uuid,
           latest(gpu_index, event_time)     AS gpu_index,
           latest(share_milli, event_time)   AS share_milli,
           latest(hold_quality, event_time)  AS quality,
           latest(hold_evidence, event_time) AS evidence,
           min(event_time) FILTER (WHERE kind = 'DEVICE_HELD')     AS from_time,
           max(event_time) FILTER (WHERE kind = 'DEVICE_RELEASED') AS released_time
    FROM job_events
    WHERE kind IN ('DEVICE_HELD', 'DEVICE_RELEASED')
    GROUP BY cluster, job_id, hold_id
), resizes AS (
    -- One row per attempt that a resize ended.
    SELECT cluster, job_id, attempt_id, max(event_time) AS resized_time
    FROM job_events
    WHERE kind = 'ENDED' AND final_state = 'RESIZED' AND attempt_id IS NOT NULL AND step_id IS NULL
    GROUP BY cluster, job_id, attempt_id
), unreleased AS (
    -- One row per hold whose end was not reported.
    SELECT h.cluster, h.job_id, h.hold_id, h.attempt_id, h.from_time, r.resized_time
    FROM holds h
    LEFT JOIN resizes r ON r.cluster = h.cluster AND r.job_id = h.job_id AND r.attempt_id = h.attempt_id
    WHERE h.released_time IS NULL
), ends AS (
    -- The same rows, with the events of the job that may have ended the hold.
    SELECT u.cluster, u.job_id, u.hold_id,
           -- End of its attempt. After a resize the next attempt keeps the devices. An agent names no
           -- attempt, so its holds end with the first attempt that ends after their start.
           min(e.event_time) FILTER (
               WHERE e.kind = 'ENDED' AND e.attempt_id IS NOT NULL AND (e.final_state IS DISTINCT FROM 'RESIZED')
                 AND CASE WHEN u.attempt_id IS NULL          THEN e.event_time > u.from_time
                          WHEN u.resized_time IS NOT NULL    THEN e.event_time >= u.resized_time
                          ELSE e.attempt_id = u.attempt_id END) AS run_end,
           max(e.event_time) FILTER (
               WHERE e.final_state = 'RESIZED' AND e.kind = 'ENDED'
                 AND (u.resized_time IS NOT NULL OR u.attempt_id IS NULL)) AS last_resize,
           max(e.event_time) FILTER (WHERE e.kind = 'STARTED') AS last_start,
           -- For an attempt without a reported end: the end of the job, or of a later attempt.
           min(e.event_time) FILTER (
               WHERE coalesce(e.final_state, '') NOT IN ('REQUEUED', 'RESIZED') AND e.kind = 'ENDED' AND e.event_time >= u.from_time
                 AND (e.attempt_id IS NULL OR e.attempt_id > u.attempt_id)) AS job_end
    FROM unreleased u
    JOIN job_events e ON e.cluster = u.cluster AND e.job_id = u.job_id
    WHERE e.kind IN ('STARTED', 'ENDED') AND e.step_id IS NULL
    GROUP BY u.cluster, u.job_id, u.hold_id
), ended_by AS (
    -- The same rows, with the end; a resize after which nothing started was the end.
    SELECT cluster, job_id, hold_id,
           coalesce(run_end, CASE WHEN last_start IS NULL OR last_start < last_resize THEN last_resize END, job_end) AS end_time
    FROM ends
), ended AS (
    -- One row per hold, with an end that is not before its start: the clock of an agent may be
    -- ahead.
    SELECT h.*, coalesce(h.released_time, CASE WHEN e.end_time < h.from_time THEN h.from_time ELSE e.end_time END) AS to_time
    FROM holds h
    LEFT JOIN ended_by e ON e.cluster = h.cluster AND e.job_id = h.job_id AND e.hold_id = h.hold_id
)
SELECT cluster, job_id, hold_id, attempt_id, step_id, team, user_name, node, gpu_uuid, mig_uuid, gpu_index, share_milli,
       quality, evidence,
       -- Sources may know a device by its index or by its UUID. A hold is repeated only if the
       -- scheduler reports the same index or the same UUID.
       CASE WHEN evidence <> 'slurm'
             AND (gpu_index IS NOT NULL
                  AND count(*) FILTER (WHERE evidence = 'slurm') OVER (PARTITION BY cluster, job_id, node, gpu_index) > 0
               OR gpu_uuid IS NOT NULL AND mig_uuid IS NULL
                  AND count(*) FILTER (WHERE evidence = 'slurm') OVER (PARTITION BY cluster, job_id, node, gpu_uuid) > 0)
            THEN 1 ELSE 0 END AS is_repeated,
       from_time, to_time
FROM ended
