--! name    = "fragmentation"
--! version = 2
--! doc     = "Free GPUs that the current mix of waiting jobs cannot use (FGD, fragmentation gradient descent), cut at UTC days. At a moment T: from_time <= T AND coalesce(to_time > T, true)."
--! question = "How many free GPUs can the waiting jobs not use, because they are scattered?"
--! example  = "SELECT cluster, pool, free_gpus_milli / 1000.0 AS free_gpus, unusable_gpus_milli / 1000.0 AS unusable_gpus, tasks, jobs_of_unknown_shape FROM fragmentation WHERE from_time <= now() AND coalesce(to_time > now(), true)"
--! sources = ["pool_fit", "classified_waits"]
--! window  = "1d"
--! opening = true
--! wait_outcome = false
--! key     = ["window_start", "cluster", "pool", "from_time", "to_time", "formula"]
--! [extents]
--! pool_fit         = { time = "window_start" }
--! classified_waits = { from = "from_time", to = "to_time" }
--! [columns]
--! window_start              = "Start of the UTC day."
--! cluster                   = "Cluster."
--! pool                      = "Pool, as in pool_fit; empty for all nodes and the jobs that name no pool."
--! free_gpus_milli           = "Free GPUs in the pool, thousandths of a GPU."
--! tasks                     = "Nodes requested by waiting jobs of known shape, one task each; the denominator. 0 if no waiting job could start."
--! unusable_gpus_milli_tasks = "The numerator: sum over these tasks of the free GPUs, thousandths, on nodes where the task does not fit, and of fractions of devices."
--! unusable_gpus_milli       = "Expected free GPUs that the next task of the queue cannot use: numerator / denominator, rounded down; NULL without tasks. For display; sum the numerator and the denominator instead."
--! jobs_of_unknown_shape     = "Waiting jobs that could start but whose GPUs per node are not known; they are not in the mix."
--! formula                   = "Name of the formula."
--! from_time                 = "Start."
--! to_time                   = "End, at most that of the day; NULL for the latest row."
WITH demand AS (
    -- One row per day and stretch of a wait that GPUs could end.
    -- Jobs that a hold, a dependency or a limit keeps back would not start wherever GPUs are free.
    SELECT window_start, cluster, coalesce(pool, '') AS pool, asked_nodes, (asked_gpus_per_node_milli + 999) / 1000 AS gpus_per_node,
           greatest(clip_from, coalesce(eligible_time, clip_from)) AS from_time, clip_end
    FROM classified_waits
    WHERE gpus_milli > 0 AND is_open = 1
), pool_starts AS (
    -- One row per day and pool: when its nodes are first known.
    SELECT window_start, cluster, pool, min(from_time) AS known_from, max(largest_node_gpus) AS largest_node_gpus
    FROM pool_fit
    GROUP BY window_start, cluster, pool
), sized_demand AS (
    -- The rows of demand, with the size of a task, at most one GPU more than any node has.
    -- Demand from before the nodes were known counts from the first known time.
    SELECT d.window_start, d.cluster, d.pool, CASE WHEN d.asked_nodes IS NULL THEN 1 ELSE least(d.gpus_per_node, s.largest_node_gpus + 1) END AS gpus,
           coalesce(d.asked_nodes, 0) AS tasks, CASE WHEN d.asked_nodes IS NULL THEN 1 ELSE 0 END AS shapeless,
           greatest(d.from_time, s.known_from) AS from_time,
           CASE WHEN d.clip_end IS NOT NULL THEN greatest(d.clip_end, s.known_from) END AS clip_end
    FROM demand d
    JOIN pool_starts s ON s.window_start = d.window_start AND s.cluster = d.cluster AND s.pool = d.pool
    WHERE coalesce(d.from_time < d.clip_end, true)
), demand_changes AS (
    -- One row per pool, size and time at which demand changed.
    SELECT window_start, cluster, pool, gpus, at, sum(tasks) AS tasks, sum(shapeless) AS shapeless
    FROM (SELECT window_start, cluster, pool, gpus, from_time AS at, tasks, shapeless FROM sized_demand
          UNION ALL
          SELECT window_start, cluster, pool, gpus, clip_end, -tasks, -shapeless FROM sized_demand WHERE clip_end IS NOT NULL)
    GROUP BY window_start, cluster, pool, gpus, at
), fit_changes AS (
    -- One row per pool, size and time at which free GPUs changed, or the last node left the pool.
    SELECT window_start, cluster, pool, gpus, at, max(nodes) AS nodes, max(free_gpus_milli) AS free_gpus_milli, max(has_nodes) AS has_nodes
    FROM (SELECT window_start, cluster, pool, gpus, from_time AS at, nodes, free_gpus_milli, 1 AS has_nodes FROM pool_fit
          UNION ALL
          SELECT window_start, cluster, pool, gpus, to_time, 0, 0, 0 FROM pool_fit WHERE to_time IS NOT NULL)
    GROUP BY window_start, cluster, pool, gpus, at
), times AS (
    -- One row per pool and time at which demand or free GPUs changed.
    SELECT window_start, cluster, pool, at FROM demand_changes
    UNION
    SELECT window_start, cluster, pool, at FROM fit_changes
), grid AS (
    -- One row per pool, time and size.
    SELECT t.window_start, t.cluster, t.pool, t.at, unnest(range(1, s.largest_node_gpus + 2)) AS gpus
    FROM times t JOIN pool_starts s ON s.window_start = t.window_start AND s.cluster = t.cluster AND s.pool = t.pool
), levels AS (
    -- The same rows, with tasks and fitting nodes at that time.
    SELECT g.window_start, g.cluster, g.pool, g.at, g.gpus,
           CAST(sum(coalesce(c.tasks, 0)) OVER so_far AS BIGINT)     AS tasks,
           CAST(sum(coalesce(c.shapeless, 0)) OVER so_far AS BIGINT) AS shapeless,
           last_value(f.nodes) IGNORE NULLS OVER so_far              AS nodes,
           last_value(f.free_gpus_milli) IGNORE NULLS OVER so_far    AS free_gpus_milli,
           last_value(f.has_nodes) IGNORE NULLS OVER so_far          AS has_nodes
    FROM grid g
    LEFT JOIN demand_changes c
      ON c.window_start = g.window_start AND c.cluster = g.cluster AND c.pool = g.pool AND c.gpus = g.gpus AND c.at = g.at
    LEFT JOIN fit_changes f
      ON f.window_start = g.window_start AND f.cluster = g.cluster AND f.pool = g.pool AND f.gpus = g.gpus AND f.at = g.at
    WINDOW so_far AS (PARTITION BY g.window_start, g.cluster, g.pool, g.gpus ORDER BY g.at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), usable AS (
    -- The same rows, with the GPUs that tasks of this size can use.
    -- Nodes with at least g free contribute g each, and one more for each number above g.
    SELECT *, gpus * nodes + coalesce(sum(nodes) OVER (PARTITION BY window_start, cluster, pool, at ORDER BY gpus
                                           ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING), 0) AS usable_gpus
    FROM levels
), totals AS (
    -- One row per pool and time.
    SELECT window_start, cluster, pool, at, max(free_gpus_milli) AS free_gpus_milli, sum(tasks) AS tasks, sum(shapeless) AS shapeless,
           sum(tasks * (free_gpus_milli - 1000 * usable_gpus)) AS unusable, max(has_nodes) AS has_nodes
    FROM usable
    GROUP BY window_start, cluster, pool, at
), with_end AS (
    -- The same rows, each with the time of the next.
    SELECT *, lead(at) OVER (PARTITION BY window_start, cluster, pool ORDER BY at) AS to_time FROM totals
)
SELECT window_start, cluster, pool, free_gpus_milli, tasks, unusable AS unusable_gpus_milli_tasks,
       unusable / nullif(tasks, 0) AS unusable_gpus_milli, shapeless AS jobs_of_unknown_shape, 'fgd_of_queue' AS formula,
       at AS from_time, to_time
FROM with_end
WHERE has_nodes = 1
