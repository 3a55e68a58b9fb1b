--! name    = "node_faults"
--! doc     = "Faults of nodes over time."
--! question = "Which nodes fail most, and of what?"
--! example  = "SELECT node, fault_class, count(*) AS faults, max(from_time) AS latest FROM node_faults WHERE from_time >= now() - INTERVAL '30 days' GROUP BY node, fault_class ORDER BY faults DESC LIMIT 20"
--! sources = ["node_events"]
--! [columns]
--! cluster     = "Cluster."
--! node        = "Node."
--! fault_id    = "Fault."
--! fault_level = "Severity in the words of the source."
--! fault_class = "Kind of fault in the words of the source."
--! description = "Description by the source."
--! from_time   = "Start of the fault."
--! to_time     = "End; NULL while it lasts."
SELECT cluster, node, fault_id,
       latest(fault_level, event_time) AS fault_level,
       latest(fault_class, event_time) AS fault_class,
       latest(description, event_time) AS description,
       min(event_time) FILTER (WHERE kind = 'FAULT_STARTED') AS from_time,
       max(event_time) FILTER (WHERE kind = 'FAULT_ENDED') AS to_time
FROM node_events
WHERE fault_id IS NOT NULL
GROUP BY cluster, node, fault_id
