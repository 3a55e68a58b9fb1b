--! name    = "node_health"
--! doc     = "How each node stands by its devices and faults, as last said; a node nothing was ever said of is not here."
--! question = "Which nodes are probably bad, since when, and what speaks against them?"
--! example  = "SELECT node, state, bad_ppm / 10000 AS bad_percent, gpu_uuid, since_time, evidence FROM node_health WHERE state <> 'HEALTHY' ORDER BY bad_ppm DESC LIMIT 50"
--! sources = ["node_signals"]
--! per     = ["cluster", "node"]
--! key     = ["cluster", "node"]
--! [columns]
--! cluster     = "Cluster."
--! node        = "Node."
--! state       = "HEALTHY, WATCH (look before the next large job), BAD (drain when it is free), or FAILED (a device is lost or must be reset)."
--! bad_ppm     = "Probability that the node is bad, millionths."
--! gpu_uuid    = "Device of the strongest evidence, by its UUID."
--! gpu_index   = "Number of that device in its node."
--! evidence    = "What speaks against it, strongest first: rule, value and weight in log odds."
--! since_time  = "Since when it is in this state."
--! said_time   = "When it was last said."
--! changes     = "How often its state changed so far."
--! model       = "Version of the rules."
WITH compared AS (
    SELECT *,
           lag(state) OVER (PARTITION BY cluster, node ORDER BY event_time, state, bad_ppm) AS before,
           row_number() OVER (PARTITION BY cluster, node ORDER BY event_time DESC, state DESC, bad_ppm DESC, evidence) AS place
    FROM node_signals
), changed AS (
    SELECT cluster, node,
           max(event_time) FILTER (WHERE state IS DISTINCT FROM before) AS since_time,
           count(*) FILTER (WHERE state IS DISTINCT FROM before) AS changes
    FROM compared
    GROUP BY cluster, node
)
SELECT c.cluster, c.node, c.state, c.bad_ppm, c.gpu_uuid, c.gpu_index, c.evidence,
       h.since_time, c.event_time AS said_time, h.changes, c.model
FROM compared c
JOIN changed h ON h.cluster = c.cluster AND h.node = c.node
WHERE c.place = 1
