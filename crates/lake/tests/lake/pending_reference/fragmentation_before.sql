--! name    = "fragmentation_before"
--! doc     = "Free GPUs that the current mix of waiting jobs cannot use (FGD, fragmentation gradient descent). At a moment T: from_time <= T AND coalesce(to_time > T, true)."
--! question = "How many free GPUs can the waiting jobs not use, because they are scattered?"
--! example  = "SELECT cluster, pool, free_gpus_milli / 1000.0 AS free_gpus, unusable_gpus_milli / 1000.0 AS unusable_gpus, tasks, jobs_of_unknown_shape FROM fragmentation WHERE from_time <= now() AND coalesce(to_time > now(), true)"
--! sources = ["pool_fit_before", "classified_waits"]
--! [columns]
--! cluster                   = "Cluster."
--! pool                      = "Pool, as in pool_fit_before; empty for all nodes and the jobs that name no pool."
--! free_gpus_milli           = "Free GPUs in the pool, thousandths of a GPU."
--! tasks                     = "Nodes requested by waiting jobs of known shape, one task each; the denominator. 0 if no waiting job could start."
--! unusable_gpus_milli_tasks = "The numerator: sum over these tasks of the free GPUs, thousandths, on nodes where the task does not fit, and of fractions of devices."
--! unusable_gpus_milli       = "Expected free GPUs that the next task of the queue cannot use: numerator / denominator, rounded down; NULL without tasks. For display; sum the numerator and the denominator instead."
--! jobs_of_unknown_shape     = "Waiting jobs that could start but whose GPUs per node are not known; they are not in the mix."
--! formula                   = "Name of the formula."
--! from_time                 = "Start."
--! to_time                   = "End; NULL for the latest row."
WITH demand AS (
    -- One row per stretch of a wait that GPUs could end.
    -- Jobs that a hold, a dependency or a limit keeps back would not start wherever GPUs are free.
    SELECT w.cluster, coalesce(w.pool, '') AS pool, w.asked_nodes, (w.asked_gpus_per_node_milli + 999) / 1000 AS gpus_per_node,
           greatest(w.from_time, coalesce(w.eligible_time, w.from_time)) AS from_time, w.to_time
    FROM classified_waits w
    WHERE w.gpus_milli > 0 AND w.is_open = 1
), sized_demand AS (
    -- The same rows, with the size of a task, at most one GPU more than any node has.
    SELECT d.cluster, d.pool, CASE WHEN d.asked_nodes IS NULL THEN 1 ELSE least(d.gpus_per_node, s.largest_node_gpus + 1) END AS gpus,
           coalesce(d.asked_nodes, 0) AS tasks, CASE WHEN d.asked_nodes IS NULL THEN 1 ELSE 0 END AS shapeless, d.from_time, d.to_time
    FROM demand d
    JOIN (SELECT DISTINCT cluster, pool, largest_node_gpus FROM pool_fit_before) s ON s.cluster = d.cluster AND s.pool = d.pool
    WHERE coalesce(d.from_time < d.to_time, true)
), demand_changes AS (
    -- One row per pool, size and time at which demand changed.
    SELECT cluster, pool, gpus, at, sum(tasks) AS tasks, sum(shapeless) AS shapeless
    FROM (SELECT cluster, pool, gpus, from_time AS at, tasks, shapeless FROM sized_demand
          UNION ALL
          SELECT cluster, pool, gpus, to_time, -tasks, -shapeless FROM sized_demand WHERE to_time IS NOT NULL)
    GROUP BY cluster, pool, gpus, at
), pool_starts AS (
    -- One row per pool: when its nodes are first known.
    SELECT cluster, pool, min(from_time) AS known_from, max(largest_node_gpus) AS largest_node_gpus FROM pool_fit_before GROUP BY cluster, pool
), times AS (
    -- One row per pool and time at which demand or free GPUs changed.
    -- Demand from before the nodes were known counts from the first known time.
    SELECT a.cluster, a.pool, greatest(a.at, s.known_from) AS at FROM demand_changes a JOIN pool_starts s ON s.cluster = a.cluster AND s.pool = a.pool
    UNION
    SELECT cluster, pool, from_time FROM pool_fit_before
), changes AS (
    -- The same as demand_changes, with earlier times moved to the first known time.
    SELECT a.cluster, a.pool, a.gpus, greatest(a.at, s.known_from) AS at, sum(a.tasks) AS tasks, sum(a.shapeless) AS shapeless
    FROM demand_changes a JOIN pool_starts s ON s.cluster = a.cluster AND s.pool = a.pool
    GROUP BY a.cluster, a.pool, a.gpus, greatest(a.at, s.known_from)
), grid AS (
    -- One row per pool, time and size.
    SELECT t.cluster, t.pool, t.at, unnest(range(1, s.largest_node_gpus + 2)) AS gpus
    FROM times t JOIN pool_starts s ON s.cluster = t.cluster AND s.pool = t.pool
), levels AS (
    -- The same rows, with tasks and fitting nodes at that time.
    SELECT g.cluster, g.pool, g.at, g.gpus,
           CAST(sum(coalesce(c.tasks, 0)) OVER so_far AS BIGINT)     AS tasks,
           CAST(sum(coalesce(c.shapeless, 0)) OVER so_far AS BIGINT) AS shapeless,
           last_value(f.nodes) IGNORE NULLS OVER so_far              AS nodes,
           last_value(f.free_gpus_milli) IGNORE NULLS OVER so_far    AS free_gpus_milli
    FROM grid g
    LEFT JOIN changes c ON c.cluster = g.cluster AND c.pool = g.pool AND c.gpus = g.gpus AND c.at = g.at
    LEFT JOIN pool_fit_before f ON f.cluster = g.cluster AND f.pool = g.pool AND f.gpus = g.gpus AND f.from_time = g.at
    WINDOW so_far AS (PARTITION BY g.cluster, g.pool, g.gpus ORDER BY g.at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), usable AS (
    -- The same rows, with the GPUs that tasks of this size can use.
    -- Nodes with at least g free contribute g each, and one more for each number above g.
    SELECT *, gpus * nodes + coalesce(sum(nodes) OVER (PARTITION BY cluster, pool, at ORDER BY gpus
                                           ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING), 0) AS usable_gpus
    FROM levels
), totals AS (
    -- One row per pool and time.
    SELECT cluster, pool, at, max(free_gpus_milli) AS free_gpus_milli, sum(tasks) AS tasks, sum(shapeless) AS shapeless,
           sum(tasks * (free_gpus_milli - 1000 * usable_gpus)) AS unusable
    FROM usable
    GROUP BY cluster, pool, at
)
SELECT cluster, pool, free_gpus_milli, tasks, unusable AS unusable_gpus_milli_tasks,
       unusable / nullif(tasks, 0) AS unusable_gpus_milli, shapeless AS jobs_of_unknown_shape, 'fgd_of_queue' AS formula,
       at AS from_time, lead(at) OVER (PARTITION BY cluster, pool ORDER BY at) AS to_time
FROM totals
