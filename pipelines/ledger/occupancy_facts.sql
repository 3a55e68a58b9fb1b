--! name    = "occupancy_facts"
--! doc     = "Facts on which jobs hold GPUs and which wait for them, each with its time. The input of the function occupancy(), which decides the classes of the ledger."
--! question = "Which facts does the ledger use for a node or a job at a moment?"
--! example  = "SELECT kind, job_id, gpus_milli, word, from_time, to_time FROM occupancy_facts WHERE node = 'gpu-01' AND to_time IS NULL ORDER BY kind, job_id"
--! sources = ["stretch_facts", "attempts", "gpu_holds", "attempt_steps"]
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
SELECT cluster, kind, node, job_id, pool, team, user_name, gpu, mig, word, gpus_milli, a, b, c, from_time, to_time
FROM stretch_facts
UNION ALL
SELECT cluster, 'device', node, job_id, NULL, '#' || CAST(gpu_index AS TEXT), NULL, coalesce(gpu_uuid, '#' || CAST(gpu_index AS TEXT)), mig_uuid,
       CASE WHEN quality = 'UNKNOWN' THEN 'seen' END, CASE WHEN quality = 'EXACT' THEN 1000 ELSE coalesce(share_milli, 1000) END,
       NULL, NULL, NULL, from_time, to_time
FROM gpu_holds
WHERE from_time IS NOT NULL
UNION ALL
-- A start that takes longer than six hours counts for its last six only.
SELECT s.cluster, 'starting', NULL, s.job_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, a.run, NULL, NULL,
       greatest(s.from_time, plus_ms(s.first_step_time, -21600000)), least(s.first_step_time, s.to_time)
FROM attempt_steps s
JOIN attempts a ON a.cluster = s.cluster AND a.job_id = s.job_id AND a.attempt = s.attempt
WHERE s.first_step_time IS NOT NULL
