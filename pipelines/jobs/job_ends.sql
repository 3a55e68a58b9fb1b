--! name    = "job_ends"
--! doc     = "How each attempt of a job ended, and which fault of its nodes or devices did it, where one can have: XIDs, lost devices and nodes that went down in the eleven minutes before the end and the minute after it, joined by `tidegate insight` and `tidegate up` with a probability. Where nothing was found the scheduler's word stands alone."
--! question = "What ended my job: a lost device, memory, a node, or its own mistake, and how much work was lost with it?"
--! example  = "SELECT job_id, attempt, final_state, end_time, cause, node, gpu_uuid, xid, probability_ppm / 10000 AS percent, lost_gpu_ms / 3600000.0 AS lost_gpu_hours, evidence FROM job_ends WHERE cause IS NOT NULL ORDER BY end_time DESC LIMIT 50"
--! sources = ["job_end_signals", "attempts"]
--! [columns]
--! cluster         = "Cluster."
--! job_id          = "Job."
--! attempt_id      = "As in attempts."
--! attempt         = "Number of the attempt, from 0."
--! team            = "Account, group or virtual cluster."
--! user_name       = "User who submitted the job."
--! pool            = "Partition, queue or node pool."
--! gpus_milli      = "Thousandths of a GPU it held."
--! from_time       = "When it began to hold GPUs."
--! end_time        = "When it ended."
--! final_state     = "How it ended, as the scheduler says."
--! exit_code       = "Exit code."
--! cause           = "DEVICE_LOST, MEMORY, LINK, FIRMWARE, HOST, NODE (it went down), APPLICATION (the program's own mistake) or UNKNOWN (an XID that no catalogue has), by the fault that was found; else by the scheduler's word NODE, TIME_LIMIT or OUT_OF_MEMORY (the host's); NULL if nothing says why."
--! node            = "Node of the fault; of a NODE that only the scheduler told of, the attempt's one node."
--! gpu_uuid        = "Device of the fault, by its UUID."
--! gpu_index       = "Number of the device in its node."
--! xid             = "NVIDIA's code, where the fault was an XID; see xid_catalog."
--! fault_time      = "When the fault was reported; NULL if none was found, as the following columns."
--! probability_ppm = "Probability that this fault ended it, against the other faults and none of them, millionths."
--! lost_gpu_ms     = "GPU x ms from the last checkpoint that its ranks reported to the end; NULL if they reported none."
--! evidence        = "What the probability rests on: rule, value and weight in log odds."
--! model           = "Version of the rules."
WITH said AS (
    SELECT *,
           row_number() OVER (PARTITION BY cluster, job_id, attempt_id ORDER BY end_time DESC, model DESC, probability_ppm DESC, evidence) AS place
    FROM job_end_signals
)
SELECT a.cluster, a.job_id, a.attempt_id, a.attempt, a.team, a.user_name, a.pool, a.gpus_milli, a.from_time, a.to_time AS end_time,
       a.final_state, a.exit_code,
       coalesce(s.cause, CASE a.final_state WHEN 'NODE_FAIL' THEN 'NODE' WHEN 'TIMEOUT' THEN 'TIME_LIMIT' WHEN 'OUT_OF_MEMORY' THEN 'OUT_OF_MEMORY' END) AS cause,
       coalesce(s.node, CASE a.final_state WHEN 'NODE_FAIL' THEN a.node END) AS node,
       s.gpu_uuid, s.gpu_index, s.xid, s.fault_time, s.probability_ppm, s.lost_gpu_ms, s.evidence, s.model
FROM attempts a
LEFT JOIN said s ON s.cluster = a.cluster AND s.job_id = a.job_id AND s.attempt_id = a.attempt_id AND s.place = 1
WHERE a.from_time IS NOT NULL AND a.to_time IS NOT NULL
