--! name    = "node_free"
--! doc     = "How many GPUs of each node were free, from when to when."
--! question = "Where are GPUs free right now?"
--! example  = "SELECT node, pool, gpu_model, free_gpus_milli / 1000.0 AS free_gpus, gpus_milli / 1000.0 AS gpus, state FROM node_free WHERE to_time IS NULL AND is_usable = 1 AND free_gpus_milli > 0 ORDER BY free_gpus_milli DESC LIMIT 100"
--! sources = ["node_capacity", "node_holds"]
--! once    = true
--! [columns]
--! cluster         = "Cluster."
--! node            = "Node."
--! pool            = "Pools the node is in, comma separated."
--! gpu_model       = "Model of its GPUs."
--! state           = "Its state as the scheduler names it; NULL if nobody told."
--! is_usable       = "1 if jobs may start on it, as in node_capacity."
--! gpus_milli      = "Its GPUs, thousandths."
--! held_gpus_milli = "Held by jobs, thousandths; more than it has where a source tells of a hold twice."
--! free_gpus_milli = "Free for jobs to start on, thousandths; 0 while it is not usable."
--! from_time       = "From when on."
--! to_time         = "Until when; NULL for the latest."
WITH changes AS (
    SELECT cluster, node, from_time AS at, 0 AS held, 1 AS is_there, pool, gpu_model, state, is_usable, gpus_milli FROM node_capacity
    UNION ALL
    SELECT cluster, node, to_time, 0, 0, NULL, NULL, NULL, NULL, NULL FROM node_capacity WHERE to_time IS NOT NULL
    UNION ALL
    SELECT cluster, node, from_time, gpus_milli AS held, NULL, NULL, NULL, NULL, NULL, NULL FROM node_holds WHERE node IS NOT NULL
    UNION ALL
    SELECT cluster, node, to_time, -gpus_milli AS held, NULL, NULL, NULL, NULL, NULL, NULL
    FROM node_holds WHERE node IS NOT NULL AND to_time IS NOT NULL
), points AS (
    -- What ends at a moment is followed by what begins then: 1 is greater than 0.
    SELECT cluster, node, at, sum(held) AS held, max(is_there) AS is_there,
           max(pool) AS pool, max(gpu_model) AS gpu_model, max(state) AS state, max(is_usable) AS is_usable, max(gpus_milli) AS gpus_milli
    FROM changes
    GROUP BY cluster, node, at
), numbered AS (
    -- Values of a node are those of the latest change of its capacity, NULLs too: a state that nobody tells any more.
    SELECT *, count(is_there) OVER so_far AS capacity_no,
           CAST(sum(held) OVER so_far AS BIGINT) AS held_gpus_milli,
           lead(at) OVER (PARTITION BY cluster, node ORDER BY at) AS to_time
    FROM points
    WINDOW so_far AS (PARTITION BY cluster, node ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), filled AS (
    SELECT cluster, node, at, to_time, held_gpus_milli,
           max(is_there) OVER of_capacity AS is_there, max(pool) OVER of_capacity AS pool, max(gpu_model) OVER of_capacity AS gpu_model,
           max(state) OVER of_capacity AS state, max(is_usable) OVER of_capacity AS is_usable, max(gpus_milli) OVER of_capacity AS gpus_milli
    FROM numbered
    WINDOW of_capacity AS (PARTITION BY cluster, node, capacity_no)
)
SELECT cluster, node, pool, gpu_model, state, is_usable, gpus_milli, held_gpus_milli,
       CASE WHEN is_usable = 1 THEN greatest(gpus_milli - held_gpus_milli, 0) ELSE 0 END AS free_gpus_milli,
       at AS from_time, to_time
FROM filled
WHERE is_there = 1
