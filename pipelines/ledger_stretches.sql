--! name    = "ledger_stretches"
--! doc     = "Where GPU time went while no agent watched the GPUs: stretches in which so many GPUs were of one class, by what jobs, nodes and pool samples say. Of imported history it is all there is. Nodes count up to the last event of their cluster."
--! question = "Where did GPU time go before agents watched, as in imported history?"
--! example  = "SELECT cluster, class, sum(gpu_ms(abs(gpus_milli), counted_from, from_time, to_time) * CASE WHEN gpus_milli < 0 THEN -1 ELSE 1 END) / 3600000 AS gpu_hours FROM ledger_stretches GROUP BY cluster, class ORDER BY cluster, gpu_hours DESC"
--! sources = ["attempts", "node_capacity", "capacity", "pool_samples", "job_events", "node_events", "capacity_events", "watched"]
--! once    = true
--! [columns]
--! cluster    = "Cluster."
--! pool       = "Pool of the job, or of the samples; of what nobody held the pool of all nodes, NULL if there are several."
--! node       = "Node of the job, if it had one only."
--! team       = "Team of the job; of samples, whose quota it is."
--! user_name  = "User of the job."
--! job_id     = "Job."
--! gpu_model  = "Model of the GPUs; NULL where nobody said, or of several."
--! class      = "As in ledger_1m. What held GPUs did is unknown without an agent; what was free while somebody waited is unknown up to what was asked for."
--! formula    = "As in ledger_1m."
--! gpus_milli = "Thousandths of a GPU. Rows of the class imbalance are what there is, and less than nothing for each row that has a part of it: they add up to nothing, but for what was held beyond what there is, and for what is lost where parts of a GPU are rounded to whole ms. Of samples they are the former only."
--! counted_from = "Since when GPU x ms are counted and rounded down: what they are up to a time, less what they are up to an earlier one, adds up wherever it is cut."
--! from_time  = "From when on."
--! to_time    = "Until when."
WITH changes AS (
    SELECT cluster, pool, gpu_model, from_time AS at, gpus_milli AS present, CASE WHEN health = 'unhealthy' THEN gpus_milli ELSE 0 END AS unhealthy,
           CASE WHEN health = 'drained' THEN gpus_milli ELSE 0 END AS drained, 0 AS held, 0 AS asked, 0 AS reserved
    FROM node_capacity
    UNION ALL
    SELECT cluster, NULL, NULL, to_time, -gpus_milli, CASE WHEN health = 'unhealthy' THEN -gpus_milli ELSE 0 END,
           CASE WHEN health = 'drained' THEN -gpus_milli ELSE 0 END, 0, 0, 0
    FROM node_capacity WHERE to_time IS NOT NULL
    UNION ALL
    SELECT cluster, NULL, NULL, unnest(make_array(from_time, coalesce(to_time, as_of))), 0, 0, 0, unnest(make_array(gpus_milli, -gpus_milli)), 0, 0
    FROM attempts WHERE from_time IS NOT NULL AND gpus_milli > 0
    UNION ALL
    SELECT cluster, NULL, NULL, unnest(make_array(queued_from, coalesce(queued_to, as_of))), 0, 0, 0, 0, unnest(make_array(asked_gpus_milli, -asked_gpus_milli)), 0
    FROM attempts WHERE queued_from IS NOT NULL AND asked_gpus_milli > 0 AND coalesce(queued_to, as_of) IS NOT NULL
    UNION ALL
    SELECT cluster, NULL, NULL, from_time, 0, 0, 0, 0, 0, gpus_milli FROM capacity WHERE kind = 'RESERVATION_SET' AND gpus_milli > 0
    UNION ALL
    SELECT cluster, NULL, NULL, to_time, 0, 0, 0, 0, 0, -gpus_milli FROM capacity WHERE kind = 'RESERVATION_SET' AND gpus_milli > 0 AND to_time IS NOT NULL
    UNION ALL
    -- Up to here the cluster was observed.
    SELECT cluster, NULL, NULL, max(event_time), 0, 0, 0, 0, 0, 0
    FROM (SELECT cluster, event_time FROM job_events UNION ALL SELECT cluster, event_time FROM node_events
          -- A price may be entered for a time to come.
          UNION ALL SELECT cluster, least(event_time, entered_time) FROM capacity_events)
    GROUP BY cluster
), points AS (
    SELECT cluster, at, sum(present) AS present, sum(unhealthy) AS unhealthy, sum(drained) AS drained, sum(held) AS held, sum(asked) AS asked,
           sum(reserved) AS reserved, min(pool) AS first_pool, max(pool) AS last_pool, min(gpu_model) AS first_model, max(gpu_model) AS last_model
    FROM changes
    WHERE cluster IN (SELECT cluster FROM node_capacity UNION SELECT cluster FROM capacity WHERE kind = 'RESERVATION_SET')
    GROUP BY cluster, at
), levels AS (
    SELECT cluster, at, lead(at) OVER (PARTITION BY cluster ORDER BY at) AS next_time,
           CAST(sum(present)   OVER so_far AS BIGINT) AS present,   CAST(sum(held)     OVER so_far AS BIGINT) AS held,
           CAST(sum(unhealthy) OVER so_far AS BIGINT) AS unhealthy, CAST(sum(drained)  OVER so_far AS BIGINT) AS drained,
           CAST(sum(asked)     OVER so_far AS BIGINT) AS asked,     CAST(sum(reserved) OVER so_far AS BIGINT) AS reserved,
           min(first_pool)  OVER so_far AS first_pool,  max(last_pool)  OVER so_far AS last_pool,
           min(first_model) OVER so_far AS first_model, max(last_model) OVER so_far AS last_model
    FROM points
    WINDOW so_far AS (PARTITION BY cluster ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), ill AS (
    -- As where agents watch: what is held is held, and only the rest is unhealthy, drained or free.
    SELECT *, greatest(present - held, 0) AS left_over, least(unhealthy, greatest(present - held, 0)) AS unhealthy_left
    FROM levels
    WHERE next_time IS NOT NULL
), free AS (
    SELECT *, least(drained, left_over - unhealthy_left) AS drained_left,
           left_over - unhealthy_left - least(drained, left_over - unhealthy_left) AS free
    FROM ill
), of_nodes AS (
    SELECT cluster, CASE WHEN first_pool = last_pool THEN last_pool END AS pool, CASE WHEN first_model = last_model THEN last_model END AS gpu_model,
           at AS from_time, next_time AS to_time,
           unnest(make_array('unhealthy', 'drained', 'unknown', 'no_demand', 'not_provisioned',
                             'imbalance', 'imbalance', 'imbalance', 'imbalance', 'imbalance'))                       AS class,
           unnest(make_array('capacity', 'capacity', 'queue', 'queue', 'capacity', 'hold', 'hold', 'hold', 'hold', 'hold')) AS formula,
           unnest(make_array(unhealthy_left, drained_left, least(free, asked), free - least(free, asked), greatest(reserved - present, 0),
                             present, -unhealthy_left, -drained_left, -least(free, asked), least(free, asked) - free)) AS gpus_milli
    FROM free
), samples AS (
    -- From when on jobs or nodes are known, samples of pools would count the same GPUs twice.
    SELECT p.cluster, p.owner, p.pool, p.event_time, p.interval_ms,
           coalesce(p.quota_gpus_milli, 0) AS quota, coalesce(p.held_gpus_milli, 0) AS held,
           greatest(coalesce(p.quota_gpus_milli, 0) - coalesce(p.held_gpus_milli, 0), 0) AS idle, coalesce(p.queued_gpus_milli, 0) AS queued,
           lead(p.event_time) OVER (PARTITION BY p.cluster, p.owner, p.pool ORDER BY p.event_time) AS next_time,
           o.from_time AS known_from
    FROM pool_samples p
    LEFT JOIN (SELECT cluster, min(event_time) AS from_time
               FROM (SELECT cluster, event_time FROM job_events UNION ALL SELECT cluster, event_time FROM node_events WHERE kind = 'NODE_REGISTERED')
               GROUP BY cluster) o ON o.cluster = p.cluster
), beside AS (
    -- What is idle while its own team waits lies in shapes that a count does not tell. A whole cluster in which nobody holds nor waits for
    -- anything is taken for one that was not looked at.
    SELECT *, least(queued, idle) AS own, CAST(sum(held + queued) OVER (PARTITION BY cluster, event_time) AS BIGINT) AS in_use,
           CAST(sum(queued - least(queued, idle)) OVER (PARTITION BY cluster, event_time) AS BIGINT) AS others,
           CAST(sum(idle - least(queued, idle))   OVER (PARTITION BY cluster, event_time) AS BIGINT) AS all_idle,
           CAST(sum(idle - least(queued, idle))   OVER (PARTITION BY cluster, event_time ORDER BY owner, pool) AS BIGINT) - idle + least(queued, idle) AS before
    FROM samples
), stranded AS (
    SELECT *, share_of(least(others, all_idle), before, idle - own, all_idle) AS stranded,
           least(plus_ms(event_time, interval_ms), next_time, known_from) AS to_time, least(next_time, known_from) AS gap_end
    FROM beside
), of_samples AS (
    SELECT cluster, owner, pool,
           unnest(make_array('unknown', 'unknown', 'quota_stranded', 'no_demand', 'unknown', 'imbalance', 'unknown'))  AS class,
           unnest(make_array('hold', 'queue', 'queue', 'queue', 'capacity', 'hold', 'capacity'))                       AS formula,
           unnest(make_array(held, own, stranded, CASE WHEN in_use > 0 THEN idle - own - stranded ELSE 0 END,
                             CASE WHEN in_use = 0 THEN idle ELSE 0 END, least(quota - held, 0), quota))                AS gpus_milli,
           -- The last one: from the end of a sample to the next nobody looked.
           unnest(make_array(event_time, event_time, event_time, event_time, event_time, event_time, to_time))         AS from_time,
           unnest(make_array(to_time, to_time, to_time, to_time, to_time, to_time,
                             CASE WHEN next_time IS NULL THEN to_time ELSE gap_end END))                               AS to_time
    FROM stranded
), stretches AS (
    SELECT cluster, pool, node, team, user_name, job_id, gpu_model, 'unknown' AS class, 'hold' AS formula, gpus_milli,
           from_time AS counted_from, from_time, coalesce(to_time, as_of) AS to_time
    FROM attempts
    WHERE from_time IS NOT NULL AND gpus_milli > 0
    UNION ALL
    SELECT a.cluster, NULL, NULL, NULL, NULL, NULL, NULL, 'imbalance', 'hold', -a.gpus_milli,
           a.from_time AS counted_from, greatest(a.from_time, n.from_time) AS from_time, coalesce(a.to_time, a.as_of) AS to_time
    FROM attempts a
    JOIN (SELECT cluster, min(from_time) AS from_time FROM node_capacity GROUP BY cluster) n ON n.cluster = a.cluster
    WHERE a.from_time IS NOT NULL AND a.gpus_milli > 0
    UNION ALL
    SELECT cluster, CASE WHEN class <> 'imbalance' THEN pool END, NULL, NULL, NULL, NULL, CASE WHEN class <> 'imbalance' THEN gpu_model END, class, formula, gpus_milli,
           plus_ms(from_time, -unix_ms(from_time)), from_time, to_time
    FROM of_nodes
    UNION ALL
    SELECT cluster, pool, NULL, owner, NULL, NULL, NULL, class, formula, gpus_milli, plus_ms(from_time, -unix_ms(from_time)), from_time, to_time FROM of_samples
)
SELECT s.cluster, s.pool, s.node, s.team, s.user_name, s.job_id, s.gpu_model, s.class, s.formula, s.gpus_milli, s.counted_from, s.from_time,
       least(s.to_time, w.from_time) AS to_time
FROM stretches s
LEFT JOIN watched w ON w.cluster = s.cluster
WHERE s.gpus_milli <> 0 AND s.from_time < least(s.to_time, w.from_time)
