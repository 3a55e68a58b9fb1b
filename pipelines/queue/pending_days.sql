--! name    = "pending_days"
--! doc     = "The stored part of pending: pieces of waits in which one constraint bound, cut at UTC days, with what was free at the end of each."
--! question = "Which constraints bound how much of the waiting on each day?"
--! example  = "SELECT window_start, constraint, sum(gpu_ms(gpus_milli, waited_from, since, known_to)) / 3600000 AS gpu_hours FROM pending_days WHERE window_start >= now() - INTERVAL '7 days' GROUP BY window_start, constraint ORDER BY window_start, gpu_hours DESC"
--! sources = ["eligible_waits", "free_spans", "quota_use", "known_models"]
--! window  = "1d"
--! opening = true
--! key     = ["window_start", "cluster", "job_id", "waited_from", "since", "until", "known_to", "constraint", "reason", "pool", "team", "user_name", "qos"]
--! [extents]
--! eligible_waits = { from = "from_time", to = "to_time" }
--! free_spans     = { from = "from_time", to = "to_time" }
--! quota_use      = { time = "window_start" }
--! known_models   = { from = "from_time", to = "to_time" }
--! [columns]
--! window_start              = "Start of the UTC day of the piece."
--! cluster                   = "Cluster."
--! job_id                    = "Job."
--! attempt                   = "Number of the attempt that the wait led to, from 0; NULL if it has not started."
--! team                      = "Account, group or virtual cluster."
--! user_name                 = "User who submitted the job."
--! pool                      = "Partition, queue or node pool."
--! qos                       = "Quality of service."
--! gpus_milli                = "Thousandths of a GPU requested."
--! asked_nodes               = "Nodes requested; NULL if the shape is not known."
--! asked_gpus_per_node_milli = "Thousandths of a GPU requested on each node; NULL if the shape is not known."
--! waited_from               = "Start of the whole wait."
--! since                     = "Start of the piece."
--! until                     = "End of the piece; NULL while it lasts."
--! known_to                  = "End of the piece, or the time up to which the cluster was observed."
--! lasts                     = "1 if the wait goes on after `known_to`, else 0."
--! is_cut                    = "1 if the piece ends at midnight, or begins there and not with the wait: it may be part of a longer one. Else 0."
--! reason                    = "The scheduler's reason; NULL if none was reported."
--! constraint                = "The binding constraint, as in pending_reasons; NULL if not known."
--! is_open                   = "1 if the scheduler leaves open what the job waits for, as in classified_waits."
--! quota_gpus_milli          = "The binding quota; NULL if none bound. This and the following columns are as of the end of the piece, thousandths of a GPU."
--! quota_held_gpus_milli     = "Held of that quota."
--! fitting_nodes             = "Nodes with as many GPUs free as the job needs on one, or with one if its shape is not known; NULL if nodes are not known, as in the following columns."
--! free_gpus_milli           = "Free in the pool."
--! largest_free_gpus         = "Most whole GPUs free on one node."
--! free_nodes                = "Nodes with at least one whole GPU free."
--! usable_gpus_milli         = "On nodes where jobs may start, held or free."
--! present_gpus_milli        = "On all nodes, including nodes that are down or drained."
--! assumed_gpus_milli        = "Assumed held by jobs whose nodes are not known, as in node_free."
WITH facts AS (
    -- One row per day and fact.
    SELECT window_start, cluster, 'wait' AS kind, job_id AS name, pool, team, user_name, qos, reason, reason_constraint,
           attempt, gpus_milli, asked_nodes AS a, asked_gpus_per_node_milli AS b, is_open,
           CASE WHEN coalesce(reason_layer, 3) IN (2, 3) THEN 1 ELSE 0 END AS in_line, priority,
           waited_from, eligible_from, from_time, to_time, known_to
    FROM eligible_waits
    UNION ALL
    SELECT window_start, cluster, 'node', node, pool, NULL, NULL, NULL, NULL, NULL,
           NULL, gpus_milli, free_gpus_milli, assumed_gpus_milli, is_usable, NULL, NULL, NULL, NULL, from_time, to_time, NULL
    FROM free_spans
    UNION ALL
    SELECT window_start, cluster, 'quota', owner, pool, NULL, NULL, NULL, NULL, NULL,
           NULL, gpus_milli, held_gpus_milli, NULL, NULL, NULL, NULL, NULL, NULL, from_time, to_time, NULL
    FROM quota_use
    UNION ALL
    SELECT window_start, cluster, 'known', NULL, pool, NULL, NULL, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, from_time, NULL, NULL
    FROM known_models
), piece_rows AS (
    -- One row per piece, as a struct.
    SELECT window_start, cluster, unnest(wait_pieces(gathered(named_struct(
               'kind', kind, 'name', name, 'pool', pool, 'team', team, 'user_name', user_name, 'qos', qos,
               'reason', reason, 'reason_constraint', reason_constraint, 'attempt', attempt, 'gpus_milli', gpus_milli, 'a', a, 'b', b,
               'is_open', is_open, 'in_line', in_line, 'priority', priority, 'waited_from', waited_from, 'eligible_from', eligible_from,
               'from_time', from_time, 'to_time', to_time, 'known_to', known_to)), window_start, plus_ms(window_start, 86400000))) AS row
    FROM facts
    GROUP BY window_start, cluster
)
SELECT window_start, cluster, row['job_id'] AS job_id, row['attempt'] AS attempt, row['team'] AS team, row['user_name'] AS user_name,
       row['pool'] AS pool, row['qos'] AS qos, row['gpus_milli'] AS gpus_milli, row['asked_nodes'] AS asked_nodes,
       row['asked_gpus_per_node_milli'] AS asked_gpus_per_node_milli, row['waited_from'] AS waited_from,
       row['since'] AS since, row['until'] AS until, row['known_to'] AS known_to, row['lasts'] AS lasts,
       CASE WHEN row['known_to'] = plus_ms(window_start, 86400000) OR (row['since'] = window_start AND row['waited_from'] < window_start)
            THEN 1 ELSE 0 END AS is_cut,
       row['reason'] AS reason, row['constraint'] AS constraint, row['is_open'] AS is_open,
       row['quota_gpus_milli'] AS quota_gpus_milli, row['quota_held_gpus_milli'] AS quota_held_gpus_milli,
       row['fitting_nodes'] AS fitting_nodes, row['free_gpus_milli'] AS free_gpus_milli, row['largest_free_gpus'] AS largest_free_gpus,
       row['free_nodes'] AS free_nodes, row['usable_gpus_milli'] AS usable_gpus_milli, row['present_gpus_milli'] AS present_gpus_milli,
       row['assumed_gpus_milli'] AS assumed_gpus_milli
FROM piece_rows
