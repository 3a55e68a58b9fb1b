--! name    = "sample_intervals"
--! doc     = "Intervals of quota by use, from pool samples: seven per sample, one per class. What a sample says holds for its interval; from its end to the next sample nothing is known."
--! question = "How was a team's quota used, by its samples?"
--! example  = "SELECT owner, class, gpus_milli / 1000.0 AS gpus, from_time, to_time FROM sample_intervals WHERE gpus_milli <> 0 ORDER BY from_time DESC, owner LIMIT 100"
--! sources = ["pool_samples", "job_events", "node_events"]
--! [columns]
--! cluster    = "Cluster."
--! owner      = "Team that owns the quota."
--! pool       = "Pool of the quota."
--! class      = "Class of the time: one of ledger_classes."
--! formula    = "Evidence for the class, as in ledger_1m."
--! gpus_milli = "Thousandths of a GPU; 0 if the sample has none of the class; negative for the class imbalance."
--! from_time  = "Start."
--! to_time    = "End: at the latest when jobs or nodes of the cluster are known, because samples would count the same GPUs twice."
WITH sampled AS (
    -- One row per cluster with samples.
    SELECT DISTINCT cluster FROM pool_samples
), known AS (
    -- One row per such cluster with jobs or nodes, and the time since when.
    SELECT s.cluster, min(e.event_time) AS from_time
    FROM sampled s
    JOIN (SELECT cluster, event_time FROM job_events
          UNION ALL
          SELECT cluster, event_time FROM node_events WHERE kind = 'NODE_REGISTERED') e ON e.cluster = s.cluster
    GROUP BY s.cluster
), samples AS (
    -- One row per pool sample. Once jobs or nodes are known, samples would count the same GPUs
    -- twice.
    SELECT p.cluster, p.owner, p.pool, p.event_time, p.interval_ms,
           coalesce(p.quota_gpus_milli, 0) AS quota, coalesce(p.held_gpus_milli, 0) AS held,
           greatest(coalesce(p.quota_gpus_milli, 0) - coalesce(p.held_gpus_milli, 0), 0) AS idle, coalesce(p.queued_gpus_milli, 0) AS queued,
           lead(p.event_time) OVER (PARTITION BY p.cluster, p.owner, p.pool ORDER BY p.event_time) AS next_time,
           o.from_time AS known_from
    FROM pool_samples p
    LEFT JOIN known o ON o.cluster = p.cluster
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
)
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
