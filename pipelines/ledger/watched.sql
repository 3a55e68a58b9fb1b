--! name    = "watched"
--! doc     = "From when on agents watch the GPUs of a cluster: from then the ledger knows minutes of GPUs, before it only what jobs, nodes and pools say."
--! question = "Since when do agents watch the GPUs of a cluster?"
--! example  = "SELECT cluster, from_time FROM watched ORDER BY cluster"
--! sources = ["node_events"]
--! [columns]
--! cluster   = "Cluster."
--! from_time = "Start of the UTC minute in which its first agent said that it had started."
--! to_time   = "NULL: it does not end. While no agent tells anything, what GPUs do is unknown."
SELECT cluster, window_of(min(event_time), 60000) AS from_time,
       arrow_cast(NULL, 'Timestamp(Microsecond, Some("UTC"))') AS to_time
FROM node_events
WHERE kind = 'COLLECTOR_STARTED'
GROUP BY cluster
