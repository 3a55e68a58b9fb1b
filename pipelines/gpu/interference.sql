--! name    = "interference"
--! doc     = "Steps of a job and activity of its device before and after another job arrived on the same GPU, or on another MIG slice of it: one row per arrival and job that was already there. Interference is suspected, never proven: a new phase of the job, a checkpoint or a slow network may coincide. It is suspected if mean step time rose, or SM activity fell, by at least 10 % and by more than 3 standard errors of the difference of means: (m2 - m1) > 3 sqrt(s1²/n1 + s2²/n2), B. L. Welch, Biometrika 34 (1947) 28-35. Steps and minutes are treated as independent; where they drift, the error is too small."
--! question = "Did another job on the same GPU slow a job down?"
--! example  = "SELECT job_id, co_job_id, relation, arrival_time, step_change_ppm / 10000.0 AS step_change_percent, sm_change_ppm / 10000.0 AS sm_change_percent, evidence FROM interference WHERE is_suspected = 1 AND arrival_time >= now() - INTERVAL '7 days' ORDER BY arrival_time DESC LIMIT 20"
--! sources = ["gpu_spans", "steps", "gpu_1m"]
--! [columns]
--! cluster             = "Cluster."
--! node                = "Node."
--! device              = "The GPU, as in gpu_spans."
--! job_id              = "The job that was there first."
--! mig_uuid            = "MIG slice that it held; NULL for the whole GPU."
--! co_job_id           = "The job that arrived."
--! co_mig_uuid         = "MIG slice that it arrived on; NULL for the whole GPU."
--! relation            = "same_device, or mig_sibling: different slices of one GPU."
--! arrival_time        = "Time of the arrival."
--! before_from         = "Start of the window before the arrival: 10 minutes, less if a job came or left within them."
--! after_to            = "End of the window after the arrival: 10 minutes, less if a job came or left within them."
--! others_before       = "Other jobs on the GPU in the window before."
--! others_after        = "Other jobs on the GPU in the window after. One more than before, unless several came or left at the same moment; then no change can be attributed to one job."
--! steps_before        = "Steps of the job that lie within the window before; of several ranks the slowest counts."
--! step_us_before      = "Time of these steps, µs; the mean is this / steps_before. NULL without steps."
--! steps_after         = "Steps within the window after."
--! step_us_after       = "Time of these steps, µs."
--! step_change_ppm     = "Increase of the mean step time, millionths; NULL if step_reason is set."
--! step_error_us       = "Standard error of the difference of the means, µs: sqrt(s1²/n1 + s2²/n2)."
--! step_reason         = "Why steps are not conclusive: no_steps (none reported in these windows), few_steps (under 5 in one of them); NULL if they are."
--! minutes_before      = "Whole minutes of the window before in which SM activity of the job's GPU or slice is known."
--! sm_ppm_before       = "Sum of the mean SM activity of these minutes, millionths; the mean is this / minutes_before. NULL without minutes."
--! minutes_after       = "Such minutes of the window after."
--! sm_ppm_after        = "Sum of their mean SM activity."
--! sm_change_ppm       = "Relative change of the mean SM activity, millionths; NULL if sm_reason is set."
--! sm_error_ppm        = "Standard error of the difference of the means, millionths of SM activity."
--! sm_reason           = "Why SM activity is not conclusive: no_samples, few_minutes (under 3 in one window), others_before (several jobs were active before), activity_of_both (it did not fall, and after the arrival it includes both jobs); NULL if it is."
--! is_suspected        = "1 if either rule applies; 0 if what is known does not suggest interference; NULL if neither steps nor SM activity are conclusive."
--! evidence            = "step_time, sm_activity or both, comma separated; NULL if not suspected."
WITH shared_holds AS (
    -- One row per hold of a GPU that jobs may have shared.
    SELECT *, coalesce(mig_uuid, '') AS slice FROM gpu_spans WHERE is_met = 1
), times AS (
    -- One row per time at which a hold of the crowd began or ended.
    SELECT DISTINCT cluster, device, crowd, unnest(make_array(from_time, to_time)) AS at FROM shared_holds
), neighbours AS (
    -- The same rows, beside the times before and after.
    SELECT cluster, device, crowd, at, lag(at) OVER of_crowd AS at_before, lead(at) OVER of_crowd AS at_after
    FROM times
    WINDOW of_crowd AS (PARTITION BY cluster, device, crowd ORDER BY at)
), arrivals AS (
    -- One row per arrival of a job and job that was already there.
    SELECT v.cluster, v.device, v.crowd, v.job_id, v.slice, c.job_id AS co_job_id, a.at, max(v.node) AS node, max(v.gpu_uuid) AS gpu_uuid,
           max(c.slice) AS co_slice,
           max(CASE WHEN v.slice = c.slice OR v.slice = '' OR c.slice = '' THEN 1 ELSE 0 END) AS is_same,
           greatest(max(a.at_before), plus_ms(a.at, -600000)) AS before_from,
           least(max(a.at_after), plus_ms(a.at, 600000))      AS after_to
    FROM shared_holds c
    JOIN shared_holds v ON v.cluster = c.cluster AND v.device = c.device AND v.crowd = c.crowd AND v.job_id <> c.job_id
              AND v.from_time < c.from_time AND v.to_time > c.from_time
    JOIN neighbours a ON a.cluster = c.cluster AND a.device = c.device AND a.crowd = c.crowd AND a.at = c.from_time
    GROUP BY v.cluster, v.device, v.crowd, v.job_id, v.slice, c.job_id, a.at
), company AS (
    -- The same rows, with the number of other jobs before and after. A job that left at the moment
    -- of the arrival was there before it.
    SELECT a.cluster, a.device, a.job_id, a.slice, a.co_job_id, a.at,
           count(DISTINCT o.job_id) FILTER (WHERE o.from_time < a.at)                       AS others_before,
           count(DISTINCT o.job_id) FILTER (WHERE o.to_time > a.at)                         AS others_after,
           count(*) FILTER (WHERE o.from_time < a.at AND (o.slice = a.slice OR o.slice = '' OR a.slice = '')) AS beside_before
    FROM arrivals a
    JOIN shared_holds o ON o.cluster = a.cluster AND o.device = a.device AND o.crowd = a.crowd AND o.job_id <> a.job_id
              AND o.from_time <= a.at AND o.to_time >= a.at
    GROUP BY a.cluster, a.device, a.job_id, a.slice, a.co_job_id, a.at
), steps_nearby AS (
    -- One row per arrival and step in its windows; steps over 10 minutes fit into none.
    SELECT a.cluster, a.device, a.job_id, a.slice, a.co_job_id, a.at, s.step,
           CASE WHEN s.event_time < a.at THEN 1 ELSE 0 END AS is_before, max(s.duration_us) AS us
    FROM arrivals a
    JOIN (SELECT cluster, job_id, step, event_time, duration_us, plus_ms(event_time, (duration_us + 999) / 1000) AS end_time
          FROM steps WHERE duration_us BETWEEN 1 AND 600000000) s
      ON s.cluster = a.cluster AND s.job_id = a.job_id AND s.event_time >= a.before_from AND s.end_time <= a.after_to
     AND (s.end_time <= a.at OR s.event_time >= a.at)
    GROUP BY a.cluster, a.device, a.job_id, a.slice, a.co_job_id, a.at, s.step, 8
), step_sums AS (
    -- One row per arrival: count, sum and sum of squares of step time before (1) and after (2).
    SELECT cluster, device, job_id, slice, co_job_id, at,
           count(*) FILTER (WHERE is_before = 1) AS n1, sum(us) FILTER (WHERE is_before = 1) AS x1,
           sum(us * us) FILTER (WHERE is_before = 1) AS xx1,
           count(*) FILTER (WHERE is_before = 0) AS n2, sum(us) FILTER (WHERE is_before = 0) AS x2,
           sum(us * us) FILTER (WHERE is_before = 0) AS xx2
    FROM steps_nearby
    GROUP BY cluster, device, job_id, slice, co_job_id, at
), minutes AS (
    -- One row per minute and GPU or slice, with its SM activity.
    SELECT window_start, plus_ms(window_start, 60000) AS window_end, cluster, gpu_uuid, coalesce(mig_uuid, '') AS slice,
           part_of(1000000, 0, sum(sm_active_us), sum(sm_active_known_us)) AS ppm
    FROM gpu_1m
    GROUP BY window_start, cluster, gpu_uuid, mig_uuid
), activity_sums AS (
    -- One row per arrival: count, sum and sum of squares of activity before (1) and after (2).
    SELECT a.cluster, a.device, a.job_id, a.slice, a.co_job_id, a.at,
           count(*) FILTER (WHERE window_end <= at)    AS k1, sum(ppm) FILTER (WHERE window_end <= at)         AS y1,
           sum(ppm * ppm) FILTER (WHERE window_end <= at)   AS yy1,
           count(*) FILTER (WHERE window_start >= at)  AS k2, sum(ppm) FILTER (WHERE window_start >= at)       AS y2,
           sum(ppm * ppm) FILTER (WHERE window_start >= at) AS yy2
    FROM arrivals a
    JOIN minutes m ON m.cluster = a.cluster AND m.gpu_uuid = a.gpu_uuid AND m.slice = a.slice
                  AND m.window_start >= a.before_from AND m.window_end <= a.after_to AND m.ppm IS NOT NULL
    GROUP BY a.cluster, a.device, a.job_id, a.slice, a.co_job_id, a.at
), compared AS (
    -- One row per arrival, with the standard errors.
    SELECT a.*, c.others_before, c.others_after, c.beside_before,
           coalesce(s.n1, 0) AS n1, s.x1, coalesce(s.n2, 0) AS n2, s.x2, coalesce(m.k1, 0) AS k1, m.y1, coalesce(m.k2, 0) AS k2, m.y2,
           -- Variance of a mean: (sum of squares - sum² / n) / (n - 1) / n.
           CASE WHEN s.n1 > 4 AND s.n2 > 4
                THEN sqrt(greatest(s.xx1 - CAST(s.x1 AS DOUBLE) * s.x1 / s.n1, 0) / (s.n1 - 1) / s.n1
                        + greatest(s.xx2 - CAST(s.x2 AS DOUBLE) * s.x2 / s.n2, 0) / (s.n2 - 1) / s.n2) END AS step_error,
           CASE WHEN m.k1 > 2 AND m.k2 > 2
                THEN sqrt(greatest(m.yy1 - CAST(m.y1 AS DOUBLE) * m.y1 / m.k1, 0) / (m.k1 - 1) / m.k1
                        + greatest(m.yy2 - CAST(m.y2 AS DOUBLE) * m.y2 / m.k2, 0) / (m.k2 - 1) / m.k2) END AS sm_error
    FROM arrivals a
    JOIN company c ON c.cluster = a.cluster AND c.device = a.device AND c.job_id = a.job_id AND c.slice = a.slice
                  AND c.co_job_id = a.co_job_id AND c.at = a.at
    LEFT JOIN step_sums s ON s.cluster = a.cluster AND s.device = a.device AND s.job_id = a.job_id AND s.slice = a.slice
                       AND s.co_job_id = a.co_job_id AND s.at = a.at
    LEFT JOIN activity_sums m ON m.cluster = a.cluster AND m.device = a.device AND m.job_id = a.job_id AND m.slice = a.slice
                       AND m.co_job_id = a.co_job_id AND m.at = a.at
), tested AS (
    -- The same rows; is_slower and is_lower = 1 if the rule for steps or activity applies.
    SELECT *,
           CASE WHEN n1 + n2 = 0 THEN 'no_steps' WHEN step_error IS NULL THEN 'few_steps' END AS step_reason,
           CASE WHEN step_error IS NOT NULL
                 AND x2 * n1 * 10 >= x1 * n2 * 11 AND CAST(x2 AS DOUBLE) / n2 - CAST(x1 AS DOUBLE) / n1 > 3 * step_error
                THEN 1 ELSE 0 END AS is_slower,
           CASE WHEN sm_error IS NOT NULL AND beside_before = 0
                 AND y2 * k1 * 10 <= y1 * k2 * 9 AND CAST(y1 AS DOUBLE) / k1 - CAST(y2 AS DOUBLE) / k2 > 3 * sm_error
                THEN 1 ELSE 0 END AS is_lower
    FROM compared
), explained AS (
    -- The same rows, with the reason if activity is not conclusive.
    SELECT *,
           CASE WHEN k1 + k2 = 0 THEN 'no_samples' WHEN sm_error IS NULL THEN 'few_minutes' WHEN beside_before > 0 THEN 'others_before'
                WHEN is_same = 1 AND is_lower = 0 THEN 'activity_of_both' END AS sm_reason
    FROM tested
)
SELECT cluster, node, device, job_id, nullif(slice, '') AS mig_uuid, co_job_id, nullif(co_slice, '') AS co_mig_uuid,
       CASE is_same WHEN 1 THEN 'same_device' ELSE 'mig_sibling' END AS relation,
       at AS arrival_time, before_from, after_to, others_before, others_after,
       n1 AS steps_before, x1 AS step_us_before, n2 AS steps_after, x2 AS step_us_after,
       CASE WHEN step_reason IS NULL THEN CAST(round((CAST(x2 AS DOUBLE) * n1 / n2 / x1 - 1) * 1000000) AS BIGINT) END AS step_change_ppm,
       CAST(round(step_error) AS BIGINT) AS step_error_us, step_reason,
       k1 AS minutes_before, y1 AS sm_ppm_before, k2 AS minutes_after, y2 AS sm_ppm_after,
       CASE WHEN sm_reason IS NULL AND y1 > 0
            THEN CAST(round((CAST(y2 AS DOUBLE) * k1 / k2 / y1 - 1) * 1000000) AS BIGINT) END AS sm_change_ppm,
       CAST(round(sm_error) AS BIGINT) AS sm_error_ppm, sm_reason,
       CASE WHEN is_slower = 1 OR is_lower = 1 THEN 1 WHEN step_reason IS NULL OR sm_reason IS NULL THEN 0 END AS is_suspected,
       nullif(concat_ws(',', CASE is_slower WHEN 1 THEN 'step_time' END, CASE is_lower WHEN 1 THEN 'sm_activity' END), '') AS evidence
FROM explained
