--! name    = "occupancy_facts"
--! doc     = "Facts on which jobs hold GPUs and which wait for them, each with its time. The input of the functions occupancy() and idle_stretches(), which decide the classes of the ledger."
--! question = "Which facts does the ledger use for a node or a job at a moment?"
--! example  = "SELECT kind, job_id, gpus_milli, word, from_time, to_time FROM occupancy_facts WHERE node = 'gpu-01' AND to_time IS NULL ORDER BY kind, job_id"
--! sources = ["node_capacity", "capacity", "device_faults", "attempts", "gpu_holds", "waits", "classified_waits", "job_events", "attempt_steps"]
--! [columns]
--! cluster    = "Cluster."
--! kind       = "node: a node exists; reserved: a reservation names nodes; lost: a device is lost; share: an attempt holds GPUs; device: a job holds a device; wait: a job waits; priority: priority of a job; starting: an attempt has not begun its first step."
--! node       = "Node, or nodes, comma separated."
--! job_id     = "Job."
--! pool       = "Pools of the node, comma separated; pool of the job."
--! team       = "Team of the job; accounts of the reservation, comma separated; of a device # and its index, if known."
--! user_name  = "User of the job; users of the reservation, comma separated."
--! gpu        = "UUID of the device, or # and its index; of a node the model of its GPUs."
--! mig        = "MIG slice."
--! word       = "Health of the node (schedulable, unhealthy, drained). MAINT for a reservation for maintenance. `seen` for a device on which only a process was observed. For a wait the kind of constraint: limited (a quota or limit), open (GPUs), own (anything else)."
--! gpus_milli = "Thousandths of a GPU: of the node, held by the attempt, held of the device, or requested."
--! a          = "Of a wait: nodes requested, -1 if not known. Of a priority: its value. Of an attempt before its first step: the number of its run, from 0 (a resize does not start a new run)."
--! b          = "Of a wait: thousandths of a GPU requested on each node, -1 if not known."
--! c          = "Of a wait: its start, ms since 1970."
--! from_time  = "Start."
--! to_time    = "End; NULL while it lasts."
WITH waiting AS (
    -- One row per job that ever waited.
    SELECT cluster, job_id, CASE WHEN count(*) = count(to_time) THEN max(to_time) END AS to_time
    FROM waits
    GROUP BY cluster, job_id
), reported_priorities AS (
    -- One row per job and time at which its priority was reported.
    SELECT cluster, job_id, event_time, max(priority) AS priority
    FROM job_events
    WHERE priority IS NOT NULL
    GROUP BY cluster, job_id, event_time
), priorities AS (
    -- The same rows, with the time of the next report.
    SELECT *, lead(event_time) OVER (PARTITION BY cluster, job_id ORDER BY event_time) AS next_time FROM reported_priorities
)
SELECT cluster, 'node' AS kind, node, CAST(NULL AS TEXT) AS job_id, pool, CAST(NULL AS TEXT) AS team, CAST(NULL AS TEXT) AS user_name, gpu_model AS gpu,
       CAST(NULL AS TEXT) AS mig, health AS word, gpus_milli, CAST(NULL AS BIGINT) AS a, CAST(NULL AS BIGINT) AS b, CAST(NULL AS BIGINT) AS c,
       from_time, to_time
FROM node_capacity
UNION ALL
SELECT cluster, 'reserved', nodes, NULL, NULL, accounts, users, NULL, NULL,
       CASE WHEN strpos(concat(',', flags, ','), ',MAINT,') > 0 THEN 'MAINT' END, gpus_milli, NULL, NULL, NULL, from_time, to_time
FROM capacity
WHERE kind = 'RESERVATION_SET' AND nodes IS NOT NULL
UNION ALL
SELECT cluster, 'lost', node, NULL, NULL, NULL, NULL, gpu_uuid, NULL, NULL, NULL, NULL, NULL, NULL, from_time, to_time
FROM device_faults
WHERE kind = 'DEVICE_LOST' AND mig_uuid IS NULL
UNION ALL
SELECT cluster, 'share', coalesce(nodes, node), job_id, pool, team, user_name, NULL, NULL, NULL, gpus_milli, NULL, NULL, NULL, from_time, to_time
FROM attempts
WHERE from_time IS NOT NULL AND gpus_milli > 0
UNION ALL
SELECT cluster, 'device', node, job_id, NULL, '#' || CAST(gpu_index AS TEXT), NULL, coalesce(gpu_uuid, '#' || CAST(gpu_index AS TEXT)), mig_uuid,
       CASE WHEN quality = 'UNKNOWN' THEN 'seen' END, CASE WHEN quality = 'EXACT' THEN 1000 ELSE coalesce(share_milli, 1000) END,
       NULL, NULL, NULL, from_time, to_time
FROM gpu_holds
WHERE from_time IS NOT NULL
UNION ALL
SELECT w.cluster, 'wait', NULL, w.job_id, w.pool, w.team, w.user_name, NULL, NULL,
       CASE WHEN w.reason_constraint IN ('quota', 'qos_budget', 'qos_limit', 'team_budget', 'team_limit', 'user_limit') THEN 'limited'
            WHEN coalesce(w.reason_layer, 3) IN (2, 3) THEN 'open' ELSE 'own' END,
       w.gpus_milli, coalesce(w.asked_nodes, -1), coalesce(w.asked_gpus_per_node_milli, -1), unix_ms(w.waited_from),
       greatest(w.from_time, w.eligible_time), w.to_time
FROM classified_waits w
WHERE w.gpus_milli > 0
UNION ALL
SELECT p.cluster, 'priority', NULL, p.job_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, p.priority, NULL, NULL, p.event_time, least(p.next_time, w.to_time)
FROM priorities p
JOIN waiting w ON w.cluster = p.cluster AND w.job_id = p.job_id
UNION ALL
-- A start that takes longer than six hours counts for its last six only.
SELECT s.cluster, 'starting', NULL, s.job_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, a.run, NULL, NULL,
       greatest(s.from_time, plus_ms(s.first_step_time, -21600000)), least(s.first_step_time, s.to_time)
FROM attempt_steps s
JOIN attempts a ON a.cluster = s.cluster AND a.job_id = s.job_id AND a.attempt = s.attempt
WHERE s.first_step_time IS NOT NULL
