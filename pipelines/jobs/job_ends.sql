--! name    = "job_ends"
--! doc     = "How each attempt ended, and which fault of its nodes or devices probably ended it. `tidegate insight` and `tidegate up` consider XIDs, lost devices and node failures from eleven minutes before the end to one minute after it, and publish the probability. Without such a fault, only the scheduler's final state is shown."
--! question = "What ended my job (a lost device, memory, a node, or its own error), and how much work was lost?"
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
--! gpus_milli      = "Thousandths of a GPU held."
--! from_time       = "Time at which it began to hold GPUs."
--! end_time        = "Time at which the attempt ended."
--! final_state     = "How it ended, according to the scheduler."
--! exit_code       = "Exit code."
--! cause           = "By the fault: DEVICE_LOST, MEMORY, LINK, FIRMWARE, HOST, NODE (node failure), APPLICATION (error of the program) or UNKNOWN (an XID that is not in xid_catalog). Without a fault, by the final state: NODE, TIME_LIMIT or OUT_OF_MEMORY (host memory). NULL if neither names a cause."
--! node            = "Node of the fault. For a NODE cause from the scheduler alone: the only node of the attempt."
--! gpu_uuid        = "UUID of the faulty device."
--! gpu_index       = "Index of the device in its node."
--! xid             = "XID code, if the fault was an XID; see xid_catalog."
--! fault_time      = "Time at which the fault was reported; NULL without a fault, as the following columns."
--! probability_ppm = "Probability that this fault ended the attempt, against the other faults and against no fault, millionths."
--! lost_gpu_ms     = "GPU x ms from the last checkpoint that its ranks reported to the end; NULL if they reported none."
--! evidence        = "Evidence for the probability: rule, value and weight in log odds."
--! model           = "Version of the rules."
WITH statements AS (
    -- One row per statement on the end of an attempt; place 1 is the latest.
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
LEFT JOIN statements s ON s.cluster = a.cluster AND s.job_id = a.job_id AND s.attempt_id = a.attempt_id AND s.place = 1
WHERE a.from_time IS NOT NULL AND a.to_time IS NOT NULL
