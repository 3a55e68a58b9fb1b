--! name    = "ledger_stretches"
--! doc     = "The ledger before agents monitor a cluster: intervals in which a number of GPUs were of one class, from jobs, nodes and pool samples. Imported history has nothing else. Nodes count up to the last event of their cluster."
--! question = "Where did GPU time go before agents monitored the cluster, as in imported history?"
--! example  = "SELECT cluster, class, sum(gpu_ms(abs(gpus_milli), counted_from, from_time, to_time) * CASE WHEN gpus_milli < 0 THEN -1 ELSE 1 END) / 3600000 AS gpu_hours FROM ledger_stretches GROUP BY cluster, class ORDER BY cluster, gpu_hours DESC"
--! sources = ["attempts", "occupancy_facts", "commitments", "pool_samples", "job_events", "node_events", "capacity_events", "watched"]
--! once    = true
--! [columns]
--! cluster    = "Cluster."
--! pool       = "Pool of the job, or of the samples; of unheld GPUs the pool of all nodes, NULL if there are several."
--! node       = "Node of the job, if it had only one."
--! team       = "Team of the job; of samples the owner of the quota."
--! user_name  = "User of the job."
--! job_id     = "Job."
--! gpu_model  = "Model of the GPUs; NULL if not known, or if there are several."
--! class      = "Class of the time: one of ledger_classes. Without an agent, activity of held GPUs is unknown."
--! formula    = "As in ledger_1m."
--! gpus_milli = "Thousandths of a GPU; negative for the class imbalance."
--! counted_from = "Time from which GPU x ms are accumulated and rounded down. The value up to one time less the value up to an earlier one adds up wherever the interval is split."
--! from_time  = "Start."
--! to_time    = "End."
WITH recorded AS (
    -- One row per event of any kind.
    SELECT cluster, event_time AS at FROM job_events
    UNION ALL
    SELECT cluster, event_time FROM node_events
    UNION ALL
    -- A price may be entered for a future time.
    SELECT cluster, least(event_time, entered_time) FROM capacity_events
    UNION ALL
    SELECT cluster, plus_ms(event_time, interval_ms) FROM pool_samples
), cluster_ends AS (
    -- One row per cluster: the time until which intervals count. Where agents monitor, the ledger
    -- by device takes over.
    SELECT cluster, from_time AS until FROM watched
    UNION ALL
    SELECT r.cluster, max(r.at)
    FROM recorded r
    LEFT ANTI JOIN watched w ON w.cluster = r.cluster
    GROUP BY r.cluster
), facts AS (
    -- One row per fact on nodes and jobs before that time.
    SELECT f.*, unix_ms(f.from_time) AS from_ms, unix_ms(least(f.to_time, k.until)) AS to_ms
    FROM occupancy_facts f
    JOIN cluster_ends k ON k.cluster = f.cluster
    WHERE f.kind NOT IN ('device', 'starting') AND f.from_time < k.until
), idle_rows AS (
    -- One row per interval of GPUs that no job held, as a struct.
    SELECT cluster, unnest(idle_stretches(gathered(named_struct(
               'kind', kind, 'node', node, 'job', job_id, 'pool', pool, 'team', team, 'user_name', user_name, 'gpu', gpu, 'mig', mig,
               'word', word, 'gpus', gpus_milli, 'a', a, 'b', b, 'c', c, 'd', 0, 'e', 0, 'from_ms', from_ms, 'to_ms', to_ms)))) AS row
    FROM facts
    GROUP BY cluster
), idle_intervals AS (
    -- The same rows as columns.
    SELECT i.cluster, nullif(i.row['pool'], '') AS pool, nullif(i.row['gpu_model'], '') AS gpu_model, i.row['class'] AS class,
           i.row['formula'] AS formula, i.row['gpus_milli'] AS gpus_milli,
           plus_ms(k.until, i.row['from_ms'] - unix_ms(k.until)) AS from_time, plus_ms(k.until, i.row['to_ms'] - unix_ms(k.until)) AS to_time
    FROM idle_rows i
    JOIN cluster_ends k ON k.cluster = i.cluster
), samples AS (
    -- One row per pool sample. Once jobs or nodes are known, samples would count the same GPUs
    -- twice.
    SELECT p.cluster, p.owner, p.pool, p.event_time, p.interval_ms,
           coalesce(p.quota_gpus_milli, 0) AS quota, coalesce(p.held_gpus_milli, 0) AS held,
           greatest(coalesce(p.quota_gpus_milli, 0) - coalesce(p.held_gpus_milli, 0), 0) AS idle, coalesce(p.queued_gpus_milli, 0) AS queued,
           lead(p.event_time) OVER (PARTITION BY p.cluster, p.owner, p.pool ORDER BY p.event_time) AS next_time,
           o.from_time AS known_from
    FROM pool_samples p
    LEFT JOIN (SELECT cluster, min(event_time) AS from_time
               FROM (SELECT cluster, event_time FROM job_events UNION ALL SELECT cluster, event_time FROM node_events WHERE kind = 'NODE_REGISTERED')
               GROUP BY cluster) o ON o.cluster = p.cluster
), sample_totals AS (
    -- The same rows, with the totals of the cluster. Idle quota whose own team waits is of unknown
    -- use. A cluster without any job is taken as not observed.
    SELECT *, least(queued, idle) AS own, CAST(sum(held + queued) OVER (PARTITION BY cluster, event_time) AS BIGINT) AS in_use,
           CAST(sum(queued - least(queued, idle)) OVER (PARTITION BY cluster, event_time) AS BIGINT) AS others,
           CAST(sum(idle - least(queued, idle))   OVER (PARTITION BY cluster, event_time) AS BIGINT) AS all_idle,
           CAST(sum(idle - least(queued, idle))   OVER (PARTITION BY cluster, event_time ORDER BY owner, pool) AS BIGINT) - idle + least(queued, idle) AS before
    FROM samples
), stranded AS (
    -- The same rows, with the idle quota that other teams wait for.
    SELECT *, share_of(least(others, all_idle), before, idle - own, all_idle) AS stranded,
           least(plus_ms(event_time, interval_ms), next_time, known_from) AS to_time, least(next_time, known_from) AS gap_end
    FROM sample_totals
), sample_intervals AS (
    -- Seven rows per sample: one per class.
    SELECT cluster, owner, pool,
           unnest(make_array('unknown', 'unknown', 'quota_stranded', 'no_demand', 'unknown', 'imbalance', 'unknown'))  AS class,
           unnest(make_array('hold', 'queue', 'queue', 'queue', 'capacity', 'hold', 'capacity'))                       AS formula,
           unnest(make_array(held, own, stranded, CASE WHEN in_use > 0 THEN idle - own - stranded ELSE 0 END,
                             CASE WHEN in_use = 0 THEN idle ELSE 0 END, least(quota - held, 0), quota))                AS gpus_milli,
           -- The last one: from the end of a sample to the next one nothing is known.
           unnest(make_array(event_time, event_time, event_time, event_time, event_time, event_time, to_time))         AS from_time,
           unnest(make_array(to_time, to_time, to_time, to_time, to_time, to_time,
                             CASE WHEN next_time IS NULL THEN to_time ELSE gap_end END))                               AS to_time
    FROM stranded
), intervals AS (
    -- One row per interval of any origin.
    SELECT cluster, pool, node, team, user_name, job_id, gpu_model, 'unknown' AS class, 'hold' AS formula, gpus_milli,
           from_time AS counted_from, from_time, to_time
    FROM attempts
    WHERE from_time IS NOT NULL AND gpus_milli > 0
    UNION ALL
    SELECT cluster, pool, NULL, NULL, NULL, NULL, gpu_model, class, formula, gpus_milli, from_time AS counted_from, from_time, to_time FROM idle_intervals
    UNION ALL
    SELECT cluster, pool, NULL, NULL, NULL, NULL, NULL, 'not_provisioned', 'capacity', gpus_milli, from_time AS counted_from, from_time, to_time FROM commitments
    UNION ALL
    SELECT cluster, pool, NULL, owner, NULL, NULL, NULL, class, formula, gpus_milli, plus_ms(from_time, -unix_ms(from_time)), from_time, to_time FROM sample_intervals
)
SELECT s.cluster, s.pool, s.node, s.team, s.user_name, s.job_id, s.gpu_model, s.class, s.formula, s.gpus_milli, s.counted_from, s.from_time,
       least(s.to_time, k.until) AS to_time
FROM intervals s
JOIN cluster_ends k ON k.cluster = s.cluster
WHERE s.gpus_milli <> 0 AND s.from_time < least(s.to_time, k.until)
