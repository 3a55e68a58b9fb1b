--! name    = "stragglers"
--! version = 2
--! doc     = "Slow ranks, nodes and networks of jobs: the latest statement of each episode. `tidegate insight` and `tidegate up` derive them from step reports; for jobs without reports, from device counters."
--! question = "Which jobs are slowed by a rank, node or network, since when, why, and what has it cost?"
--! example  = "SELECT job_id, episode, state, blame, node, rank, class, cause, pipeline_stage, slowdown_ppm / 10000 AS slower_percent, onset_time, lost_gpu_ms / 3600000.0 AS lost_gpu_hours, evidence FROM stragglers WHERE confirmed_time IS NOT NULL ORDER BY lost_gpu_ms DESC LIMIT 20"
--! sources = ["straggler_signals"]
--! per     = ["cluster", "job_id"]
--! key     = ["cluster", "job_id", "episode"]
--! [columns]
--! cluster        = "Cluster."
--! job_id         = "Job that is slowed down."
--! episode        = "Number of the episode in the job, from 1."
--! revision       = "Number of the latest statement, from 0."
--! attempt_id     = "Attempt of the job, if a report named it."
--! state          = "SUSPECT, CONFIRMED, CLEARED (it is over), or CORRECTED (late reports revoked or changed the statement)."
--! blame          = "Blamed part: RANK, NODE, ROLE, FABRIC or NOBODY (the shape of the job itself)."
--! node           = "Blamed node, or the node of the rank."
--! gpu_uuid       = "UUID of the device of the rank, if known."
--! gpu_index      = "Index of the device in its node."
--! rank           = "Blamed rank; NULL if the job reports no steps, in which case the device is named."
--! role           = "Blamed role, e.g. a stage of a pipeline."
--! class          = "COMPUTE_THERMAL, COMPUTE_SILENT, LINK, HOST, DATA, COMMUNICATION, or STRUCTURAL (no part is at fault)."
--! cause          = "For STRUCTURAL, the dominant cause: LONG_STAGE, SEQUENCE_IMBALANCE, EXPERT_IMBALANCE or SLOWER_FROM_THE_START. evidence lists all."
--! pipeline_stage = "Pipeline stage of the blamed rank or role, or the long stage, from 0; NULL if the job reports no stages."
--! posterior_ppm  = "Probability of the class, millionths."
--! onset_time     = "Time from which the part is slow."
--! detected_time  = "First suspicion."
--! confirmed_time = "First confirmation; NULL if never confirmed. Automatic actions use confirmed episodes only."
--! cleared_time   = "End of the episode; NULL while it lasts."
--! slowdown_ppm   = "How much longer the part takes than before: 200000 is 20 %."
--! lost_gpu_ms    = "GPU x ms lost so far by the whole job; NULL if it reports no steps."
--! evidence       = "Evidence: rule, value and weight in log odds."
--! model          = "Version of the detector."
WITH statements AS (
    -- One row per statement; place 1 is the latest of its episode.
    SELECT *,
           row_number() OVER (
               PARTITION BY cluster, job_id, episode
               ORDER BY revision DESC, said_time DESC, state, class, blame, lost_gpu_ms DESC, evidence
           ) AS place,
           min(CASE WHEN state = 'CONFIRMED' THEN said_time END) OVER (PARTITION BY cluster, job_id, episode) AS confirmed_time,
           min(detected_time) OVER (PARTITION BY cluster, job_id, episode) AS first_detected_time
    FROM straggler_signals
)
SELECT cluster, job_id, episode, revision, attempt_id, state, blame, node, gpu_uuid, gpu_index, rank, role, class,
       cause, pipeline_stage, posterior_ppm,
       onset_time, first_detected_time AS detected_time, confirmed_time,
       CASE WHEN state = 'CLEARED' THEN said_time END AS cleared_time,
       slowdown_ppm, CASE WHEN evidence LIKE '%no_step_reports%' THEN NULL ELSE lost_gpu_ms END AS lost_gpu_ms, evidence, model
FROM statements
WHERE place = 1
