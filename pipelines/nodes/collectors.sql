--! name    = "collectors"
--! doc     = "What collectors said of themselves and of the clocks they go by: one row per source and node."
--! question = "Which collectors are silent, lose records or have a wrong clock?"
--! example  = "SELECT source, node, last_time, stopped_time, records_dropped, conflicts, clock_skew_ms FROM collectors WHERE last_time < now() - INTERVAL '15 minutes' OR records_dropped > 0 OR abs(clock_skew_ms) > 1000 ORDER BY last_time LIMIT 100"
--! sources = ["node_events"]
--! [columns]
--! cluster           = "Cluster."
--! source            = "The collector."
--! node              = "Node it speaks of."
--! lives             = "Lives (epochs) of it that are known."
--! first_time        = "When it was first heard of, by its own clock."
--! last_time         = "When it last told of a node; samples of devices are not looked at."
--! started_time      = "When it last started; NULL if that is not known."
--! stopped_time      = "When it last stopped in good order; before started_time if it runs, or was killed."
--! program_version   = "Its latest version."
--! conflicts         = "How often another collector reported under this node's name."
--! records_dropped   = "Records it dropped since the log did not take them in time."
--! clock_steps       = "How often the node's clock was set."
--! clock_step_max_ms = "Farthest it was set, forwards or backwards, ms."
--! clock_skew_ms     = "Node's clock less the log's, ms, when last told."
SELECT cluster, source, node,
       count(DISTINCT epoch) AS lives,
       min(event_time) AS first_time,
       max(event_time) AS last_time,
       max(event_time) FILTER (WHERE kind = 'COLLECTOR_STARTED') AS started_time,
       max(event_time) FILTER (WHERE kind = 'COLLECTOR_STOPPED') AS stopped_time,
       latest(program_version, event_time) AS program_version,
       count(*) FILTER (WHERE kind = 'COLLECTOR_CONFLICT') AS conflicts,
       coalesce(sum("count") FILTER (WHERE kind = 'RECORDS_DROPPED'), 0) AS records_dropped,
       count(*) FILTER (WHERE kind = 'CLOCK_STEPPED') AS clock_steps,
       max(abs(amount_ms)) FILTER (WHERE kind = 'CLOCK_STEPPED') AS clock_step_max_ms,
       latest(amount_ms, event_time) FILTER (WHERE kind = 'CLOCK_SKEWED') AS clock_skew_ms
FROM node_events
GROUP BY cluster, source, node
HAVING count(*) FILTER (WHERE kind IN ('COLLECTOR_STARTED', 'COLLECTOR_STOPPED', 'COLLECTOR_CONFLICT', 'RECORDS_DROPPED',
                                       'CLOCK_STEPPED', 'CLOCK_SKEWED')) > 0
