--! name    = "watched"
--! doc     = "Time from which agents monitor the GPUs of a cluster. From then on the ledger has minutes of GPUs; before, only what jobs, nodes and pools report."
--! question = "Since when do agents monitor the GPUs of a cluster?"
--! example  = "SELECT cluster, from_time FROM watched ORDER BY cluster"
--! sources = ["node_events"]
--! [columns]
--! cluster   = "Cluster."
--! from_time = "Start of the UTC minute in which the first agent of the cluster reported its start."
--! to_time   = "NULL: monitoring does not end. While no agent reports, GPU activity is unknown."
SELECT cluster, window_of(min(event_time), 60000) AS from_time,
       arrow_cast(NULL, 'Timestamp(Microsecond, Some("UTC"))') AS to_time
FROM node_events
WHERE kind = 'COLLECTOR_STARTED'
GROUP BY cluster
