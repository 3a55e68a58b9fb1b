--! name    = "node_states"
--! doc     = "States of nodes over time, in the scheduler's words."
--! question = "When were nodes down or drained, and why?"
--! example  = "SELECT node, state, reason, from_time, to_time FROM node_states WHERE state LIKE '%DRAIN%' OR state LIKE '%DOWN%' ORDER BY from_time DESC LIMIT 100"
--! sources = ["node_events"]
--! [columns]
--! cluster   = "Cluster."
--! node      = "Node."
--! state     = "State in the scheduler's words."
--! reason    = "Reason given by the scheduler; NULL if none."
--! from_time = "Start of the state, as far as it is known."
--! to_time   = "Start of the next state; NULL for the latest."
WITH reports AS (
    -- One row per node and time at which a state was reported; two sources at one time count as
    -- one.
    SELECT cluster, node, event_time, max(state) AS state, max(coalesce(reason, '')) AS reason
    FROM node_events
    WHERE kind = 'STATE_CHANGED'
    GROUP BY cluster, node, event_time
), compared AS (
    -- The same rows, beside the state before.
    SELECT *,
           lag(event_time) OVER of_node AS before, lag(state) OVER of_node AS state_before, lag(reason) OVER of_node AS reason_before
    FROM reports
    WINDOW of_node AS (PARTITION BY cluster, node ORDER BY event_time)
)
SELECT cluster, node, state, nullif(reason, '') AS reason, event_time AS from_time,
       lead(event_time) OVER (PARTITION BY cluster, node ORDER BY event_time) AS to_time
FROM compared
WHERE before IS NULL OR (state IS DISTINCT FROM state_before) OR reason <> reason_before
