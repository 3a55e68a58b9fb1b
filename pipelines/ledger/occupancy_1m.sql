--! name    = "occupancy_1m"
--! stored  = false
--! doc     = "GPU time in each UTC minute by node, device and job: the rules of docs/ledger.md applied to the facts of the minute. An intermediate step; not stored."
--! sources = ["occupancy_facts", "gpu_1m", "step_time_1m", "watched"]
--! window  = "1m"
--! key     = ["window_start", "cluster", "node", "gpu_uuid", "mig_uuid", "job_id", "class", "formula"]
--! [extents]
--! occupancy_facts = { from = "from_time", to = "to_time" }
--! gpu_1m          = { time = "window_start" }
--! step_time_1m    = { time = "window_start" }
--! watched         = { from = "from_time", to = "to_time" }
WITH devices AS (
    -- One row per minute and device; a slice of unknown size counts as the smallest.
    SELECT window_start, cluster, node, gpu_uuid, mig_uuid, '#' || CAST(max(gpu_index) AS TEXT) AS number,
           CASE WHEN mig_uuid IS NULL THEN 7 ELSE coalesce(max(mig_slices_max_count), 1) END AS sevenths,
           coalesce(sum(active_us), 0) / 1000 AS active_ms, coalesce(sum(idle_us), 0) / 1000 AS idle_ms,
           coalesce(sum(empty_us), 0) / 1000 AS empty_ms,   sum(us_sampled) / 1000           AS sampled_ms
    FROM gpu_1m
    GROUP BY window_start, cluster, node, gpu_uuid, mig_uuid
), facts AS (
    -- One row per minute and fact, sample or report.
    SELECT window_start, cluster, kind, node, job_id, pool, team, user_name, gpu, mig, word, gpus_milli AS gpus, a, b, c,
           CAST(NULL AS BIGINT) AS d, CAST(NULL AS BIGINT) AS e, unix_ms(clip_from) AS from_ms, unix_ms(clip_to) AS to_ms
    FROM occupancy_facts
    UNION ALL
    SELECT window_start, cluster, 'sample', node, NULL, NULL, NULL, NULL, gpu_uuid, mig_uuid, number, sevenths, active_ms, idle_ms, empty_ms, sampled_ms, NULL, 0, 0
    FROM devices
    UNION ALL
    SELECT window_start, cluster, 'steps', node, job_id, NULL, NULL, NULL, NULL, NULL, NULL, step_ms, restore_ms, redone_ms, checkpoint_ms, data_ms, communication_ms, 0, 0
    FROM step_time_1m
), rows AS (
    -- One row per minute, device, job and class, as a struct.
    SELECT f.window_start, f.cluster,
           unnest(occupancy(gathered(named_struct(
               'kind', f.kind, 'node', f.node, 'job', f.job_id, 'pool', f.pool, 'team', f.team, 'user_name', f.user_name, 'gpu', f.gpu, 'mig', f.mig,
               'word', f.word, 'gpus', f.gpus, 'a', f.a, 'b', f.b, 'c', f.c, 'd', f.d, 'e', f.e, 'from_ms', f.from_ms, 'to_ms', f.to_ms)),
               unix_ms(f.window_start), unix_ms(f.window_start) + 60000)) AS row
    FROM facts f
    JOIN watched w ON w.window_start = f.window_start AND w.cluster = f.cluster
    GROUP BY f.window_start, f.cluster
)
SELECT window_start, cluster, row['node'] AS node, row['gpu_uuid'] AS gpu_uuid, row['mig_uuid'] AS mig_uuid, row['job_id'] AS job_id,
       row['class'] AS class, row['formula'] AS formula, row['gpu_ms'] AS gpu_ms
FROM rows
