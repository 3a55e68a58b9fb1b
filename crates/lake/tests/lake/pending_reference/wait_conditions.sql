--! name    = "wait_conditions"
--! doc     = "Conditions under which jobs waited: each stretch of eligible_waits, cut wherever the free GPUs of its pool, an exceeded quota, its place in line or its eligibility changed. The step before pending, which derives the constraint from one row."
--! question = "Under which conditions did a job wait, from one change to the next?"
--! example  = "SELECT at, next_at, is_first, exceeded_quotas, fitting_nodes, free_gpus_milli / 1000 AS free_gpus FROM wait_conditions WHERE job_id = '4711' ORDER BY at"
--! sources = ["eligible_waits", "wait_pool_fits", "wait_quotas", "first_in_line_before"]
--! [columns]
--! cluster            = "Cluster."
--! job_id             = "Job."
--! from_time          = "Start of the stretch of the wait."
--! at                 = "Start of these conditions."
--! next_at            = "Next change in the same stretch; NULL for the last conditions of the stretch."
--! is_first           = "More than 0 if the job is first in line."
--! exceeded_quotas    = "Quotas that have no room for the job."
--! quota_gpus_milli   = "The exceeded quota with the least room, thousandths of a GPU; NULL if none was."
--! quota_held_gpus_milli = "Held of that quota, thousandths of a GPU."
--! fitting_nodes      = "Nodes with at least as many GPUs free as the job needs on one; NULL if nodes are not known, as in the following columns."
--! free_gpus_milli    = "Free in the pool, thousandths of a GPU."
--! largest_free_gpus  = "Most whole GPUs free on one node."
--! free_nodes         = "Nodes with at least one whole GPU free."
--! usable_gpus_milli  = "On nodes where jobs may start, held or free, thousandths of a GPU."
--! present_gpus_milli = "On all nodes, including nodes that are down or drained, thousandths of a GPU."
--! assumed_gpus_milli = "Assumed held by jobs whose nodes are not known, thousandths of a GPU."
WITH open_waits AS (
    -- One row per stretch of a wait that lasted at all.
    SELECT * FROM eligible_waits WHERE from_time < known_to
), turns AS (
    -- One row per stretch of a wait and time in which its job was first in line.
    SELECT w.cluster, w.job_id, w.from_time, w.known_to, greatest(f.from_time, w.from_time) AS at, f.to_time AS until
    FROM open_waits w
    JOIN first_in_line_before f ON f.cluster = w.cluster AND f.job_id = w.job_id
    WHERE w.is_open = 1 AND f.from_time < w.known_to AND coalesce(f.to_time > w.from_time, true)
), changes AS (
    -- One row per change: what begins counts 1, what ends -1; NULL is no news.
    SELECT cluster, job_id, from_time, unnest(make_array(from_time, eligible_from)) AS at, 0 AS is_first, 0 AS exceeded_quotas,
           CAST(NULL AS BIGINT) AS quota_gpus_milli, CAST(NULL AS BIGINT) AS quota_held_gpus_milli,
           CAST(NULL AS BIGINT) AS fitting_nodes, CAST(NULL AS BIGINT) AS free_gpus_milli,
           CAST(NULL AS BIGINT) AS largest_free_gpus, CAST(NULL AS BIGINT) AS free_nodes,
           CAST(NULL AS BIGINT) AS usable_gpus_milli, CAST(NULL AS BIGINT) AS present_gpus_milli,
           CAST(NULL AS BIGINT) AS assumed_gpus_milli, known_to
    FROM open_waits
    UNION ALL
    SELECT cluster, job_id, from_time, at, 0, 0, NULL, NULL, nodes, free_gpus_milli, largest_free_gpus, free_nodes,
           usable_gpus_milli, present_gpus_milli, assumed_gpus_milli, known_to
    FROM wait_pool_fits
    UNION ALL
    SELECT cluster, job_id, from_time, unnest(make_array(at, until)), unnest(make_array(1, -1)), 0, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, known_to
    FROM turns
    UNION ALL
    SELECT cluster, job_id, from_time, unnest(make_array(at, until)), 0, unnest(make_array(1, -1)), NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, NULL, known_to
    FROM wait_quotas
), points AS (
    -- One row per stretch of a wait and time at which anything changed.
    SELECT cluster, job_id, from_time, at, sum(is_first) AS is_first, sum(exceeded_quotas) AS exceeded_quotas,
           max(quota_gpus_milli) AS quota_gpus_milli, max(quota_held_gpus_milli) AS quota_held_gpus_milli,
           max(fitting_nodes) AS fitting_nodes, max(free_gpus_milli) AS free_gpus_milli, max(largest_free_gpus) AS largest_free_gpus,
           max(free_nodes) AS free_nodes, max(usable_gpus_milli) AS usable_gpus_milli,
           max(present_gpus_milli) AS present_gpus_milli, max(assumed_gpus_milli) AS assumed_gpus_milli
    FROM changes
    WHERE at >= from_time AND at < known_to
    GROUP BY cluster, job_id, from_time, at
), exceeded AS (
    -- One row per such time and exceeded quota, the one with the least room first.
    SELECT p.cluster, p.job_id, p.from_time, p.at, q.quota_gpus_milli, q.held_gpus_milli,
           row_number() OVER (PARTITION BY p.cluster, p.job_id, p.from_time, p.at
                              ORDER BY q.held_gpus_milli - q.quota_gpus_milli DESC, q.quota_gpus_milli DESC) AS place
    FROM points p
    JOIN wait_quotas q ON q.cluster = p.cluster AND q.job_id = p.job_id AND q.from_time = p.from_time AND q.at <= p.at AND q.until > p.at
), conditions AS (
    SELECT cluster, job_id, from_time, at,
       lead(at) OVER (PARTITION BY cluster, job_id, from_time ORDER BY at) AS next_at,
       sum(is_first) OVER so_far                                           AS is_first,
       sum(exceeded_quotas) OVER so_far                                    AS exceeded_quotas,
       last_value(fitting_nodes) IGNORE NULLS OVER so_far                  AS fitting_nodes,
       last_value(free_gpus_milli) IGNORE NULLS OVER so_far                AS free_gpus_milli,
       last_value(largest_free_gpus) IGNORE NULLS OVER so_far              AS largest_free_gpus,
       last_value(free_nodes) IGNORE NULLS OVER so_far                     AS free_nodes,
       last_value(usable_gpus_milli) IGNORE NULLS OVER so_far              AS usable_gpus_milli,
       last_value(present_gpus_milli) IGNORE NULLS OVER so_far             AS present_gpus_milli,
       last_value(assumed_gpus_milli) IGNORE NULLS OVER so_far             AS assumed_gpus_milli
FROM points
WINDOW so_far AS (PARTITION BY cluster, job_id, from_time ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT c.*, e.quota_gpus_milli, e.held_gpus_milli AS quota_held_gpus_milli
FROM conditions c
LEFT JOIN exceeded e ON e.cluster = c.cluster AND e.job_id = c.job_id AND e.from_time = c.from_time AND e.at = c.at AND e.place = 1
