--! name    = "newest_pending_day"
--! doc     = "The newest day of pending_days in each cluster."
--! question = "Up to which day is it known why jobs of a cluster wait?"
--! example  = "SELECT cluster, window_start FROM newest_pending_day ORDER BY window_start DESC"
--! sources = ["pending_days"]
--! once    = true
--! [columns]
--! cluster      = "Cluster."
--! window_start = "Start of the UTC day."
SELECT cluster, max(window_start) AS window_start
FROM pending_days
GROUP BY cluster
