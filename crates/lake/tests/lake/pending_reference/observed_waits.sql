--! name    = "observed_waits"
--! doc     = "Time in which jobs of a cluster waited: from the start of its first wait to the end of its last, or the time up to which that was observed."
--! question = "From when to when are waits of a cluster known?"
--! example  = "SELECT cluster, from_time, to_time FROM observed_waits ORDER BY cluster"
--! sources = ["waits"]
--! [columns]
--! cluster   = "Cluster."
--! from_time = "Start of its first wait."
--! to_time   = "End of its last wait; while that lasts, the time up to which the cluster was observed."
SELECT cluster, min(from_time) AS from_time, max(coalesce(to_time, as_of)) AS to_time
FROM waits
GROUP BY cluster
