--! name    = "node_health"
--! version = 2
--! doc     = "Health of each node by its devices and faults, latest statement. A node without any statement is not in the table. Lemons, nodes that fail again and again, are judged at midnight (UTC) by their last 28 days."
--! question = "Which nodes are probably bad or fail again and again, since when, and what is the evidence?"
--! example  = "SELECT node, state, bad_ppm / 10000 AS bad_percent, is_lemon, bad_hours, used_hours, gpu_uuid, since_time, evidence FROM node_health WHERE state <> 'HEALTHY' ORDER BY bad_ppm DESC LIMIT 50"
--! sources = ["node_signals"]
--! per     = ["cluster", "node"]
--! key     = ["cluster", "node"]
--! [columns]
--! cluster     = "Cluster."
--! node        = "Node."
--! state       = "HEALTHY, WATCH (inspect before the next large job), BAD (drain when it is free), or FAILED (a device is lost or must be reset)."
--! bad_ppm     = "Probability that the node is bad, millionths."
--! gpu_uuid    = "UUID of the device with the strongest evidence."
--! gpu_index   = "Index of that device in its node."
--! evidence    = "Evidence against the node, strongest first: rule, value and weight in log odds."
--! since_time  = "Start of this state."
--! said_time   = "Latest statement."
--! changes     = "Number of changes of the state so far."
--! model       = "Version of the rules."
--! is_lemon    = "1 for a lemon: with probability above 0.95 its rate of bad hours exceeds three times the fleet's, so keep jobs off it. 0 if it was one; NULL if it never was."
--! lemon_ppm   = "That probability, millionths."
--! lemon_least_milli = "Lower bound: with probability 0.95 its rate is at least this many thousandths of the fleet's; NULL if it is not a lemon."
--! used_hours  = "Hours of the 28 days in which it held work."
--! bad_hours   = "Part of these hours with a confirmed slow part of a job, an XID not caused by the program, a lost device, a fault, or a job that the node ended."
WITH compared AS (
    -- One row per statement, beside the state before; place 1 is the latest.
    SELECT *,
           lag(state) OVER (PARTITION BY cluster, node ORDER BY event_time, state, bad_ppm) AS before,
           row_number() OVER (PARTITION BY cluster, node ORDER BY event_time DESC, state DESC, bad_ppm DESC, evidence, lemon_ppm DESC) AS place
    FROM node_signals
), changed AS (
    -- One row per node.
    SELECT cluster, node,
           max(event_time) FILTER (WHERE state IS DISTINCT FROM before) AS since_time,
           count(*) FILTER (WHERE state IS DISTINCT FROM before) AS changes
    FROM compared
    GROUP BY cluster, node
)
SELECT c.cluster, c.node, c.state, c.bad_ppm, c.gpu_uuid, c.gpu_index, c.evidence,
       h.since_time, c.event_time AS said_time, h.changes, c.model,
       CASE WHEN c.lemon_ppm > 950000 THEN 1 WHEN c.lemon_ppm IS NOT NULL THEN 0 END AS is_lemon,
       c.lemon_ppm, c.lemon_least_milli, c.used_hours, c.bad_hours
FROM compared c
JOIN changed h ON h.cluster = c.cluster AND h.node = c.node
WHERE c.place = 1
