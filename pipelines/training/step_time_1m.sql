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
    SELECT s.window_start, s.cluster, s.job_id, coalesce(s.node, '') AS node, ms_between(s.clip_from, s.clip_to) AS step_ms, s.duration_us,
           CASE WHEN s.step <= a.redone_step THEN 1 ELSE 0 END AS is_redone, coalesce(s.restore_us, 0) AS restore_us,
           coalesce(s.checkpoint_us, 0) AS checkpoint_us, coalesce(s.data_wait_us, 0) AS data_wait_us,
           coalesce(s.communication_us, 0) AS communication_us, s.compute_us
    FROM steps s
    LEFT JOIN attempt_steps a ON a.window_start = s.window_start AND a.cluster = s.cluster AND a.job_id = s.job_id
                             AND s.event_time >= a.from_time AND coalesce(s.event_time < a.to_time, true)
), divided AS (
    -- The same rows, with the parts of the whole step as a struct.
    SELECT window_start, cluster, job_id, node, step_ms, duration_us,
           split_step(duration_us, is_redone, restore_us, checkpoint_us, data_wait_us, communication_us, compute_us) AS parts
    FROM placed
)
SELECT window_start, cluster, job_id, node, sum(step_ms)                              AS step_ms,
       sum(share_of(parts['restore_us'], 0, step_ms, duration_us))             AS restore_ms,
       sum(share_of(parts['redone_us'], 0, step_ms, duration_us))              AS redone_ms,
       sum(share_of(parts['checkpoint_us'], 0, step_ms, duration_us))          AS checkpoint_ms,
       sum(share_of(parts['data_stall_us'], 0, step_ms, duration_us))          AS data_ms,
       sum(share_of(parts['communication_stall_us'], 0, step_ms, duration_us)) AS communication_ms
FROM divided
GROUP BY window_start, cluster, job_id, node
