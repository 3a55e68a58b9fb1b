--! name    = "ledger_stretches"
--! doc     = "The ledger before agents monitor a cluster: intervals in which a number of GPUs were of one class, from jobs, nodes and pool samples, cut at UTC days. Imported history has nothing else. Nodes count up to the last event of their cluster."
--! question = "Where did GPU time go before agents monitored the cluster, as in imported history?"
--! example  = "SELECT cluster, class, sum(gpu_ms(abs(gpus_milli), counted_from, from_time, to_time) * CASE WHEN gpus_milli < 0 THEN -1 ELSE 1 END) / 3600000 AS gpu_hours FROM ledger_stretches GROUP BY cluster, class ORDER BY cluster, gpu_hours DESC"
--! sources = ["attempts", "stretch_facts", "known_models", "commitments", "sample_intervals", "watched"]
--! until   = "watched"
--! window  = "1d"
--! opening = true
--! wait_outcome = false
--! key     = ["window_start", "cluster", "pool", "node", "team", "user_name", "job_id", "gpu_model", "class", "formula", "gpus_milli", "counted_from", "from_time", "to_time"]
--! [extents]
--! attempts         = { from = "from_time", to = "to_time" }
--! stretch_facts    = { from = "from_time", to = "to_time" }
--! known_models     = { from = "from_time", to = "to_time" }
--! commitments      = { from = "from_time", to = "to_time" }
--! sample_intervals = { from = "from_time", to = "to_time" }
--! watched          = { from = "from_time", to = "to_time" }
--! [columns]
--! window_start = "Start of the UTC day of the piece."
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
WITH facts AS (
    -- One row per day and fact on nodes and jobs.
    SELECT window_start, cluster, kind, node, job_id, pool, team, user_name, gpu, mig, word, gpus_milli, a, b, c, from_time, clip_to FROM stretch_facts
    UNION ALL
    -- A pool or model that any node ever had.
    SELECT window_start, cluster, 'known', NULL, NULL, pool, NULL, NULL, gpu_model, NULL, NULL, 0, 0, 0, 0, from_time, clip_to FROM known_models
), with_nodes AS (
    -- One row per day and cluster that has had a node. No other has idle GPUs.
    SELECT DISTINCT window_start, cluster FROM known_models
), unwatched_facts AS (
    -- The same facts of these, up to the time from which agents monitor: then the ledger by device
    -- takes over.
    SELECT f.*, unix_ms(f.from_time) AS from_ms, unix_ms(least(f.clip_to, w.clip_from)) AS to_ms
    FROM watched w
    RIGHT JOIN (with_nodes n JOIN facts f ON f.window_start = n.window_start AND f.cluster = n.cluster) ON w.window_start = f.window_start AND w.cluster = f.cluster
    WHERE coalesce(greatest(f.from_time, f.window_start) < w.clip_from, true)
), idle_rows AS (
    -- One row per interval of GPUs that no job held, as a struct.
    SELECT window_start, cluster, unnest(idle_stretches(gathered(named_struct(
               'kind', kind, 'node', node, 'job', job_id, 'pool', pool, 'team', team, 'user_name', user_name, 'gpu', gpu, 'mig', mig,
               'word', word, 'gpus', gpus_milli, 'a', a, 'b', b, 'c', c, 'd', 0, 'e', 0, 'from_ms', from_ms, 'to_ms', to_ms)), unix_ms(window_start))) AS row
    FROM unwatched_facts
    GROUP BY window_start, cluster
), intervals AS (
    -- One row per day and interval of any origin. Those without a start of their own are counted
    -- from 1970.
    SELECT window_start, cluster, pool, node, team, user_name, job_id, gpu_model, 'unknown' AS class, 'hold' AS formula, gpus_milli,
           from_time AS counted_from, clip_from, clip_to
    FROM attempts
    WHERE from_time IS NOT NULL AND gpus_milli > 0
    UNION ALL
    SELECT window_start, cluster, nullif(row['pool'], ''), NULL, NULL, NULL, NULL, nullif(row['gpu_model'], ''), row['class'], row['formula'], row['gpus_milli'],
           plus_ms(window_start, -unix_ms(window_start)), plus_ms(window_start, row['from_ms'] - unix_ms(window_start)), plus_ms(window_start, row['to_ms'] - unix_ms(window_start))
    FROM idle_rows
    UNION ALL
    SELECT window_start, cluster, pool, NULL, NULL, NULL, NULL, NULL, 'not_provisioned', 'capacity', gpus_milli, from_time, clip_from, clip_to FROM commitments
    UNION ALL
    SELECT window_start, cluster, pool, NULL, owner, NULL, NULL, NULL, class, formula, gpus_milli, plus_ms(from_time, -unix_ms(from_time)), clip_from, clip_to FROM sample_intervals
), unwatched AS (
    -- The same rows, up to the time from which agents monitor.
    SELECT i.*, least(i.clip_to, w.clip_from) AS until
    FROM watched w
    RIGHT JOIN intervals i ON w.window_start = i.window_start AND w.cluster = i.cluster
)
SELECT window_start, cluster, pool, node, team, user_name, job_id, gpu_model, class, formula, gpus_milli, counted_from, clip_from AS from_time, until AS to_time
FROM unwatched
WHERE gpus_milli <> 0 AND clip_from < until
