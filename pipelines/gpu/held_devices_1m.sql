--! name    = "held_devices_1m"
--! doc     = "Devices that jobs held, per UTC minute: one row per minute, job and device, from device_holds. A hold without a reported end ends with its job, or lasts up to the last sample or observation."
--! question = "Which devices did a job hold in a given minute, and for how much of it?"
--! example  = "SELECT window_start, device, held_us / 1000000.0 AS held_s, is_whole FROM held_devices_1m WHERE job_id = '4711' ORDER BY window_start DESC, device LIMIT 20"
--! sources = ["device_holds"]
--! [columns]
--! window_start = "Start of the UTC minute."
--! cluster      = "Cluster."
--! job_id       = "Job."
--! device       = "Name of the device, as in device_holds."
--! is_whole     = "1 if all holds of the job in the minute are known to cover the whole device, else 0."
--! held_us      = "Time held in the minute, µs; at most 60,000,000."
WITH spans AS (
    -- One row per hold, with an end.
    SELECT cluster, job_id, device, is_whole, from_time,
           coalesce(to_time, job_end_time, greatest(sampled_to, job_as_of)) AS to_time
    FROM device_holds
), minutes AS (
    -- One row per hold and minute that it touches.
    SELECT *, unnest(window_starts(from_time, to_time, 60000, from_time, to_time)) AS window_start FROM spans
)
SELECT window_start, cluster, job_id, device, min(is_whole) AS is_whole,
       least(sum(ms_between(greatest(from_time, window_start), least(to_time, plus_ms(window_start, 60000)))) * 1000, 60000000)
           AS held_us
FROM minutes
GROUP BY window_start, cluster, job_id, device
