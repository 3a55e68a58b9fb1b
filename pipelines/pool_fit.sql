--! name    = "pool_fit"
--! doc     = "How many nodes of a pool had at least so many GPUs free at once, from when to when: a job of N nodes with G GPUs each fits if nodes >= N where gpus = G."
--! question = "Would a job of 4 nodes with 8 GPUs each fit now?"
--! example  = "SELECT cluster, pool, nodes >= 4 AS fits, nodes, free_gpus_milli / 1000 AS free_gpus, largest_free_gpus FROM pool_fit WHERE gpus = 8 AND to_time IS NULL"
--! sources = ["node_free", "node_holds"]
--! once    = true
--! [columns]
--! cluster             = "Cluster."
--! pool                = "Pool; a node in several pools counts in each. Empty for nodes that are in none."
--! gpus                = "So many whole GPUs on one node; the last number is one more than any node of the pool has, so that nodes is 0."
--! nodes               = "Nodes with at least that many free."
--! free_gpus_milli     = "Free in the whole pool, thousandths of a GPU."
--! largest_free_gpus   = "Most whole GPUs free on one node."
--! free_nodes          = "Nodes with at least one whole GPU free."
--! usable_gpus_milli   = "Of nodes that jobs may start on, held or free."
--! present_gpus_milli  = "Of all nodes, down and drained ones too."
--! unplaced_gpus_milli = "Held by jobs of the pool on nodes that are not known: nodes and free_gpus_milli are too high by up to that."
--! largest_node_gpus   = "Most GPUs that a node of the pool ever had."
--! from_time           = "From when on."
--! to_time             = "Until when; NULL for the latest."
WITH segments AS (
    SELECT cluster, node, unnest(string_to_array(coalesce(pool, ''), ',')) AS pool, gpus_milli, free_gpus_milli, is_usable, from_time, to_time
    FROM node_free
), size AS (
    SELECT cluster, pool, max(gpus_milli) / 1000 AS largest_node_gpus FROM segments GROUP BY cluster, pool
), ends AS (
    SELECT cluster, pool, from_time AS at, 1 AS sign, gpus_milli, free_gpus_milli, is_usable FROM segments
    UNION ALL
    SELECT cluster, pool, to_time, -1, gpus_milli, free_gpus_milli, is_usable FROM segments WHERE to_time IS NOT NULL
), totals AS (
    SELECT cluster, pool, at, sign * free_gpus_milli AS free, sign * is_usable * gpus_milli AS usable, sign * gpus_milli AS present, 0 AS unplaced
    FROM ends
    UNION ALL
    SELECT cluster, coalesce(pool, ''), from_time, 0, 0, 0, gpus_milli FROM node_holds WHERE node IS NULL
    UNION ALL
    SELECT cluster, coalesce(pool, ''), to_time, 0, 0, 0, -gpus_milli FROM node_holds WHERE node IS NULL AND to_time IS NOT NULL
), points AS (
    SELECT t.cluster, t.pool, at, s.largest_node_gpus,
           sum(free) AS free, sum(usable) AS usable, sum(present) AS present, sum(unplaced) AS unplaced
    FROM totals t JOIN size s ON s.cluster = t.cluster AND s.pool = t.pool
    GROUP BY t.cluster, t.pool, at, s.largest_node_gpus
), pools AS (
    SELECT cluster, pool, at, largest_node_gpus,
           CAST(sum(free) OVER so_far AS BIGINT) AS free_gpus_milli,
           CAST(sum(usable) OVER so_far AS BIGINT) AS usable_gpus_milli,
           CAST(sum(present) OVER so_far AS BIGINT) AS present_gpus_milli,
           CAST(sum(unplaced) OVER so_far AS BIGINT) AS unplaced_gpus_milli,
           lead(at) OVER (PARTITION BY cluster, pool ORDER BY at) AS to_time
    FROM points
    WINDOW so_far AS (PARTITION BY cluster, pool ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), steps AS (
    -- A node with f GPUs free is one of those with at least 1, 2, … f.
    SELECT cluster, pool, at, unnest(range(1, free_gpus_milli / 1000 + 1)) AS gpus, sign FROM ends WHERE free_gpus_milli >= 1000
), changes AS (
    SELECT cluster, pool, at, gpus, sum(sign) AS nodes FROM steps GROUP BY cluster, pool, at, gpus
), grid AS (
    SELECT *, unnest(range(1, largest_node_gpus + 2)) AS gpus FROM pools
), counted AS (
    SELECT g.*, CAST(sum(coalesce(c.nodes, 0)) OVER (PARTITION BY g.cluster, g.pool, g.gpus ORDER BY g.at
                     ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS nodes
    FROM grid g LEFT JOIN changes c ON c.cluster = g.cluster AND c.pool = g.pool AND c.at = g.at AND c.gpus = g.gpus
)
SELECT cluster, pool, gpus, nodes, free_gpus_milli,
       coalesce(max(CASE WHEN nodes > 0 THEN gpus END) OVER (PARTITION BY cluster, pool, at), 0) AS largest_free_gpus,
       max(CASE WHEN gpus = 1 THEN nodes END) OVER (PARTITION BY cluster, pool, at) AS free_nodes,
       usable_gpus_milli, present_gpus_milli, unplaced_gpus_milli, largest_node_gpus, at AS from_time, to_time
FROM counted
