--! name    = "pool_fit_before"
--! doc     = "How many nodes of a pool had at least a given number of GPUs free at the same time. A job of N nodes with G GPUs each fits if nodes >= N in the row with gpus = G."
--! question = "Would a job of 4 nodes with 8 GPUs each fit now?"
--! example  = "SELECT cluster, pool, nodes >= 4 AS fits, nodes, free_gpus_milli / 1000 AS free_gpus, largest_free_gpus FROM pool_fit WHERE gpus = 8 AND to_time IS NULL"
--! sources = ["free_spans", "waits"]
--! once    = true
--! [columns]
--! cluster             = "Cluster."
--! pool                = "Pool. A node in several pools counts in each; a node in no pool counts in every pool that nodes or waiting jobs name. Empty: all nodes, where a job without a pool may run."
--! gpus                = "Number of whole GPUs on one node. The last row has one more than any node of the pool has, so that nodes is 0."
--! nodes               = "Nodes with at least that many GPUs free."
--! free_gpus_milli     = "Free in the whole pool, thousandths of a GPU."
--! largest_free_gpus   = "Most whole GPUs free on one node."
--! free_nodes          = "Nodes with at least one whole GPU free."
--! usable_gpus_milli   = "GPUs of nodes where jobs may start, held or free, thousandths."
--! present_gpus_milli  = "GPUs of all nodes, including nodes that are down or drained, thousandths."
--! assumed_gpus_milli  = "Assumed held on its nodes by jobs whose nodes are not known, as in node_free. `nodes` counts the nodes that would fit under this assumption."
--! largest_node_gpus   = "Most GPUs that any node of the pool ever had."
--! from_time           = "Start."
--! to_time             = "End; NULL for the latest row."
WITH pool_names AS (
    -- One row per mention of a pool by nodes or waiting jobs.
    SELECT cluster, unnest(string_to_array(pool, ',')) AS pool FROM free_spans WHERE pool <> ''
    UNION ALL
    SELECT cluster, '' FROM free_spans WHERE coalesce(pool, '') = ''
    UNION ALL
    SELECT cluster, coalesce(pool, '') FROM waits WHERE gpus_milli > 0
), pools AS (
    -- One row per pool.
    SELECT DISTINCT cluster, pool FROM pool_names
), pool_nodes AS (
    -- One row per state of a node and pool that it counts in.
    SELECT f.cluster, f.node, p.pool, f.gpus_milli, f.free_gpus_milli, f.assumed_gpus_milli, f.is_usable, f.from_time, f.to_time
    FROM free_spans f
    JOIN pools p ON p.cluster = f.cluster
    WHERE coalesce(f.pool, '') = '' OR p.pool = '' OR strpos(',' || f.pool || ',', ',' || p.pool || ',') > 0
), pool_sizes AS (
    -- One row per pool, with its largest node.
    SELECT cluster, pool, max(gpus_milli) / 1000 AS largest_node_gpus FROM pool_nodes GROUP BY cluster, pool
), state_changes AS (
    -- One row per start (1) and end (-1) of a state of a node.
    SELECT cluster, pool, from_time AS at, 1 AS sign, gpus_milli, free_gpus_milli, assumed_gpus_milli, is_usable FROM pool_nodes
    UNION ALL
    SELECT cluster, pool, to_time, -1, gpus_milli, free_gpus_milli, assumed_gpus_milli, is_usable FROM pool_nodes WHERE to_time IS NOT NULL
), points AS (
    -- One row per pool and time at which any node changed.
    SELECT e.cluster, e.pool, e.at, s.largest_node_gpus, sum(e.sign * e.free_gpus_milli) AS free, sum(e.sign * e.is_usable * e.gpus_milli) AS usable,
           sum(e.sign * e.gpus_milli) AS present, sum(e.sign * e.assumed_gpus_milli) AS assumed
    FROM state_changes e JOIN pool_sizes s ON s.cluster = e.cluster AND s.pool = e.pool
    GROUP BY e.cluster, e.pool, e.at, s.largest_node_gpus
), pool_levels AS (
    -- The same rows, with the totals of the pool at that time.
    SELECT cluster, pool, at, largest_node_gpus,
           CAST(sum(free) OVER so_far AS BIGINT) AS free_gpus_milli,
           CAST(sum(usable) OVER so_far AS BIGINT) AS usable_gpus_milli,
           CAST(sum(present) OVER so_far AS BIGINT) AS present_gpus_milli,
           CAST(sum(assumed) OVER so_far AS BIGINT) AS assumed_gpus_milli,
           lead(at) OVER (PARTITION BY cluster, pool ORDER BY at) AS to_time
    FROM points
    WINDOW so_far AS (PARTITION BY cluster, pool ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), steps AS (
    -- One row per change and number of GPUs that it frees: a node with f GPUs free has at least 1,
    -- 2, … f.
    SELECT cluster, pool, at, unnest(range(1, free_gpus_milli / 1000 + 1)) AS gpus, sign FROM state_changes WHERE free_gpus_milli >= 1000
), fit_changes AS (
    -- One row per pool, time and number of GPUs: change of the nodes with that many free.
    SELECT cluster, pool, at, gpus, sum(sign) AS nodes FROM steps GROUP BY cluster, pool, at, gpus
), grid AS (
    -- One row per pool, time and number of GPUs.
    SELECT *, unnest(range(1, largest_node_gpus + 2)) AS gpus FROM pool_levels
), counted AS (
    -- The same rows, with the nodes that have that many free.
    SELECT g.*, CAST(sum(coalesce(c.nodes, 0)) OVER (PARTITION BY g.cluster, g.pool, g.gpus ORDER BY g.at
                     ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS nodes
    FROM grid g LEFT JOIN fit_changes c ON c.cluster = g.cluster AND c.pool = g.pool AND c.at = g.at AND c.gpus = g.gpus
)
SELECT cluster, pool, gpus, nodes, free_gpus_milli,
       coalesce(max(CASE WHEN nodes > 0 THEN gpus END) OVER (PARTITION BY cluster, pool, at), 0) AS largest_free_gpus,
       max(CASE WHEN gpus = 1 THEN nodes END) OVER (PARTITION BY cluster, pool, at) AS free_nodes,
       usable_gpus_milli, present_gpus_milli, assumed_gpus_milli, largest_node_gpus, at AS from_time, to_time
FROM counted
