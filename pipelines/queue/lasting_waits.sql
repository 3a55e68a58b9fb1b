--! name    = "lasting_waits"
--! doc     = "Waits that began on an earlier UTC day and still last under the constraint that bound at midnight. Few rows, stored before others are read, so that files without any of them are skipped."
--! question = "How many jobs have waited since before midnight under one constraint?"
--! example  = "SELECT count(*) AS waits, min(waited_from) AS longest_from FROM lasting_waits"
--! sources = ["pending_days", "newest_pending_day"]
--! once    = true
--! [columns]
--! cluster     = "Cluster."
--! job_id      = "Job."
--! waited_from = "Start of the wait."
--! is_lasting  = "1."
SELECT cluster, job_id, waited_from, 1 AS is_lasting
FROM pending_days
WHERE is_cut = 1 AND until IS NULL
UNION ALL
-- Observed up to midnight exactly: no later day has a piece that goes on.
SELECT d.cluster, d.job_id, d.waited_from, 1
FROM newest_pending_day n
JOIN pending_days d ON d.cluster = n.cluster AND d.window_start = n.window_start
WHERE d.is_cut = 1 AND d.lasts = 1 AND d.until IS NOT NULL
