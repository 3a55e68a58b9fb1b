--! name    = "node_capacity"
--! doc     = "GPUs of each node over time, and whether jobs could start on it. The capacity that a fleet is measured against."
--! question = "How many GPUs are there, and how many of them can jobs use?"
--! example  = "SELECT cluster, pool, gpu_model, sum(gpus_milli) / 1000 AS gpus, coalesce(sum(gpus_milli) FILTER (WHERE is_usable = 1), 0) / 1000 AS usable_gpus FROM node_capacity WHERE to_time IS NULL GROUP BY cluster, pool, gpu_model ORDER BY gpus DESC"
--! sources = ["node_events"]
--! once    = true
--! [columns]
--! cluster    = "Cluster."
--! node       = "Node."
--! pool       = "Pools the node is in, comma separated."
--! gpu_model  = "Model of its GPUs."
--! gpus_milli = "Its GPUs, thousandths."
--! state      = "State of the node in the scheduler's words; NULL if not reported."
--! is_usable  = "1 if jobs may start on the node, or no state is reported. 0 if it is down, drained, reserved, powered down, or in any state not known to be good."
--! health     = "schedulable: jobs may start. unhealthy: down, failing or not responding. drained: not usable for any other reason, such as drained, reserved or powered off."
--! from_time  = "Start."
--! to_time    = "End; NULL for the latest row."
WITH reports AS (
    -- One row per node and time at which its capacity or state was reported. A registration wins
    -- over a removal at the same time.
    SELECT cluster, node, event_time,
           max(CASE kind WHEN 'NODE_REGISTERED' THEN 1 WHEN 'NODE_REMOVED' THEN 0 END) AS is_there,
           max(pool)       FILTER (WHERE kind = 'NODE_REGISTERED') AS pool,
           max(gpu_model)  FILTER (WHERE kind = 'NODE_REGISTERED') AS gpu_model,
           max(gpus_milli) FILTER (WHERE kind = 'NODE_REGISTERED') AS gpus_milli,
           max(state)      FILTER (WHERE kind = 'STATE_CHANGED')   AS state
    FROM node_events
    WHERE kind IN ('NODE_REGISTERED', 'NODE_REMOVED', 'STATE_CHANGED')
    GROUP BY cluster, node, event_time
), states AS (
    -- The same rows, with missing values filled from earlier reports.
    SELECT cluster, node, event_time,
           last_value(is_there)   IGNORE NULLS OVER so_far AS is_there,
           last_value(pool)       IGNORE NULLS OVER so_far AS pool,
           last_value(gpu_model)  IGNORE NULLS OVER so_far AS gpu_model,
           last_value(gpus_milli) IGNORE NULLS OVER so_far AS gpus_milli,
           last_value(state)      IGNORE NULLS OVER so_far AS state,
           lead(event_time) OVER (PARTITION BY cluster, node ORDER BY event_time) AS to_time
    FROM reports
    WINDOW so_far AS (PARTITION BY cluster, node ORDER BY event_time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), usable_states AS (
    -- The same rows; is_usable = 1 if jobs may start on the node.
    SELECT *,
           CASE WHEN state IS NULL OR regexp_like(state, '^(UP|IDLE|MIXED|ALLOCATED)([+](CLOUD|DYNAMIC_NORM|PLANNED|COMPLETING))*$')
                THEN 1 ELSE 0 END AS is_usable
    FROM states
)
SELECT cluster, node, pool, gpu_model, gpus_milli, state, is_usable,
       -- A state may combine several words (`IDLE+DRAIN`); a trailing mark is a node that does not
       -- respond.
       CASE WHEN is_usable = 1 THEN 'schedulable'
            WHEN regexp_like(state, 'DOWN|FAIL|ERROR|NO_RESPOND|UNKNOWN|[*]') AND NOT regexp_like(state, 'POWER(ED|ING)?_DOWN') THEN 'unhealthy'
            ELSE 'drained' END AS health,
       event_time AS from_time, to_time
FROM usable_states
WHERE is_there = 1 AND gpus_milli IS NOT NULL
