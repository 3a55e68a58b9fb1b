--! name    = "pending"
--! doc     = "Why each job waits or waited, stretch by stretch: the layer and the constraint that bound, with evidence. What the scheduler does not say is found from capacity, quotas, shapes and who is first in line. Waits add up to gpu_ms_queued of attempts exactly."
--! question = "Why is a job pending, since when, and what would start it?"
--! example  = "SELECT job_id, team, since, layer, constraint, evidence, starts_when FROM pending WHERE until IS NULL ORDER BY since LIMIT 20"
--! sources = ["waits", "pending_reasons", "pool_fit", "quota_use", "first_in_line", "job_events"]
--! [columns]
--! cluster                   = "Cluster."
--! job_id                    = "Job."
--! attempt                   = "Number of the attempt that the wait led to, from 0; NULL if it has not started."
--! team                      = "Account, group or virtual cluster."
--! user_name                 = "User who submitted the job."
--! pool                      = "Partition, queue or node pool."
--! qos                       = "Quality of service."
--! gpus_milli                = "Thousandths of a GPU asked for."
--! asked_nodes               = "Nodes asked for; NULL where the shape is not known."
--! asked_gpus_per_node_milli = "Thousandths of a GPU asked for on each; NULL where the shape is not known."
--! waited_from               = "When the whole wait began: the `begin` of gpu_ms() for parts of it."
--! since                     = "From when on this constraint bound."
--! until                     = "Until when; NULL while it does."
--! as_of                     = "While it does: up to when the cluster was observed."
--! layer                     = "1 reservation or quota, 2 provisioning, 3 scheduling, 4 workload; NULL where it is not known."
--! constraint                = "What bound, as in pending_reasons; NULL where it is not known."
--! reason                    = "The scheduler's reason; NULL where none is told."
--! evidence                  = "What it is concluded from, in words, with the numbers at the end of the stretch."
--! starts_when               = "What would start the job; NULL where the constraint is not known."
--! free_gpus_milli           = "Free in the pool at the end of the stretch; NULL where its nodes are not known, as the following ones."
--! largest_free_gpus         = "Most whole GPUs free on one node then."
--! free_nodes                = "Nodes with at least one GPU free then."
--! fitting_nodes             = "Nodes then with as many GPUs free as the job asks for on one; NULL where its shape is not known."
--! quota_gpus_milli          = "Quota that bound then; NULL where none did."
--! quota_held_gpus_milli     = "Held of that quota then."
--! gpu_ms_waited             = "GPU x ms asked for and waited in the stretch, up to as_of while it lasts."
WITH ends AS (
    SELECT cluster, job_id, waited_from, max(coalesce(to_time, as_of)) AS known_to FROM waits GROUP BY cluster, job_id, waited_from
), eligible_in AS (
    SELECT w.cluster, w.job_id, w.waited_from, max(e.event_time) AS at
    FROM ends w
    JOIN job_events e ON e.cluster = w.cluster AND e.job_id = w.job_id AND e.event_time >= w.waited_from AND e.event_time < w.known_to
    WHERE e.kind = 'ELIGIBLE' AND e.step_id IS NULL
    GROUP BY w.cluster, w.job_id, w.waited_from
), wait AS (
    -- A job that was requeued became eligible several times. What never started may have ended
    -- before it was.
    SELECT w.*, CASE WHEN w.attempt IS NULL THEN w.eligible_time ELSE e.at END AS eligible
    FROM waits w
    LEFT JOIN eligible_in e ON e.cluster = w.cluster AND e.job_id = w.job_id AND e.waited_from = w.waited_from
), asking AS (
    SELECT w.*, coalesce(w.to_time, w.as_of) AS known_to,
           -- Parts of a GPU need a device; how free devices are cut is not looked at.
           coalesce((w.asked_gpus_per_node_milli + 999) / 1000, 1) AS gpus_per_node,
           r.layer AS told_layer, r.constraint AS told_constraint, r.meaning AS told_meaning,
           CASE WHEN w.reason IS NULL OR r.constraint IN ('resources', 'priority') THEN 1 ELSE 0 END AS is_open
    FROM wait w
    LEFT JOIN pending_reasons r ON r.scheduler = 'slurm' AND r.reason = w.reason
    WHERE w.from_time < coalesce(w.to_time, w.as_of)
), bounds AS (
    SELECT cluster, min(from_time) AS low, max(coalesce(to_time, as_of)) AS high FROM waits GROUP BY cluster
), sizes AS (
    SELECT DISTINCT cluster, pool, largest_node_gpus FROM pool_fit
), open_hours AS (
    -- Only what the scheduler leaves open is looked into, hour by hour, so that a wait meets what
    -- changed while it lasted.
    SELECT a.cluster, a.job_id, a.team, a.qos, a.pool, a.gpus_milli, a.from_time, a.known_to,
           least(a.gpus_per_node, s.largest_node_gpus + 1) AS gpus,
           unnest(window_starts(a.from_time, a.known_to, 3600000, a.from_time, a.known_to)) AS hour
    FROM asking a
    LEFT JOIN sizes s ON s.cluster = a.cluster AND s.pool = coalesce(a.pool, '')
    WHERE a.is_open = 1 AND a.gpus_milli > 0
), fit_clipped AS (
    SELECT f.*, greatest(f.from_time, b.low) AS low, least(coalesce(f.to_time, b.high), b.high) AS high
    FROM pool_fit f JOIN bounds b ON b.cluster = f.cluster
), fit_hours AS (
    SELECT *, unnest(window_starts(low, high, 3600000, low, high)) AS hour FROM fit_clipped WHERE low < high
), quota_clipped AS (
    SELECT q.*, greatest(q.from_time, b.low) AS low, least(coalesce(q.to_time, b.high), b.high) AS high
    FROM quota_use q JOIN bounds b ON b.cluster = q.cluster
), quota_hours AS (
    SELECT *, unnest(window_starts(low, high, 3600000, low, high)) AS hour FROM quota_clipped WHERE low < high
), of_pool AS (
    SELECT o.cluster, o.job_id, o.from_time, o.known_to, greatest(f.low, o.from_time) AS at,
           f.nodes, f.free_gpus_milli, f.largest_free_gpus, f.free_nodes, f.usable_gpus_milli, f.present_gpus_milli, f.assumed_gpus_milli
    FROM open_hours o
    JOIN fit_hours f ON f.cluster = o.cluster AND f.pool = coalesce(o.pool, '') AND f.gpus = o.gpus AND f.hour = o.hour
    -- A pair that shares several hours is met once: in the first of them.
    WHERE f.low < o.known_to AND f.high > o.from_time AND o.hour = window_of(greatest(f.low, o.from_time), 3600000)
), owned AS (
    SELECT *, unnest(make_array(team, 'qos/' || qos)) AS owner FROM open_hours
), of_quota AS (
    SELECT o.cluster, o.job_id, o.from_time, o.known_to, greatest(q.low, o.from_time) AS at, q.high,
           q.gpus_milli AS quota, q.held_gpus_milli AS quota_held
    FROM owned o
    JOIN quota_hours q ON q.cluster = o.cluster AND q.owner = o.owner AND q.hour = o.hour
    WHERE q.low < o.known_to AND q.high > o.from_time AND o.hour = window_of(greatest(q.low, o.from_time), 3600000)
      AND q.held_gpus_milli + o.gpus_milli > q.gpus_milli AND (q.pool IS NULL OR q.pool = o.pool)
), of_line AS (
    SELECT a.cluster, a.job_id, a.from_time, a.known_to, greatest(f.from_time, a.from_time) AS at, f.to_time AS until
    FROM asking a
    JOIN first_in_line f ON f.cluster = a.cluster AND f.job_id = a.job_id
    WHERE a.is_open = 1 AND f.from_time < a.known_to AND coalesce(f.to_time > a.from_time, true)
), changes AS (
    SELECT cluster, job_id, from_time, unnest(make_array(from_time, eligible)) AS at, 0 AS is_first, 0 AS over_quota,
           CAST(NULL AS BIGINT) AS quota, CAST(NULL AS BIGINT) AS quota_held, CAST(NULL AS BIGINT) AS nodes,
           CAST(NULL AS BIGINT) AS free_gpus_milli, CAST(NULL AS BIGINT) AS largest_free_gpus, CAST(NULL AS BIGINT) AS free_nodes,
           CAST(NULL AS BIGINT) AS usable, CAST(NULL AS BIGINT) AS present, CAST(NULL AS BIGINT) AS assumed, known_to
    FROM asking
    UNION ALL
    SELECT cluster, job_id, from_time, at, 0, 0, NULL, NULL, nodes, free_gpus_milli, largest_free_gpus, free_nodes,
           usable_gpus_milli, present_gpus_milli, assumed_gpus_milli, known_to
    FROM of_pool
    UNION ALL
    SELECT cluster, job_id, from_time, unnest(make_array(at, until)), unnest(make_array(1, -1)), 0, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, known_to
    FROM of_line
    UNION ALL
    SELECT cluster, job_id, from_time, unnest(make_array(at, high)), 0, unnest(make_array(1, -1)), quota, quota_held,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, known_to
    FROM of_quota
), points AS (
    SELECT cluster, job_id, from_time, at, sum(is_first) AS is_first, sum(over_quota) AS over_quota, max(quota) AS quota, max(quota_held) AS quota_held,
           max(nodes) AS nodes, max(free_gpus_milli) AS free_gpus_milli, max(largest_free_gpus) AS largest_free_gpus,
           max(free_nodes) AS free_nodes, max(usable) AS usable, max(present) AS present, max(assumed) AS assumed
    FROM changes
    WHERE at >= from_time AND at < known_to
    GROUP BY cluster, job_id, from_time, at
), pieces AS (
    SELECT cluster, job_id, from_time, at,
           lead(at) OVER (PARTITION BY cluster, job_id, from_time ORDER BY at) AS next_at,
           sum(is_first) OVER so_far                                AS is_first,
           sum(over_quota) OVER so_far                              AS over_quota,
           last_value(quota) IGNORE NULLS OVER so_far               AS quota,
           last_value(quota_held) IGNORE NULLS OVER so_far          AS quota_held,
           last_value(nodes) IGNORE NULLS OVER so_far               AS nodes,
           last_value(free_gpus_milli) IGNORE NULLS OVER so_far     AS free_gpus_milli,
           last_value(largest_free_gpus) IGNORE NULLS OVER so_far   AS largest_free_gpus,
           last_value(free_nodes) IGNORE NULLS OVER so_far          AS free_nodes,
           last_value(usable) IGNORE NULLS OVER so_far              AS usable,
           last_value(present) IGNORE NULLS OVER so_far             AS present,
           last_value(assumed) IGNORE NULLS OVER so_far             AS assumed
    FROM points
    WINDOW so_far AS (PARTITION BY cluster, job_id, from_time ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), judged AS (
    SELECT a.*, p.at, coalesce(p.next_at, a.to_time) AS piece_to, coalesce(p.next_at, a.known_to) AS piece_known_to,
           p.quota, p.quota_held, p.nodes, p.free_gpus_milli, p.largest_free_gpus, p.free_nodes, p.usable, p.present, p.assumed, p.is_first,
           CASE
               WHEN a.is_open = 0                                                           THEN a.told_constraint
               WHEN a.eligible > p.at                                                       THEN 'not_eligible'
               WHEN p.over_quota > 0                                                        THEN 'quota'
               WHEN coalesce(a.gpus_milli, 0) = 0 OR p.free_gpus_milli IS NULL              THEN a.told_constraint
               WHEN p.present < a.gpus_milli                                                THEN 'not_provisioned'
               WHEN p.usable < a.gpus_milli                                                 THEN 'nodes_unavailable'
               WHEN a.asked_nodes > 1 AND p.nodes BETWEEN 1 AND a.asked_nodes - 1
                    AND p.free_gpus_milli < a.gpus_milli                                    THEN 'gang'
               WHEN p.free_gpus_milli < a.gpus_milli                                        THEN 'capacity_taken'
               WHEN p.nodes < a.asked_nodes                                                 THEN 'fragmented'
               -- It fits, as far as its shape is known.
               WHEN a.reason IS NULL AND p.is_first = 0                                     THEN 'behind_others'
               WHEN a.told_constraint = 'resources' AND a.asked_nodes IS NOT NULL           THEN 'not_gpus'
               ELSE a.told_constraint
           END AS constraint
    FROM asking a
    JOIN pieces p ON p.cluster = a.cluster AND p.job_id = a.job_id AND p.from_time = a.from_time
), marked AS (
    SELECT *, CASE WHEN lag(at) OVER of_wait IS NULL
                     OR (lag(constraint) OVER of_wait IS DISTINCT FROM constraint)
                     OR (lag(reason) OVER of_wait IS DISTINCT FROM reason) THEN 1 ELSE 0 END AS is_new
    FROM judged
    WINDOW of_wait AS (PARTITION BY cluster, job_id, waited_from ORDER BY at)
), stretches AS (
    SELECT *, sum(is_new) OVER (PARTITION BY cluster, job_id, waited_from ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS stretch,
           gpu_ms(gpus_milli, waited_from, at, piece_known_to) AS gpu_ms_waited
    FROM marked
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY cluster, job_id, waited_from, stretch ORDER BY at DESC) AS from_last,
           min(at) OVER (PARTITION BY cluster, job_id, waited_from, stretch) AS since,
           sum(gpu_ms_waited) OVER (PARTITION BY cluster, job_id, waited_from, stretch) AS stretch_gpu_ms
    FROM stretches
)
SELECT k.cluster, k.job_id, k.attempt, k.team, k.user_name, k.pool, k.qos, k.gpus_milli, k.asked_nodes, k.asked_gpus_per_node_milli,
       k.waited_from, k.since, k.piece_to AS until, CASE WHEN k.piece_to IS NULL THEN k.as_of END AS as_of,
       coalesce(f.layer, k.told_layer) AS layer, k.constraint, k.reason,
       CASE
           WHEN k.reason IS NOT NULL AND k.told_constraint IS NULL
                THEN 'the scheduler says ' || k.reason || ', a reason that is not in pending_reasons'
           WHEN k.is_open = 0
                THEN 'the scheduler says ' || k.reason || ': ' || k.told_meaning
           WHEN k.constraint = 'not_eligible'
                THEN 'it becomes eligible later than this'
           WHEN k.constraint = 'quota'
                THEN coalesce('the scheduler says ' || k.reason || '; ', '') || 'asks ' || k.gpus_milli / 1000 || ' GPUs; '
                     || k.quota_held / 1000 || ' are held of a quota of ' || k.quota / 1000
                     || coalesce('; ' || k.free_gpus_milli / 1000 || ' are free in the pool', '')
           WHEN coalesce(k.gpus_milli, 0) = 0
                THEN coalesce('the scheduler says ' || k.reason || '; it asks for no GPU', 'no reason is told and it asks for no GPU')
           WHEN k.free_gpus_milli IS NULL
                THEN coalesce('the scheduler says ' || k.reason, 'no reason is told') || '; the nodes of the pool are not known'
           ELSE coalesce('the scheduler says ' || k.reason || '; ', 'no reason is told; ') || 'asks ' || k.gpus_milli / 1000 || ' GPUs'
                || CASE WHEN k.asked_nodes IS NULL THEN ' (on how many nodes is not known)'
                        WHEN k.asked_nodes = 1 THEN ' on one node'
                        ELSE ' as ' || (k.asked_gpus_per_node_milli + 999) / 1000 || ' on each of ' || k.asked_nodes || ' nodes' END
                || CASE WHEN k.constraint IN ('not_provisioned', 'nodes_unavailable')
                        THEN '; the pool has ' || k.present / 1000 || ', ' || k.usable / 1000 || ' of them on nodes that jobs may start on'
                        ELSE '' END
                || '; ' || k.free_gpus_milli / 1000 || ' are free'
                || CASE WHEN k.free_nodes = 0 THEN ''
                        ELSE ' on ' || k.free_nodes || ' nodes, at most ' || k.largest_free_gpus || ' on one' END
                || CASE WHEN k.asked_nodes > 1 THEN '; ' || k.nodes || ' nodes fit' ELSE '' END
                || CASE WHEN k.assumed > 0 THEN '; ' || k.assumed / 1000 || ' more are held on nodes that nobody named, taken to be the first ones'
                        ELSE '' END
                || CASE WHEN k.constraint = 'behind_others' THEN '; jobs before it wait for the same nodes'
                        WHEN k.constraint IS NULL AND k.asked_nodes IS NOT NULL THEN '; it would fit, and no job is before it'
                        ELSE '' END
       END AS evidence,
       coalesce(f.starts_when, t.starts_when) AS starts_when,
       k.free_gpus_milli, k.largest_free_gpus, k.free_nodes,
       CASE WHEN k.asked_nodes IS NOT NULL THEN k.nodes END AS fitting_nodes,
       CASE WHEN k.constraint = 'quota' THEN k.quota END AS quota_gpus_milli,
       CASE WHEN k.constraint = 'quota' THEN k.quota_held END AS quota_held_gpus_milli,
       k.stretch_gpu_ms AS gpu_ms_waited
FROM ranked k
LEFT JOIN pending_reasons f ON f.scheduler = 'tidegate' AND f.reason = k.constraint AND k.is_open = 1
LEFT JOIN pending_reasons t ON t.scheduler = 'slurm' AND t.reason = k.reason AND t.constraint = k.constraint
WHERE k.from_last = 1
