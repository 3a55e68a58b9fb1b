--! name    = "collectors"
--! doc     = "What collectors report about themselves and their clocks: one row per source and node."
--! question = "Which collectors are silent, lose records or have a wrong clock?"
--! example  = "SELECT source, node, last_time, stopped_time, records_dropped, conflicts, clock_skew_ms FROM collectors WHERE last_time < now() - INTERVAL '15 minutes' OR records_dropped > 0 OR abs(clock_skew_ms) > 1000 ORDER BY last_time LIMIT 100"
--! sources = ["node_events"]
--! [columns]
--! cluster           = "Cluster."
--! source            = "The collector."
--! node              = "Node that it reports on."
--! lives             = "Epochs of the collector that are known."
--! first_time        = "First report, by the collector's own clock."
--! last_time         = "Latest node event from the collector; GPU samples do not count."
--! started_time      = "Latest start; NULL if not known."
--! stopped_time      = "Latest orderly stop. Earlier than started_time if the collector runs or was killed."
--! program_version   = "Latest version."
--! conflicts         = "How often another collector reported under the name of this node."
--! records_dropped   = "Records that it dropped because the log did not accept them in time."
--! clock_steps       = "How often the clock of the node was set."
--! clock_step_max_ms = "Largest step of the clock in either direction, ms."
--! clock_skew_ms     = "Clock of the node minus clock of the log, ms, as last reported."
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
