--! name    = "stretch_facts"
--! doc     = "Facts on nodes, reservations, attempts and waits, each with its time: those of occupancy_facts that schedulers report. The input of the function idle_stretches()."
--! question = "Which nodes, attempts and waits does the ledger use for a moment before agents monitored?"
--! example  = "SELECT kind, job_id, node, gpus_milli, word, from_time, to_time FROM stretch_facts WHERE to_time IS NULL ORDER BY kind, job_id LIMIT 100"
--! sources = ["node_capacity", "capacity", "device_faults", "attempts", "waits", "classified_waits", "job_events"]
--! [columns]
--! cluster    = "Cluster."
--! kind       = "node: a node exists; reserved: a reservation names nodes; lost: a device is lost; share: an attempt holds GPUs; wait: a job waits; priority: priority of a job."
--! node       = "Node, or nodes, comma separated."
--! job_id     = "Job."
--! pool       = "Pools of the node, comma separated; pool of the job."
--! team       = "Team of the job; accounts of the reservation, comma separated."
--! user_name  = "User of the job; users of the reservation, comma separated."
--! gpu        = "UUID of the lost device; of a node the model of its GPUs."
--! mig        = "NULL: no fact here is about a MIG slice."
--! word       = "Health of the node (schedulable, unhealthy, drained). MAINT for a reservation for maintenance. For a wait the kind of constraint: limited (a quota or limit), open (GPUs), own (anything else)."
--! gpus_milli = "Thousandths of a GPU: of the node, held by the attempt, or requested."
--! a          = "Of a wait: nodes requested, -1 if not known. Of a priority: its value."
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
