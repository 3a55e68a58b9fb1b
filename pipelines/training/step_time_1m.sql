--! name    = "step_time_1m"
--! stored  = false
--! doc     = "Reported step time of jobs on each node, per UTC minute: rank x ms in steps and in their parts, which are those of step_parts. An intermediate step; not stored."
--! sources = ["steps", "attempt_steps"]
--! window  = "1m"
--! key     = ["window_start", "cluster", "job_id", "node"]
--! [extents]
--! steps         = { from = "event_time", to = "plus_ms(event_time, duration_us / 1000)" }
--! attempt_steps = { from = "from_time", to = "to_time" }
WITH placed AS (
    -- One row per minute and report, with the attempt it belongs to.
    SELECT s.window_start, s.cluster, s.job_id, coalesce(s.node, '') AS node, s.duration_us, s.compute_us, s.communication_us, s.data_wait_us,
           s.checkpoint_us, ms_between(s.clip_from, s.clip_to) AS step_ms, least(coalesce(s.restore_us, 0), s.duration_us) AS restore,
           CASE WHEN s.step <= a.redone_step THEN 1 ELSE 0 END AS is_redone
    FROM steps s
    LEFT JOIN attempt_steps a ON a.window_start = s.window_start AND a.cluster = s.cluster AND a.job_id = s.job_id
                             AND s.event_time >= a.from_time AND coalesce(s.event_time < a.to_time, true)
), redone AS (
    -- The same rows, divided into redone and fresh time.
    SELECT *, CASE is_redone WHEN 1 THEN duration_us - restore ELSE 0 END AS redone,
           CASE is_redone WHEN 1 THEN 0 ELSE duration_us - restore END    AS fresh
    FROM placed
), saved AS (
    -- The same rows, with the part for saving.
    SELECT *, least(coalesce(checkpoint_us, 0), fresh) AS checkpoint FROM redone
), stalled AS (
    -- The same rows, with the part for input.
    SELECT *, least(coalesce(data_wait_us, 0), fresh - checkpoint) AS data_stall FROM saved
), left_over AS (
    -- The same rows, with the time left.
    SELECT *, fresh - checkpoint - data_stall AS left_us FROM stalled
), parts AS (
    -- The same rows, with communication that computing does not hide.
    SELECT window_start, cluster, job_id, node, step_ms, duration_us, restore, redone, checkpoint, data_stall,
           least(coalesce(communication_us, 0), left_us - least(coalesce(compute_us, 0), left_us)) AS communication
    FROM left_over
)
SELECT window_start, cluster, job_id, node, sum(step_ms)    AS step_ms,
       sum(share_of(restore, 0, step_ms, duration_us))       AS restore_ms,
       sum(share_of(redone, 0, step_ms, duration_us))        AS redone_ms,
       sum(share_of(checkpoint, 0, step_ms, duration_us))    AS checkpoint_ms,
       sum(share_of(data_stall, 0, step_ms, duration_us))    AS data_ms,
       sum(share_of(communication, 0, step_ms, duration_us)) AS communication_ms
FROM parts
GROUP BY window_start, cluster, job_id, node
