--! name    = "topology"
--! doc     = "Location of each node: rack and switches as last reported."
--! question = "In which racks and on which switches are the nodes?"
--! example  = "SELECT cluster, rack, switch, count(*) AS nodes FROM topology GROUP BY cluster, rack, switch ORDER BY cluster, rack, switch"
--! sources = ["node_events"]
--! [columns]
--! cluster        = "Cluster."
--! node           = "Node."
--! rack           = "Rack; NULL if not reported."
--! switch         = "Switch that the node is connected to; NULL if not reported."
--! switches_above = "Switches above that one, lowest first, comma separated."
--! since          = "Time of that report. The first reported location also counts for the time before it."
SELECT cluster, node,
       latest(rack, event_time) AS rack,
       latest(switch, event_time) AS switch,
       latest(switches_above, event_time) AS switches_above,
       max(event_time) AS since
FROM node_events
WHERE kind = 'NODE_LABELED'
GROUP BY cluster, node
