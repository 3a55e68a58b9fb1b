--! name    = "pending"
--! doc     = "Why each job waits or waited: one row per stretch of one constraint, with evidence. Constraints that the scheduler does not report are derived from capacity, quotas, job shapes and the place in line. Waits add up to gpu_ms_queued of attempts exactly."
--! question = "Why is a job pending, since when, and what would start it?"
--! example  = "SELECT job_id, team, since, layer, constraint, evidence, starts_when FROM pending WHERE until IS NULL ORDER BY since LIMIT 20"
--! sources = ["pending_days", "lasting_waits", "pending_reasons"]
--! [columns]
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
--! waited_from               = "Start of the whole wait: the `begin` argument of gpu_ms() for parts of it."
--! since                     = "Start of the stretch in which this constraint bound."
--! until                     = "End of the stretch; NULL while it lasts."
--! as_of                     = "While it lasts: time up to which the cluster was observed."
--! layer                     = "1 reservation or quota, 2 provisioning, 3 scheduling, 4 workload; NULL if not known."
--! constraint                = "The binding constraint, as in pending_reasons; NULL if not known."
--! reason                    = "The scheduler's reason; NULL if none was reported."
--! evidence                  = "Evidence for the constraint, in words, with the numbers at the end of the stretch."
--! starts_when               = "Event that would start the job; NULL if the constraint is not known."
--! free_gpus_milli           = "Free GPUs in the pool at the end of the stretch, thousandths; NULL if its nodes are not known, as the following columns."
--! largest_free_gpus         = "Most whole GPUs free on one node then."
--! free_nodes                = "Nodes with at least one GPU free then."
--! fitting_nodes             = "Nodes with as many GPUs free then as the job needs on one node; NULL if its shape is not known."
--! quota_gpus_milli          = "The binding quota then; NULL if none bound."
--! quota_held_gpus_milli     = "Held of that quota then."
--! gpu_ms_waited             = "GPU x ms requested and waited for in the stretch, up to as_of while it lasts."
WITH chained AS (
    -- One row per piece that a midnight may have cut; is_new = 1 where it does not go on with the
    -- constraint and the reason of the piece before; is_lasting = 1 in waits whose last such piece
    -- still lasts, else NULL.
    SELECT d.*, w.is_lasting,
           CASE WHEN lag(d.known_to) OVER of_wait = d.since
                 AND (lag(d.constraint) OVER of_wait IS NOT DISTINCT FROM d.constraint)
                 AND (lag(d.reason) OVER of_wait IS NOT DISTINCT FROM d.reason) THEN 0 ELSE 1 END AS is_new
    FROM lasting_waits w
    RIGHT JOIN pending_days d ON w.cluster = d.cluster AND w.job_id = d.job_id AND w.waited_from = d.waited_from
    WHERE d.is_cut = 1
    WINDOW of_wait AS (PARTITION BY w.is_lasting, d.cluster, d.job_id, d.waited_from ORDER BY d.since)
), stretches AS (
    -- The same rows, with the start of their stretch, whether they are the last of it, and the
    -- start of the next piece.
    SELECT *, max(CASE WHEN is_new = 1 THEN since END) OVER (PARTITION BY is_lasting, cluster, job_id, waited_from ORDER BY since
                                                             ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS stretch_from,
           coalesce(lead(is_new) OVER of_wait, 1) AS is_last, lead(since) OVER of_wait AS next_since
    FROM chained
    WINDOW of_wait AS (PARTITION BY is_lasting, cluster, job_id, waited_from ORDER BY since)
), pieces AS (
    -- One row per stretch of one constraint and reason.
    SELECT cluster, job_id, attempt, team, user_name, pool, qos, gpus_milli, asked_nodes, asked_gpus_per_node_milli, waited_from,
           since, until, known_to, reason, constraint, is_open,
           quota_gpus_milli, quota_held_gpus_milli, fitting_nodes, free_gpus_milli, largest_free_gpus, free_nodes, usable_gpus_milli,
           present_gpus_milli, assumed_gpus_milli
    FROM pending_days
    WHERE is_cut = 0
    UNION ALL
    -- Never NULL, so that a query for what lasts does not chain all that has ended.
    SELECT cluster, job_id, attempt, team, user_name, pool, qos, gpus_milli, asked_nodes, asked_gpus_per_node_milli, waited_from,
           stretch_from, coalesce(until, known_to, arrow_cast(0, 'Timestamp(Microsecond, Some("UTC"))')), known_to, reason, constraint, is_open,
           quota_gpus_milli, quota_held_gpus_milli, fitting_nodes, free_gpus_milli, largest_free_gpus, free_nodes, usable_gpus_milli,
           present_gpus_milli, assumed_gpus_milli
    FROM stretches
    WHERE is_last = 1 AND is_lasting IS NULL
    UNION ALL
    -- A wait that was observed up to midnight may still last there.
    SELECT cluster, job_id, attempt, team, user_name, pool, qos, gpus_milli, asked_nodes, asked_gpus_per_node_milli, waited_from,
           stretch_from, CASE WHEN lasts = 0 OR next_since = known_to THEN until END, known_to, reason, constraint, is_open,
           quota_gpus_milli, quota_held_gpus_milli, fitting_nodes, free_gpus_milli, largest_free_gpus, free_nodes, usable_gpus_milli,
           present_gpus_milli, assumed_gpus_milli
    FROM stretches
    WHERE is_last = 1 AND is_lasting = 1
)
SELECT k.cluster, k.job_id, k.attempt, k.team, k.user_name, k.pool, k.qos, k.gpus_milli, k.asked_nodes, k.asked_gpus_per_node_milli,
       k.waited_from, k.since, k.until, CASE WHEN k.until IS NULL THEN k.known_to END AS as_of,
       coalesce(f.layer, r.layer) AS layer, k.constraint, k.reason,
       CASE
           WHEN k.reason IS NOT NULL AND r.constraint IS NULL
                THEN 'the scheduler reports ' || k.reason || ', a reason that pending_reasons does not list'
           WHEN k.is_open = 0
                THEN 'the scheduler reports ' || k.reason || ': ' || r.meaning
           WHEN k.constraint = 'not_eligible'
                THEN 'it is not eligible yet'
           WHEN k.constraint = 'quota'
                THEN coalesce('the scheduler reports ' || k.reason || '; ', '') || 'it requests ' || k.gpus_milli / 1000 || ' GPUs; '
                     || k.quota_held_gpus_milli / 1000 || ' are held of a quota of ' || k.quota_gpus_milli / 1000
                     || coalesce('; ' || k.free_gpus_milli / 1000 || ' are free in the pool', '')
           WHEN coalesce(k.gpus_milli, 0) = 0
                THEN coalesce('the scheduler reports ' || k.reason || '; the job requests no GPU', 'the scheduler reports no reason, and the job requests no GPU')
           WHEN k.free_gpus_milli IS NULL
                THEN coalesce('the scheduler reports ' || k.reason, 'the scheduler reports no reason') || '; the nodes of the pool are unknown'
           ELSE coalesce('the scheduler reports ' || k.reason || '; ', 'the scheduler reports no reason; ') || 'it requests ' || k.gpus_milli / 1000 || ' GPUs'
                || CASE WHEN k.asked_nodes IS NULL THEN ' on an unknown number of nodes'
                        WHEN k.asked_nodes = 1 THEN ' on one node'
                        ELSE ', ' || (k.asked_gpus_per_node_milli + 999) / 1000 || ' on each of ' || k.asked_nodes || ' nodes' END
                || CASE WHEN k.constraint IN ('not_provisioned', 'nodes_unavailable')
                        THEN '; the pool has ' || k.present_gpus_milli / 1000 || ', ' || k.usable_gpus_milli / 1000 || ' of them on nodes where jobs may start'
                        ELSE '' END
                || '; ' || k.free_gpus_milli / 1000 || ' are free'
                || CASE WHEN k.free_nodes = 0 THEN ''
                        ELSE ' on ' || k.free_nodes || CASE k.free_nodes WHEN 1 THEN ' node' ELSE ' nodes' END || ', at most ' || k.largest_free_gpus || ' on one' END
                || CASE WHEN k.asked_nodes > 1 THEN '; ' || k.fitting_nodes || CASE k.fitting_nodes WHEN 1 THEN ' node has room' ELSE ' nodes have room' END ELSE '' END
                || CASE WHEN k.assumed_gpus_milli > 0 THEN '; ' || k.assumed_gpus_milli / 1000 || ' more are held on unknown nodes, assumed to be the first ones'
                        ELSE '' END
                || CASE WHEN k.constraint = 'behind_others' THEN '; jobs ahead of it wait for the same nodes'
                        WHEN k.constraint IS NULL AND k.asked_nodes IS NOT NULL THEN '; it would fit, and no job is ahead of it'
                        ELSE '' END
       END AS evidence,
       coalesce(f.starts_when, CASE WHEN r.constraint = k.constraint THEN r.starts_when END) AS starts_when,
       k.free_gpus_milli, k.largest_free_gpus, k.free_nodes,
       CASE WHEN k.asked_nodes IS NOT NULL THEN k.fitting_nodes END AS fitting_nodes,
       CASE WHEN k.constraint = 'quota' THEN k.quota_gpus_milli END AS quota_gpus_milli,
       CASE WHEN k.constraint = 'quota' THEN k.quota_held_gpus_milli END AS quota_held_gpus_milli,
       gpu_ms(k.gpus_milli, k.waited_from, k.since, k.known_to) AS gpu_ms_waited
FROM pieces k
LEFT JOIN pending_reasons f ON f.scheduler = 'tidegate' AND f.reason = k.constraint AND k.is_open = 1
LEFT JOIN pending_reasons r ON r.scheduler = 'slurm' AND r.reason = k.reason
