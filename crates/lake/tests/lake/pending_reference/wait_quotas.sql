--! name    = "wait_quotas"
--! doc     = "Quotas and limits that a waiting job would have exceeded: one row per open wait and state of quota_use in which the quota of the job's team or QOS had no room for the job."
--! question = "Which quotas kept a job waiting?"
--! example  = "SELECT owner, at, until, quota_gpus_milli / 1000 AS quota_gpus, held_gpus_milli / 1000 AS held_gpus FROM wait_quotas WHERE job_id = '4711' ORDER BY at"
--! sources = ["open_wait_hours", "quota_use", "observed_waits"]
--! [columns]
--! cluster          = "Cluster."
--! job_id           = "Job."
--! from_time        = "Start of the stretch of the wait."
--! known_to         = "End of the stretch, or the time up to which the cluster was observed."
--! owner            = "Owner of the quota: team, or qos/NAME."
--! at               = "Time from which the quota had no room for the job."
--! until            = "Time until which this state of the quota lasted, at most the last wait of the cluster."
--! quota_gpus_milli = "The quota, thousandths of a GPU."
--! held_gpus_milli  = "Held of the quota, thousandths of a GPU."
WITH clipped AS (
    -- One row per state of a quota, clipped to the observed time.
    SELECT q.*, greatest(q.from_time, o.from_time) AS clip_from, least(coalesce(q.to_time, o.to_time), o.to_time) AS clip_to
    FROM quota_use q JOIN observed_waits o ON o.cluster = q.cluster
), quota_hours AS (
    -- One row per state of a quota and hour that it touches.
    SELECT *, unnest(window_starts(clip_from, clip_to, 3600000, clip_from, clip_to)) AS hour FROM clipped WHERE clip_from < clip_to
), owners AS (
    -- Two rows per open wait and hour: for the quotas of its team and of its QOS.
    SELECT *, unnest(make_array(team, 'qos/' || qos)) AS owner FROM open_wait_hours
)
SELECT w.cluster, w.job_id, w.from_time, w.known_to, w.owner, greatest(q.clip_from, w.from_time) AS at, q.clip_to AS until,
       q.gpus_milli AS quota_gpus_milli, q.held_gpus_milli
FROM owners w
JOIN quota_hours q ON q.cluster = w.cluster AND q.owner = w.owner AND q.hour = w.hour
-- A wait and a state that share several hours meet once: in the first of them.
WHERE q.clip_from < w.known_to AND q.clip_to > w.from_time AND w.hour = window_of(greatest(q.clip_from, w.from_time), 3600000)
  AND q.held_gpus_milli + w.gpus_milli > q.gpus_milli AND (q.pool IS NULL OR q.pool = w.pool)
