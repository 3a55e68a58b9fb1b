--! name    = "device_ledger_1m"
--! version = 2
--! doc     = "Where every GPU-ms went, per UTC minute, from when on agents watch a cluster: each in exactly one class, and the classes of a node add up to what it has."
--! question = "Where did each GPU's time go, minute by minute?"
--! example  = "SELECT window_start, gpu_uuid, class, job_id, gpu_ms FROM device_ledger_1m WHERE node = 'gpu-01' AND window_start >= now() - INTERVAL '10 minutes' ORDER BY window_start, gpu_uuid, class"
--! since   = "watched"
--! sources = ["device_time_1m", "device_holds_1m", "step_time_1m", "start_time_1m", "free_time_1m", "pool_time_1m", "attempts", "price_of", "watched"]
--! window  = "1m"
--! key     = ["window_start", "cluster", "pool", "node", "gpu_uuid", "mig_uuid", "team", "user_name", "job_id", "class", "formula"]
--! [extents]
--! device_time_1m  = { time = "window_start" }
--! device_holds_1m = { time = "window_start" }
--! step_time_1m    = { time = "window_start" }
--! start_time_1m   = { time = "window_start" }
--! free_time_1m    = { time = "window_start" }
--! pool_time_1m    = { time = "window_start" }
--! attempts        = { from = "from_time", to = "to_time" }
--! price_of        = { from = "from_time", to = "coalesce(to_time, plus_ms(from_time, 3153600000000))" }
--! watched         = { from = "from_time", to = "to_time" }
--! [columns]
--! window_start = "Start of the UTC minute."
--! cluster      = "Cluster."
--! pool         = "Pool of the job that held it, else of the node."
--! node         = "Node; NULL where nobody said."
--! gpu_uuid     = "GPU by its UUID; #N is number N of the node where only that is known; NULL for GPUs that nobody told apart."
--! mig_uuid     = "MIG slice, which counts by its sevenths; NULL for a whole GPU, and for what the slices of a cut one leave."
--! team         = "Team of the job that held it; NULL if nobody did."
--! user_name    = "User of the job that held it."
--! job_id       = "Job that held it."
--! class        = "What the time was: not_provisioned, unhealthy, drained, no_demand, fragmented, quota_stranded, gang_wait, unallocated_busy, empty_held, idle_held, active, startup, recovery, restore, redone, checkpoint, data_stall, communication_stall, productive, unknown."
--! formula      = "How it is known: capacity (nodes and reservations), queue (what waits beside what is free), hold (scheduler and agent), samples (what the GPU did), steps (what the job reported)."
--! gpu_ms       = "GPU x ms."
--! cost_micros  = "What it cost by the price book, millionths of its currency: gpu_ms x price of a GPU-hour, cut where the price changed; NULL where no price is known."
WITH job AS (
    SELECT window_start, cluster, job_id, max(pool) AS pool, max(team) AS team, max(user_name) AS user_name
    FROM attempts
    GROUP BY window_start, cluster, job_id
), held AS (
    -- Whoever holds a device has its part of all that it did: who did what within a minute is not told apart.
    SELECT h.window_start, h.cluster, h.node, h.gpu_uuid, h.mig_uuid, h.job_id, d.gpu_model, h.held_ms, d.held_ms AS total, d.active, d.idle, d.empty, d.unseen,
           sum(h.held_ms) OVER (PARTITION BY h.window_start, h.cluster, h.node, h.gpu_uuid, h.mig_uuid ORDER BY h.job_id) - h.held_ms AS before
    FROM device_holds_1m h
    JOIN device_time_1m d
      ON d.window_start = h.window_start AND d.cluster = h.cluster AND d.node = h.node AND d.gpu_uuid = h.gpu_uuid AND d.mig_uuid = h.mig_uuid
), did AS (
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, job_id, gpu_model,
           share_of(active, before, held_ms, total) AS active, share_of(idle, before, held_ms, total)   AS idle,
           share_of(empty, before, held_ms, total)  AS empty,  share_of(unseen, before, held_ms, total) AS unseen
    FROM held
), on_node AS (
    SELECT *, active + idle + empty + unseen AS used FROM did
), in_order AS (
    SELECT *,
           sum(used) OVER (PARTITION BY window_start, cluster, job_id, node ORDER BY gpu_uuid, mig_uuid) - used AS before,
           sum(used) OVER (PARTITION BY window_start, cluster, job_id, node)                          AS total
    FROM on_node
), reported AS (
    -- Steps take no more than what was held; where they say so, all their parts shrink alike.
    SELECT o.*, b.attempt,
           least(coalesce(s.step_ms, 0), o.total)                                              AS all_steps,
           coalesce(share_of(s.restore_ms, 0, least(s.step_ms, o.total), s.step_ms), 0)        AS all_restore,
           coalesce(share_of(s.redone_ms, 0, least(s.step_ms, o.total), s.step_ms), 0)         AS all_redone,
           coalesce(share_of(s.checkpoint_ms, 0, least(s.step_ms, o.total), s.step_ms), 0)     AS all_checkpoint,
           coalesce(share_of(s.data_ms, 0, least(s.step_ms, o.total), s.step_ms), 0)           AS all_data,
           coalesce(share_of(s.communication_ms, 0, least(s.step_ms, o.total), s.step_ms), 0)  AS all_communication,
           coalesce(share_of(o.used, 0, b.starting_ms, b.attempt_ms), 0)                       AS starting
    FROM in_order o
    LEFT JOIN step_time_1m s ON s.window_start = o.window_start AND s.cluster = o.cluster AND s.job_id = o.job_id AND s.node = o.node
    LEFT JOIN start_time_1m b ON b.window_start = o.window_start AND b.cluster = o.cluster AND b.job_id = o.job_id
), of_device AS (
    SELECT *,
           share_of(all_steps, before, used, total)         AS step_ms,
           share_of(all_restore, before, used, total)       AS restore,
           share_of(all_redone, before, used, total)        AS redone,
           share_of(all_checkpoint, before, used, total)    AS checkpoint,
           share_of(all_data, before, used, total)          AS data_stall,
           share_of(all_communication, before, used, total) AS communication
    FROM reported
), whole AS (
    -- Parts were rounded each on its own: none takes more than what the ones before it left.
    SELECT *,
           least(restore, step_ms)                                                                  AS restore_ms,
           least(redone, greatest(step_ms - restore, 0))                                            AS redone_ms,
           least(checkpoint, greatest(step_ms - restore - redone, 0))                               AS checkpoint_ms,
           least(data_stall, greatest(step_ms - restore - redone - checkpoint, 0))                  AS data_ms,
           least(communication, greatest(step_ms - restore - redone - checkpoint - data_stall, 0))  AS communication_ms,
           least(starting, used - step_ms)                                                     AS starting_ms
    FROM of_device
), rest AS (
    -- Outside of its steps a GPU is rather empty than idle, rather idle than unseen, and rather unseen than active.
    SELECT *, least(empty, used - step_ms - starting_ms) AS rest_empty,
           least(idle, greatest(used - step_ms - starting_ms - empty, 0))            AS rest_idle,
           least(unseen, greatest(used - step_ms - starting_ms - empty - idle, 0))   AS rest_unseen
    FROM whole
), free AS (
    -- A minute in which somebody waited for a while is shared out by that while; what nobody waited for had no demand.
    SELECT d.window_start, d.cluster, d.node, d.gpu_uuid, d.mig_uuid, d.pool, d.gpu_model, d.unhealthy, d.drained, d.busy_free, d.free_ms - d.busy_free AS idle_free,
           max(f.quota_ms) AS quota_ms, max(f.fragment_ms) AS fragment_ms, max(f.gang_ms) AS gang_ms
    FROM device_time_1m d
    LEFT JOIN free_time_1m f ON f.window_start = d.window_start AND f.cluster = d.cluster
                            AND strpos(',' || coalesce(d.pool, '') || ',', ',' || f.pool || ',') > 0
    GROUP BY d.window_start, d.cluster, d.node, d.gpu_uuid, d.mig_uuid, d.pool, d.gpu_model, d.unhealthy, d.drained, d.busy_free, d.free_ms
), stranded AS (
    SELECT *, share_of(idle_free, 0, least(coalesce(quota_ms, 0), 60000), 60000) AS quota_stranded FROM free
), fragmented AS (
    SELECT *, least(share_of(idle_free, 0, least(coalesce(fragment_ms, 0), 60000), 60000), idle_free - quota_stranded) AS fragmented FROM stranded
), waiting AS (
    SELECT *, least(share_of(idle_free, 0, least(coalesce(gang_ms, 0), 60000), 60000), idle_free - quota_stranded - fragmented) AS gang_wait
    FROM fragmented
), told AS (
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, job_id, gpu_model, CAST(NULL AS TEXT) AS pool,
           unnest(make_array('restore', 'redone', 'checkpoint', 'data_stall', 'communication_stall', 'productive',
                             CASE WHEN attempt > 0 THEN 'recovery' ELSE 'startup' END,
                             'empty_held', 'idle_held', 'unknown', 'active'))                                        AS class,
           unnest(make_array('steps', 'steps', 'steps', 'steps', 'steps', 'steps', 'steps', 'samples', 'samples', 'hold', 'samples')) AS formula,
           unnest(make_array(restore_ms, redone_ms, checkpoint_ms, data_ms, communication_ms,
                             step_ms - restore_ms - redone_ms - checkpoint_ms - data_ms - communication_ms, starting_ms,
                             rest_empty, rest_idle, rest_unseen,
                             used - step_ms - starting_ms - rest_empty - rest_idle - rest_unseen))                   AS gpu_ms
    FROM rest
    UNION ALL
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, NULL, gpu_model, pool,
           unnest(make_array('unhealthy', 'drained', 'unallocated_busy', 'quota_stranded', 'fragmented', 'gang_wait', 'no_demand')),
           unnest(make_array('capacity', 'capacity', 'samples', 'queue', 'queue', 'queue', 'queue')),
           unnest(make_array(unhealthy, drained, busy_free, quota_stranded, fragmented, gang_wait, idle_free - quota_stranded - fragmented - gang_wait))
    FROM waiting
    UNION ALL
    SELECT window_start, cluster, '', '', '', NULL, NULL, nullif(pool, ''), 'not_provisioned', 'capacity', not_provisioned_ms FROM pool_time_1m
), named AS (
    SELECT t.window_start, t.cluster, coalesce(j.pool, t.pool) AS pool, t.gpu_model, nullif(t.node, '') AS node,
           nullif(t.gpu_uuid, '') AS gpu_uuid, nullif(t.mig_uuid, '') AS mig_uuid, j.team, j.user_name, t.job_id, t.class, t.formula, t.gpu_ms
    FROM told t
    LEFT JOIN job j ON j.window_start = t.window_start AND j.cluster = t.cluster AND j.job_id = t.job_id
    WHERE t.gpu_ms <> 0
)
SELECT n.window_start, n.cluster, n.pool, n.node, n.gpu_uuid, n.mig_uuid, n.team, n.user_name, n.job_id, n.class, n.formula,
       max(n.gpu_ms) AS gpu_ms,
       sum(cost_micros(share_of(n.gpu_ms, ms_between(n.window_start, p.clip_from), ms_between(p.clip_from, p.clip_to), 60000),
                       p.price_micros_per_gpu_hour)) AS cost_micros
FROM named n
LEFT JOIN price_of p ON p.window_start = n.window_start AND p.cluster = n.cluster
                    AND coalesce(p.pool, '') = coalesce(n.pool, '') AND coalesce(p.gpu_model, '') = coalesce(n.gpu_model, '')
GROUP BY n.window_start, n.cluster, n.pool, n.gpu_model, n.node, n.gpu_uuid, n.mig_uuid, n.team, n.user_name, n.job_id, n.class, n.formula
