--! name    = "gang_spread"
--! doc     = "Number of switches and racks that each attempt with several nodes was spread over, with its mean step time if the job reports steps."
--! question = "Are jobs that are spread over more switches slower?"
--! example  = "SELECT job_name, node_count, switches, count(*) AS attempts, sum(step_us) / nullif(sum(step_reports), 0) / 1000 AS mean_step_ms FROM gang_spread WHERE from_time >= now() - INTERVAL '30 days' GROUP BY job_name, node_count, switches ORDER BY job_name, node_count, switches LIMIT 100"
--! sources = ["attempts", "node_events", "training_1m"]
--! [columns]
--! cluster         = "Cluster."
--! job_id          = "Job."
--! attempt         = "Number of the attempt, from 0."
--! team            = "Account, group or virtual cluster."
--! pool            = "Partition, queue or node pool."
--! job_name        = "Name given by the user."
--! gpus_milli      = "Thousandths of a GPU held."
--! node_count      = "Number of nodes."
--! labeled_nodes   = "Nodes of known location; the counts cover these."
--! switches        = "Switches that they are connected to; NULL if none is known."
--! racks           = "Racks that they are in; NULL if none is known."
--! from_time       = "Start of the attempt."
--! to_time         = "End of the attempt; NULL while it runs."
--! steps_known     = "Steps of rank 0 in whole minutes of the attempt; 0 if none were reported."
--! step_reports    = "Reports of all ranks in these minutes: the denominator."
--! step_us         = "Time of these reports, µs: the numerator. Mean step time is step_us / step_reports."
WITH gangs AS (
    -- One row per attempt on several nodes.
    SELECT cluster, job_id, attempt, team, pool, job_name, gpus_milli, nodes, node_count, from_time, to_time,
           coalesce(to_time, as_of) AS known_to
    FROM attempts
    WHERE from_time IS NOT NULL AND node_count > 1 AND nodes IS NOT NULL
), gang_nodes AS (
    -- One row per attempt and node.
    SELECT cluster, job_id, attempt, from_time, unnest(string_to_array(nodes, ',')) AS node FROM gangs
), labels AS (
    -- One row per reported location of a node.
    SELECT cluster, node, event_time, max(rack) AS rack, max(switch) AS switch,
           lag(event_time) OVER of_node AS before, lead(event_time) OVER of_node AS to_time
    FROM node_events
    WHERE kind = 'NODE_LABELED'
    GROUP BY cluster, node, event_time
    WINDOW of_node AS (PARTITION BY cluster, node ORDER BY event_time)
), spread AS (
    -- One row per attempt: its switches and racks.
    SELECT p.cluster, p.job_id, p.attempt, count(*) AS labeled_nodes,
           nullif(count(DISTINCT l.switch), 0) AS switches, nullif(count(DISTINCT l.rack), 0) AS racks
    FROM gang_nodes p
    -- The first reported location also counts for the time before it: topologies are usually
    -- recorded after the fact.
    JOIN labels l ON l.cluster = p.cluster AND l.node = p.node
     AND (l.before IS NULL OR l.event_time <= p.from_time) AND (l.to_time IS NULL OR l.to_time > p.from_time)
    GROUP BY p.cluster, p.job_id, p.attempt
), step_sums AS (
    -- One row per attempt: steps in whole minutes that no other attempt shares.
    SELECT g.cluster, g.job_id, g.attempt, sum(t.steps_rank_0) AS steps_known, sum(t.reports) AS step_reports, sum(t.duration_us) AS step_us
    FROM gangs g
    JOIN training_1m t ON t.cluster = g.cluster AND t.job_id = g.job_id
     AND t.window_start >= g.from_time AND plus_ms(t.window_start, 60000) <= g.known_to
    GROUP BY g.cluster, g.job_id, g.attempt
)
SELECT g.cluster, g.job_id, g.attempt, g.team, g.pool, g.job_name, g.gpus_milli, g.node_count,
       coalesce(s.labeled_nodes, 0) AS labeled_nodes, s.switches, s.racks, g.from_time, g.to_time,
       coalesce(t.steps_known, 0) AS steps_known, coalesce(t.step_reports, 0) AS step_reports, t.step_us
FROM gangs g
LEFT JOIN spread s ON s.cluster = g.cluster AND s.job_id = g.job_id AND s.attempt = g.attempt
LEFT JOIN step_sums t ON t.cluster = g.cluster AND t.job_id = g.job_id AND t.attempt = g.attempt
