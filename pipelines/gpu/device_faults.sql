--! name    = "device_faults"
--! doc     = "Times in which devices were lost or unresponsive."
--! question = "Which GPUs were lost or unresponsive, and which still are?"
--! example  = "SELECT node, gpu_uuid, kind, count(*) AS times, count(*) - count(to_time) AS lasting, max(from_time) AS latest FROM device_faults WHERE from_time >= now() - INTERVAL '7 days' GROUP BY node, gpu_uuid, kind ORDER BY times DESC LIMIT 100"
--! sources = ["node_events"]
--! [columns]
--! cluster     = "Cluster."
--! node        = "Node."
--! gpu_uuid    = "UUID of the device."
--! mig_uuid    = "MIG slice; NULL for the device."
--! kind        = "DEVICE_LOST: the driver reported it gone. DEVICE_STALE: driver calls for it did not return."
--! description = "Description reported at the start."
--! evidence    = "Sources of the reports, comma separated."
--! from_time   = "Start."
--! to_time     = "Time at which the device was back or responded, or one kind became the other; NULL while it lasts."
WITH reports AS (
    -- One row per device and time at which its state was reported.
    -- Of several reports at one time the worst counts: lost before stale before present.
    SELECT cluster, node, gpu_uuid, mig_uuid, event_time,
           max(CASE kind WHEN 'DEVICE_LOST' THEN '3' WHEN 'DEVICE_STALE' THEN '2' ELSE '1' END) AS what,
           max(description) AS description, max(evidence) AS evidence
    FROM node_events
    WHERE kind IN ('DEVICE_LOST', 'DEVICE_FOUND', 'DEVICE_STALE', 'DEVICE_ANSWERS')
    GROUP BY cluster, node, gpu_uuid, mig_uuid, event_time
), compared AS (
    -- The same rows, beside the state before.
    SELECT *, lag(what) OVER (PARTITION BY cluster, node, gpu_uuid, mig_uuid ORDER BY event_time) AS before
    FROM reports
), spans AS (
    -- One row per change of the state, with the time of the next.
    SELECT *, lead(event_time) OVER (PARTITION BY cluster, node, gpu_uuid, mig_uuid ORDER BY event_time) AS to_time
    FROM compared
    WHERE what IS DISTINCT FROM before
)
SELECT cluster, node, gpu_uuid, mig_uuid,
       CASE what WHEN '3' THEN 'DEVICE_LOST' ELSE 'DEVICE_STALE' END AS kind,
       description, evidence, event_time AS from_time, to_time
FROM spans
WHERE what <> '1'
