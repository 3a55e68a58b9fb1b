--! name    = "node_places"
--! doc     = "Location of each node over time: rack and switches as reported at the time. topology has the latest location."
--! question = "Where was each node at a past time?"
--! example  = "SELECT node, rack, switch, from_time, to_time FROM node_places WHERE node = 'gpu-01' ORDER BY from_time NULLS FIRST"
--! sources = ["node_events"]
--! once    = true
--! [columns]
--! cluster        = "Cluster."
--! node           = "Node."
--! rack           = "Rack; NULL if not reported."
--! switch         = "Switch that the node was connected to; NULL if not reported."
--! switches_above = "Switches above that one, lowest first, comma separated."
--! from_time      = "Start; NULL for the first reported location, which also counts for the time before, because topologies are usually recorded after the fact."
--! to_time        = "End; NULL for the latest row."
WITH reports AS (
    -- One row per node and time at which its location was reported.
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
FROM reports
WINDOW of_node AS (PARTITION BY cluster, node ORDER BY event_time),
       so_far AS (PARTITION BY cluster, node ORDER BY event_time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
