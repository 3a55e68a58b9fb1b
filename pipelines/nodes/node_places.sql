--! name    = "node_places"
--! doc     = "Where each node stood, from when to when: rack and switches, as told at that time. topology has the latest of it."
--! question = "Where did each node stand at a time gone by?"
--! example  = "SELECT node, rack, switch, from_time, to_time FROM node_places WHERE node = 'gpu-01' ORDER BY from_time NULLS FIRST"
--! sources = ["node_events"]
--! once    = true
--! [columns]
--! cluster        = "Cluster."
--! node           = "Node."
--! rack           = "Rack; NULL if nobody told."
--! switch         = "Switch that the node was connected to; NULL if nobody told."
--! switches_above = "Switches above that one, from the lowest up, comma separated."
--! from_time      = "From when on; NULL for what was told first: it is taken to hold for the time before, too, for a topology is mostly written down after the fact."
--! to_time        = "Until when; NULL for the latest."
WITH told AS (
    SELECT cluster, node, event_time, max(rack) AS rack, max(switch) AS switch, max(switches_above) AS switches_above
    FROM node_events
    WHERE kind = 'NODE_LABELED'
    GROUP BY cluster, node, event_time
)
SELECT cluster, node,
       last_value(rack)           IGNORE NULLS OVER so_far AS rack,
       last_value(switch)         IGNORE NULLS OVER so_far AS switch,
       last_value(switches_above) IGNORE NULLS OVER so_far AS switches_above,
       CASE WHEN lag(event_time) OVER of_node IS NOT NULL THEN event_time END AS from_time,
       lead(event_time) OVER of_node AS to_time
FROM told
WINDOW of_node AS (PARTITION BY cluster, node ORDER BY event_time),
       so_far AS (PARTITION BY cluster, node ORDER BY event_time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
