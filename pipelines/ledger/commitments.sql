--! name    = "commitments"
--! doc     = "Reserved GPUs that no node provides, over time. A reservation that names nodes does not count here, because those nodes exist."
--! question = "Which reserved GPUs are missing?"
--! example  = "SELECT cluster, pool, gpus_milli / 1000.0 AS gpus_missing, from_time FROM commitments WHERE to_time IS NULL"
--! sources = ["capacity", "node_capacity"]
--! once    = true
--! [columns]
--! cluster    = "Cluster."
--! pool       = "Pool; NULL for commitments without a pool. All nodes back those, with what they do not already back of pools."
--! gpus_milli = "Commitments of the pool less the GPUs of its nodes, thousandths of a GPU."
--! from_time  = "Start."
--! to_time    = "End; NULL while it lasts."
WITH committed AS (
    -- One row per reservation without named nodes.
    SELECT cluster, coalesce(pool, '') AS pool, gpus_milli, from_time, to_time
    FROM capacity
    WHERE kind = 'RESERVATION_SET' AND nodes IS NULL AND gpus_milli > 0
), pools AS (
    -- One row per pool with such a reservation; empty for all nodes.
    SELECT DISTINCT cluster, pool FROM committed
), pool_capacity AS (
    -- One row per pool and state of a node in it.
    SELECT p.cluster, p.pool, n.gpus_milli, n.from_time, n.to_time
    FROM pools p
    JOIN node_capacity n ON n.cluster = p.cluster AND (p.pool = '' OR strpos(concat(',', n.pool, ','), concat(',', p.pool, ',')) > 0)
), changes AS (
    -- One row per start and end of these.
    SELECT cluster, pool, from_time AS at, gpus_milli AS committed, 0 AS there FROM committed
    UNION ALL
    SELECT cluster, pool, to_time, -gpus_milli, 0 FROM committed WHERE to_time IS NOT NULL
    UNION ALL
    SELECT cluster, pool, from_time, 0, gpus_milli FROM pool_capacity
    UNION ALL
    SELECT cluster, pool, to_time, 0, -gpus_milli FROM pool_capacity WHERE to_time IS NOT NULL
), points AS (
    -- One row per pool and time at which anything changed.
    SELECT cluster, pool, at, sum(committed) AS committed, sum(there) AS there FROM changes GROUP BY cluster, pool, at
), levels AS (
    -- The same rows, with committed and existing GPUs at that time.
    SELECT cluster, pool, at, lead(at) OVER (PARTITION BY cluster, pool ORDER BY at) AS to_time,
           CAST(sum(committed) OVER so_far AS BIGINT) AS committed, CAST(sum(there) OVER so_far AS BIGINT) AS there
    FROM points
    WINDOW so_far AS (PARTITION BY cluster, pool ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), backing AS (
    -- One row per start and end of what nodes back of commitments of pools; they do not back others
    -- with it.
    SELECT l.cluster, unnest(make_array(l.at, l.to_time)) AS at, unnest(make_array(1, -1)) * least(l.committed, l.there) AS taken
    FROM levels l
    WHERE l.pool <> '' AND l.cluster IN (SELECT cluster FROM pools WHERE pool = '')
), cluster_points AS (
    -- One row per cluster and time, for commitments without a pool.
    SELECT cluster, at, sum(committed) AS committed, sum(there) AS there
    FROM (SELECT cluster, at, committed, there FROM points WHERE pool = ''
          UNION ALL
          SELECT cluster, at, 0, -taken FROM backing WHERE at IS NOT NULL)
    GROUP BY cluster, at
), cluster_levels AS (
    -- The same rows, with committed and remaining GPUs at that time.
    SELECT cluster, at, lead(at) OVER (PARTITION BY cluster ORDER BY at) AS to_time,
           CAST(sum(committed) OVER so_far AS BIGINT) AS committed, CAST(sum(there) OVER so_far AS BIGINT) AS there
    FROM cluster_points
    WINDOW so_far AS (PARTITION BY cluster ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT cluster, pool, committed - there AS gpus_milli, at AS from_time, to_time FROM levels WHERE pool <> '' AND committed > there
UNION ALL
SELECT cluster, NULL, committed - greatest(there, 0), at, to_time FROM cluster_levels WHERE committed > greatest(there, 0)
