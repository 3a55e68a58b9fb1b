--! name    = "topology"
--! doc     = "Where each node stands: rack and switches, as last told, and since when."
--! question = "In which racks and on which switches are the nodes?"
--! example  = "SELECT cluster, rack, switch, count(*) AS nodes FROM topology GROUP BY cluster, rack, switch ORDER BY cluster, rack, switch"
--! sources = ["node_events"]
--! [columns]
--! cluster        = "Cluster."
--! node           = "Node."
--! rack           = "Rack; NULL if nobody told."
--! switch         = "Switch that the node is connected to; NULL if nobody told."
--! switches_above = "Switches above that one, from the lowest up, comma separated."
--! since          = "Since when; what was told first is taken to hold for the time before, too."
SELECT cluster, node,
       latest(rack, event_time) AS rack,
       latest(switch, event_time) AS switch,
       latest(switches_above, event_time) AS switches_above,
       max(event_time) AS since
FROM node_events
WHERE kind = 'NODE_LABELED'
GROUP BY cluster, node
