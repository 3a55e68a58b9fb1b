--! name    = "step_parts"
--! doc     = "Training steps divided into parts that add up: one row per rank and step, assigned to the attempt in which it ran. Reported parts may overlap; here each µs is in exactly one part."
--! question = "What did each rank of a training job spend its steps on, and which rank do the others wait for?"
--! example  = "SELECT rank, count(*) AS steps, sum(used_us) / 1000000 AS s, sum(productive_us) / 1000000 AS productive_s, sum(data_stall_us) / 1000000 AS data_stall_s, sum(communication_stall_us) / 1000000 AS waiting_for_others_s FROM step_parts WHERE job_id = '4711' GROUP BY rank ORDER BY waiting_for_others_s"
--! sources = ["steps", "attempts"]
--! [columns]
--! cluster                = "Cluster."
--! job_id                 = "Job."
--! attempt                = "Number of the attempt, from 0: the one that the report names, or the one that held GPUs when the step began. NULL if there is none; then nothing below is known."
--! run                    = "Number of the run, as in attempts."
--! rank                   = "Rank that reports."
--! step                   = "Number of the step."
--! from_time              = "Start of the step, not before the attempt or the end of the rank's previous step."
--! used_us                = "Length inside the attempt, µs; the parts below add up to it."
--! before_us              = "Time since the rank's previous step, or since the start of the attempt, µs."
--! before                 = "Kind of that time: startup (before the first step of the job's first run), recovery (before the first step of a later run, or before the rank went back to an earlier step), or other."
--! is_redone              = "1 if an earlier attempt, or the rank itself in this attempt, had already reached the step's number; else 0."
--! restore_us             = "Loading a checkpoint, µs; NULL if not reported, as the other parts."
--! redone_us              = "The rest of a redone step, µs; else 0."
--! checkpoint_us          = "Saving a checkpoint in a step that is not redone, µs."
--! data_stall_us          = "Waiting for input, µs."
--! communication_stall_us = "In collectives that computing does not hide, µs: at most what compute_us leaves of the remaining time. Stragglers show here, at the ranks that wait for them."
--! productive_us          = "The rest, µs: computing, or anything that reports do not separate."
WITH attempt_spans AS (
    -- One row per attempt that held GPUs.
    SELECT cluster, job_id, attempt_id, attempt, run,
           CAST(from_time AS BIGINT) AS attempt_from_us, CAST(coalesce(to_time, as_of) AS BIGINT) AS attempt_to_us
    FROM attempts
    WHERE from_time IS NOT NULL
), reports AS (
    -- One row per report of a step.
    SELECT cluster, job_id, attempt_id, rank, step, seq, CAST(event_time AS BIGINT) AS begin_us, duration_us, compute_us,
           communication_us, data_wait_us, checkpoint_us, restore_us
    FROM steps
), named AS (
    -- The same rows, with the attempt that the report names.
    SELECT r.*, a.attempt, a.run, a.attempt_from_us, a.attempt_to_us
    FROM reports r
    LEFT JOIN attempt_spans a ON a.cluster = r.cluster AND a.job_id = r.job_id AND a.attempt_id = r.attempt_id
), placed AS (
    -- The same rows, with the attempt by time if the report names none.
    SELECT r.*, coalesce(r.attempt, a.attempt) AS in_attempt, coalesce(r.run, a.run) AS in_run,
           coalesce(r.attempt_from_us, a.attempt_from_us) AS from_limit_us, coalesce(r.attempt_to_us, a.attempt_to_us) AS to_limit_us
    FROM named r
    LEFT JOIN attempt_spans a ON r.attempt IS NULL AND a.cluster = r.cluster AND a.job_id = r.job_id
                     AND r.begin_us >= a.attempt_from_us AND r.begin_us < a.attempt_to_us
), reached AS (
    -- One row per attempt: the highest step of earlier attempts.
    SELECT cluster, job_id, in_attempt,
           max(max(step)) OVER (PARTITION BY cluster, job_id ORDER BY in_attempt ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
               AS reached_before
    FROM placed
    WHERE in_attempt IS NOT NULL
    GROUP BY cluster, job_id, in_attempt
), ordered AS (
    -- One row per report, beside what the rank did before.
    SELECT p.*, e.reached_before,
           max(p.step) OVER earlier                     AS rank_reached,
           max(p.begin_us + p.duration_us) OVER earlier AS previous_end_us
    FROM placed p
    LEFT JOIN reached e ON e.cluster = p.cluster AND e.job_id = p.job_id AND e.in_attempt = p.in_attempt
    WINDOW earlier AS (PARTITION BY p.cluster, p.job_id, p.in_attempt, p.rank ORDER BY p.begin_us, p.step, p.duration_us, p.seq
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), clipped AS (
    -- The same rows, clipped to the attempt and to the step before.
    SELECT *,
           least(greatest(begin_us, from_limit_us, previous_end_us), to_limit_us) AS from_us,
           least(greatest(from_limit_us, previous_end_us), to_limit_us)           AS since_us,
           CASE WHEN coalesce(step <= rank_reached, false) OR coalesce(step <= reached_before, false) THEN 1 ELSE 0 END AS is_redone
    FROM ordered
), timed AS (
    -- The same rows, with the length; NULL outside attempts.
    SELECT *, CASE WHEN in_attempt IS NOT NULL THEN greatest(least(begin_us + duration_us, to_limit_us) - from_us, 0) END AS used_us
    FROM clipped
), divided AS (
    -- The same rows, with the parts as a struct.
    SELECT *, split_step(used_us, is_redone, restore_us, checkpoint_us, data_wait_us, communication_us, compute_us) AS parts
    FROM timed
)
SELECT cluster, job_id, in_attempt AS attempt, in_run AS run, rank, step,
       CASE WHEN in_attempt IS NOT NULL
            THEN plus_ms(arrow_cast(0, 'Timestamp(Microsecond, Some("UTC"))'), from_us / 1000) END AS from_time,
       used_us,
       CASE WHEN in_attempt IS NOT NULL THEN from_us - since_us END AS before_us,
       CASE WHEN in_attempt IS NULL THEN NULL
            WHEN rank_reached IS NULL THEN CASE in_run WHEN 0 THEN 'startup' ELSE 'recovery' END
            WHEN step <= rank_reached THEN 'recovery'
            ELSE 'other' END AS before,
       CASE WHEN in_attempt IS NOT NULL THEN is_redone END AS is_redone,
       parts['restore_us'] AS restore_us, parts['redone_us'] AS redone_us, parts['checkpoint_us'] AS checkpoint_us,
       parts['data_stall_us'] AS data_stall_us, parts['communication_stall_us'] AS communication_stall_us,
       parts['productive_us'] AS productive_us
FROM divided
