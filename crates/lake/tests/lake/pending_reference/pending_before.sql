--! name    = "pending_before"
--! doc     = "Why each job waits or waited: one row per stretch of one constraint, with evidence. Constraints that the scheduler does not report are derived from capacity, quotas, job shapes and the place in line. Waits add up to gpu_ms_queued of attempts exactly."
--! question = "Why is a job pending, since when, and what would start it?"
--! example  = "SELECT job_id, team, since, layer, constraint, evidence, starts_when FROM pending WHERE until IS NULL ORDER BY since LIMIT 20"
--! sources = ["eligible_waits", "wait_conditions", "pending_reasons"]
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
WITH constraints AS (
    -- One row per stretch of a wait and conditions of it, with the constraint that bound then.
    SELECT w.*, c.at, coalesce(c.next_at, w.to_time) AS part_to, coalesce(c.next_at, w.known_to) AS part_known_to,
           c.quota_gpus_milli, c.quota_held_gpus_milli, c.fitting_nodes, c.free_gpus_milli, c.largest_free_gpus, c.free_nodes,
           c.usable_gpus_milli, c.present_gpus_milli, c.assumed_gpus_milli, c.is_first,
           CASE
               WHEN w.is_open = 0                                                               THEN w.reason_constraint
               WHEN w.eligible_from > c.at                                                      THEN 'not_eligible'
               WHEN c.exceeded_quotas > 0                                                       THEN 'quota'
               WHEN coalesce(w.gpus_milli, 0) = 0 OR c.free_gpus_milli IS NULL                  THEN w.reason_constraint
               WHEN c.present_gpus_milli < w.gpus_milli                                         THEN 'not_provisioned'
               WHEN c.usable_gpus_milli < w.gpus_milli                                          THEN 'nodes_unavailable'
               WHEN w.asked_nodes > 1 AND c.fitting_nodes BETWEEN 1 AND w.asked_nodes - 1
                    AND c.free_gpus_milli < w.gpus_milli                                        THEN 'gang'
               WHEN c.free_gpus_milli < w.gpus_milli                                            THEN 'capacity_taken'
               WHEN c.fitting_nodes < w.asked_nodes                                             THEN 'fragmented'
               -- From here on the job fits, as far as its shape is known.
               WHEN w.reason IS NULL AND c.is_first = 0                                         THEN 'behind_others'
               WHEN w.reason_constraint = 'resources' AND w.asked_nodes IS NOT NULL             THEN 'not_gpus'
               ELSE w.reason_constraint
           END AS constraint
    FROM eligible_waits w
    JOIN wait_conditions c ON c.cluster = w.cluster AND c.job_id = w.job_id AND c.from_time = w.from_time
), marked AS (
    -- The same rows; is_new = 1 where constraint or reason differ from the part before.
    SELECT *, CASE WHEN lag(at) OVER of_wait IS NULL
                     OR (lag(constraint) OVER of_wait IS DISTINCT FROM constraint)
                     OR (lag(reason) OVER of_wait IS DISTINCT FROM reason) THEN 1 ELSE 0 END AS is_new
    FROM constraints
    WINDOW of_wait AS (PARTITION BY cluster, job_id, waited_from ORDER BY at)
), numbered AS (
    -- The same rows, numbered by stretches of one constraint and reason, with the GPU time waited.
    SELECT *, sum(is_new) OVER (PARTITION BY cluster, job_id, waited_from ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS stretch,
           gpu_ms(gpus_milli, waited_from, at, part_known_to) AS gpu_ms_waited
    FROM marked
), ranked AS (
    -- The same rows, with the totals of their stretch; from_last = 1 for its last part.
    SELECT *, row_number() OVER (PARTITION BY cluster, job_id, waited_from, stretch ORDER BY at DESC) AS from_last,
           min(at) OVER (PARTITION BY cluster, job_id, waited_from, stretch) AS since,
           sum(gpu_ms_waited) OVER (PARTITION BY cluster, job_id, waited_from, stretch) AS stretch_gpu_ms
    FROM numbered
)
SELECT k.cluster, k.job_id, k.attempt, k.team, k.user_name, k.pool, k.qos, k.gpus_milli, k.asked_nodes, k.asked_gpus_per_node_milli,
       k.waited_from, k.since, k.part_to AS until, CASE WHEN k.part_to IS NULL THEN k.as_of END AS as_of,
       coalesce(f.layer, k.reason_layer) AS layer, k.constraint, k.reason,
       CASE
           WHEN k.reason IS NOT NULL AND k.reason_constraint IS NULL
                THEN 'the scheduler reports ' || k.reason || ', a reason that pending_reasons does not list'
           WHEN k.is_open = 0
                THEN 'the scheduler reports ' || k.reason || ': ' || k.reason_meaning
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
       coalesce(f.starts_when, t.starts_when) AS starts_when,
       k.free_gpus_milli, k.largest_free_gpus, k.free_nodes,
       CASE WHEN k.asked_nodes IS NOT NULL THEN k.fitting_nodes END AS fitting_nodes,
       CASE WHEN k.constraint = 'quota' THEN k.quota_gpus_milli END AS quota_gpus_milli,
       CASE WHEN k.constraint = 'quota' THEN k.quota_held_gpus_milli END AS quota_held_gpus_milli,
       k.stretch_gpu_ms AS gpu_ms_waited
FROM ranked k
LEFT JOIN pending_reasons f ON f.scheduler = 'tidegate' AND f.reason = k.constraint AND k.is_open = 1
LEFT JOIN pending_reasons t ON t.scheduler = 'slurm' AND t.reason = k.reason AND t.constraint = k.constraint
WHERE k.from_last = 1
