--! name    = "pool_fit"
--! version = 2
--! doc     = "How many nodes of a pool had at least a given number of GPUs free at the same time, cut at UTC days. A job of N nodes with G GPUs each fits if nodes >= N in the row with gpus = G."
--! question = "Would a job of 4 nodes with 8 GPUs each fit now?"
--! example  = "SELECT cluster, pool, nodes >= 4 AS fits, nodes, free_gpus_milli / 1000 AS free_gpus, largest_free_gpus FROM pool_fit WHERE gpus = 8 AND to_time IS NULL"
--! sources = ["free_spans", "waits"]
--! window  = "1d"
--! opening = true
--! wait_outcome = false
--! key     = ["window_start", "cluster", "pool", "gpus", "from_time", "to_time"]
--! [extents]
--! free_spans = { from = "from_time", to = "to_time" }
--! waits      = { from = "from_time", to = "to_time" }
--! [columns]
--! window_start        = "Start of the UTC day."
--! cluster             = "Cluster."
--! pool                = "Pool. A node in several pools counts in each; a node in no pool counts in every pool that nodes or waiting jobs name on that day. Empty: all nodes, where a job without a pool may run."
--! gpus                = "Number of whole GPUs on one node, at most 129. The last row has one more than any node of the pool has, so that nodes is 0."
--! nodes               = "Nodes with at least that many GPUs free."
--! free_gpus_milli     = "Free in the whole pool, thousandths of a GPU."
--! largest_free_gpus   = "Most whole GPUs free on one node, at most 128."
--! free_nodes          = "Nodes with at least one whole GPU free."
--! usable_gpus_milli   = "GPUs of nodes where jobs may start, held or free, thousandths."
--! present_gpus_milli  = "GPUs of all nodes, including nodes that are down or drained, thousandths."
--! assumed_gpus_milli  = "Assumed held on its nodes by jobs whose nodes are not known, as in node_free. `nodes` counts the nodes that would fit under this assumption."
--! largest_node_gpus   = "Most GPUs that any node of the pool had on that day; of a node with more than 128, 128 count here and in nodes."
--! from_time           = "Start."
--! to_time             = "End, at most that of the day; NULL for the latest row."
WITH node_parts AS (
    -- One row per day and state of a node.
    SELECT window_start, cluster, node, coalesce(pool, '') AS pool, gpus_milli, free_gpus_milli, assumed_gpus_milli, is_usable, clip_from, clip_end
    FROM free_spans
), pool_names AS (
    -- One row per mention of a pool by nodes or waiting jobs.
    SELECT window_start, cluster, unnest(string_to_array(pool, ',')) AS pool FROM node_parts WHERE pool <> ''
    UNION ALL
    SELECT window_start, cluster, '' FROM node_parts WHERE pool = ''
    UNION ALL
    SELECT window_start, cluster, coalesce(pool, '') FROM waits WHERE gpus_milli > 0
), pools AS (
    -- One row per day and pool.
    SELECT DISTINCT window_start, cluster, pool FROM pool_names
), pool_nodes AS (
    -- One row per state of a node and pool that it counts in.
    SELECT f.window_start, f.cluster, p.pool, f.gpus_milli, f.free_gpus_milli, f.assumed_gpus_milli, f.is_usable, f.clip_from, f.clip_end
    FROM node_parts f
    JOIN pools p ON p.window_start = f.window_start AND p.cluster = f.cluster
    WHERE f.pool = '' OR p.pool = '' OR strpos(',' || f.pool || ',', ',' || p.pool || ',') > 0
), state_changes AS (
    -- One row per start (1) and end (-1) of a state of a node.
    SELECT window_start, cluster, pool, clip_from AS at, 1 AS sign, gpus_milli, free_gpus_milli, assumed_gpus_milli, is_usable FROM pool_nodes
    UNION ALL
    SELECT window_start, cluster, pool, clip_end, -1, gpus_milli, free_gpus_milli, assumed_gpus_milli, is_usable
    FROM pool_nodes WHERE clip_end IS NOT NULL
), points AS (
    -- One row per pool and time at which any node changed.
    SELECT window_start, cluster, pool, at, least(max(gpus_milli) / 1000, 128) AS largest, sum(sign) AS nodes, sum(sign * free_gpus_milli) AS free,
           sum(sign * is_usable * gpus_milli) AS usable, sum(sign * gpus_milli) AS present, sum(sign * assumed_gpus_milli) AS assumed
    FROM state_changes
    GROUP BY window_start, cluster, pool, at
), pool_levels AS (
    -- The same rows, with the totals of the pool at that time.
    SELECT window_start, cluster, pool, at,
           max(largest) OVER (PARTITION BY window_start, cluster, pool) AS largest_node_gpus,
           CAST(sum(nodes) OVER so_far AS BIGINT) AS nodes_in_pool,
           CAST(sum(free) OVER so_far AS BIGINT) AS free_gpus_milli,
           CAST(sum(usable) OVER so_far AS BIGINT) AS usable_gpus_milli,
           CAST(sum(present) OVER so_far AS BIGINT) AS present_gpus_milli,
           CAST(sum(assumed) OVER so_far AS BIGINT) AS assumed_gpus_milli,
           lead(at) OVER (PARTITION BY window_start, cluster, pool ORDER BY at) AS to_time
    FROM points
    WINDOW so_far AS (PARTITION BY window_start, cluster, pool ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), steps AS (
    -- One row per change and number of GPUs that it frees: a node with f GPUs free has at least 1,
    -- 2, … f. One event may claim a million GPUs, so there is a limit.
    SELECT window_start, cluster, pool, at, unnest(range(1, least(free_gpus_milli / 1000, 128) + 1)) AS gpus, sign
    FROM state_changes WHERE free_gpus_milli >= 1000
), fit_changes AS (
    -- One row per pool, time and number of GPUs: change of the nodes with that many free.
    SELECT window_start, cluster, pool, at, gpus, sum(sign) AS nodes FROM steps GROUP BY window_start, cluster, pool, at, gpus
), grid AS (
    -- One row per pool, time and number of GPUs.
    SELECT *, unnest(range(1, largest_node_gpus + 2)) AS gpus FROM pool_levels
), counted AS (
    -- The same rows, with the nodes that have that many free.
    SELECT g.*, CAST(sum(coalesce(c.nodes, 0)) OVER (PARTITION BY g.window_start, g.cluster, g.pool, g.gpus ORDER BY g.at
                     ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS nodes
    FROM grid g
    LEFT JOIN fit_changes c
      ON c.window_start = g.window_start AND c.cluster = g.cluster AND c.pool = g.pool AND c.at = g.at AND c.gpus = g.gpus
), rows_of_fit AS (
    -- The same rows, with what the fit of all numbers of GPUs has in common.
    SELECT *, coalesce(max(CASE WHEN nodes > 0 THEN gpus END) OVER of_time, 0) AS largest_free_gpus,
           max(CASE WHEN gpus = 1 THEN nodes END) OVER of_time AS free_nodes
    FROM counted
    WINDOW of_time AS (PARTITION BY window_start, cluster, pool, at)
)
SELECT window_start, cluster, pool, gpus, nodes, free_gpus_milli, largest_free_gpus, free_nodes,
       usable_gpus_milli, present_gpus_milli, assumed_gpus_milli, largest_node_gpus, at AS from_time, to_time
FROM rows_of_fit
WHERE nodes_in_pool > 0
