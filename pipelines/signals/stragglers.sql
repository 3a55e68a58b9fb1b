--! name    = "stragglers"
--! version = 2
--! doc     = "Slow ranks, nodes and networks of jobs: the latest statement of each episode, as `tidegate insight` and `tidegate up` make them from step reports; of jobs that send none, devices whose counters speak against them."
--! question = "Which jobs are slowed down by one rank, node or network, since when, why, and what has it cost?"
--! example  = "SELECT job_id, episode, state, blame, node, rank, class, cause, pipeline_stage, slowdown_ppm / 10000 AS slower_percent, onset_time, lost_gpu_ms / 3600000.0 AS lost_gpu_hours, evidence FROM stragglers WHERE confirmed_time IS NOT NULL ORDER BY lost_gpu_ms DESC LIMIT 20"
--! sources = ["straggler_signals"]
--! per     = ["cluster", "job_id"]
--! key     = ["cluster", "job_id", "episode"]
--! [columns]
--! cluster        = "Cluster."
--! job_id         = "Job that is slowed down."
--! episode        = "Number of the episode in the job, from 1."
--! revision       = "Number of the statement that holds, from 0."
--! attempt_id     = "Attempt of the job, where a report named it."
--! state          = "SUSPECT, CONFIRMED, CLEARED (it is over), or CORRECTED (reports that came late took back or changed what was said)."
--! blame          = "Whom it blames: RANK, NODE, ROLE, FABRIC or NOBODY (the job's own shape)."
--! node           = "Node that is blamed, or of the rank."
--! gpu_uuid       = "Device of the rank, by its UUID, where it is known."
--! gpu_index      = "Number of the device in its node."
--! rank           = "Rank that is blamed; NULL where the job reports no steps: the device is named."
--! role           = "Role that is blamed, e.g. a stage of a pipeline."
--! class          = "COMPUTE_THERMAL, COMPUTE_SILENT, LINK, HOST, DATA, COMMUNICATION, or STRUCTURAL (nobody's fault)."
--! cause          = "Of STRUCTURAL: LONG_STAGE, SEQUENCE_IMBALANCE, EXPERT_IMBALANCE or SLOWER_FROM_THE_START, whichever weighs most; evidence has all of them."
--! pipeline_stage = "Stage of the pipeline, from 0: of the rank or role that is blamed, or the long one; NULL where the job tells no stages."
--! posterior_ppm  = "Probability of the class, millionths."
--! onset_time     = "Since when the part is slow."
--! detected_time  = "When it was suspected first."
--! confirmed_time = "When it was confirmed first; NULL if it never was. What acts, acts on what is confirmed."
--! cleared_time   = "When it was over; NULL while it lasts."
--! slowdown_ppm   = "How much longer the part takes than before: 200000 is 20 %."
--! lost_gpu_ms    = "GPU x ms lost so far by the whole job; NULL where it reports no steps, since nobody knows then."
--! evidence       = "What it rests on: rule, value and weight in log odds."
--! model          = "Version of the detector."
WITH placed AS (
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
FROM placed
WHERE place = 1
