"""The cluster now: held, active, demand, capacity, lent, forecast, and who waits."""

from .parts import CLUSTER, IN_CLUSTER, IN_POOL, POOL, annotation, board, lines, stats, table

# Capacity and holds by pool as of the last commit; node_free is as fresh as the last update.
BY_POOL = f"""
    SELECT pool, sum(gpus_milli) / 1000.0 AS gpus, sum(CASE WHEN is_usable = 1 THEN gpus_milli ELSE 0 END) / 1000.0 AS usable,
      count(*) AS nodes, 0.0 AS held, 0 AS jobs
    FROM node_capacity WHERE to_time IS NULL AND {IN_POOL} GROUP BY pool
    UNION ALL
    SELECT pool, 0.0, 0.0, 0, sum(gpus_milli) / 1000.0, count(DISTINCT job_id)
    FROM allocations WHERE to_time IS NULL AND {IN_POOL} GROUP BY pool
"""

BOARD = board(
    "cluster", "the cluster",
    "What is there, what is held, who waits, what was lent, and what is expected.",
    [CLUSTER, POOL],
    [
        stats(
            "Now",
            f"""
            SELECT sum(gpus) AS "GPUs", sum(usable) AS "Usable", sum(held) AS "Held", sum(jobs) AS "Jobs", sum(nodes) AS "Nodes"
            FROM ({BY_POOL})
            """,
            width=16,
        ),
        stats(
            "Waiting",
            f"""
            SELECT count(DISTINCT job_id) AS "Jobs", sum(gpus_milli) / 1000.0 AS "GPUs asked for",
              max(gpu_ms_waited / nullif(gpus_milli, 0)) AS "Longest wait"
            FROM pending WHERE until IS NULL AND {IN_POOL}
            """,
            width=8, units={"Longest wait": "s"},
        ),
        lines(
            "Held and waited for",
            f"""
            SELECT $__timeGroupAlias(window_start, $__interval),
              sum(gpu_ms_held) / CAST($__interval_ms AS DOUBLE) AS "Held",
              sum(gpu_ms_held + gpu_ms_queued) / CAST($__interval_ms AS DOUBLE) AS "Held and waited for"
            FROM usage_1h WHERE $__timeFilter(window_start) AND {IN_POOL}
            GROUP BY 1 ORDER BY 1
            """,
            interval="1h", says="Means of hours in GPUs. The newest hour is not over.",
        ),
        lines(
            "Capacity, and what is lent of it",
            f"""
            SELECT l.window_start AS time, l.paid AS "Paid for", l.there AS "There", l.usable AS "Usable", coalesce(s.lent, 0) AS "Lent"
            FROM (
              SELECT window_start, sum(gpu_ms) / 3600000.0 AS paid,
                sum(CASE WHEN class = 'not_provisioned' THEN 0 ELSE gpu_ms END) / 3600000.0 AS there,
                sum(CASE WHEN class IN ('not_provisioned', 'unhealthy', 'drained') THEN 0 ELSE gpu_ms END) / 3600000.0 AS usable
              FROM ledger_1h WHERE $__timeFilter(window_start) AND {IN_POOL}
              GROUP BY window_start
            ) l LEFT JOIN (
              SELECT h.window_start, sum(CAST(a.gpus AS DOUBLE)) AS lent
              FROM (SELECT DISTINCT window_start FROM ledger_1h WHERE $__timeFilter(window_start)) h
              JOIN actions a ON a.verified_time < h.window_start + INTERVAL '30 minutes'
                AND coalesce(a.undone_time, a.effect_ends_time) > h.window_start + INTERVAL '30 minutes'
              WHERE a.decision_kind = 'lend' AND a.{IN_CLUSTER}
              GROUP BY h.window_start
            ) s ON s.window_start = l.window_start
            ORDER BY 1
            """,
            says="GPUs by hour, from the ledger. Lent is what was lent at the half hour, of all pools.",
        ),
        lines(
            "Forecast of demand",
            f"""
            SELECT target_time AS time, p05_gpus_milli / 1000.0 AS "5 %", p25_gpus_milli / 1000.0 AS "25 %",
              p50_gpus_milli / 1000.0 AS "Median", p75_gpus_milli / 1000.0 AS "75 %", p95_gpus_milli / 1000.0 AS "95 %"
            FROM forecasts
            WHERE kind = 'TOTAL' AND step_ms = 3600000 AND {IN_CLUSTER}
              AND event_time = (SELECT max(event_time) FROM forecasts WHERE kind = 'TOTAL' AND {IN_CLUSTER})
              AND $__timeFilter(target_time)
            ORDER BY 1
            """,
            says="The newest forecast of all pools. Choose one cluster: quantiles of several do not add up.",
        ),
        lines(
            "What the GPUs do",
            f"""
            SELECT $__timeGroupAlias(window_start, $__interval),
              100.0 * sum(active_us) / nullif(sum(us_sampled), 0) AS "A kernel runs",
              100.0 * sum(sm_active_us) / nullif(sum(sm_active_known_us), 0) AS "SMs active",
              100.0 * sum(tensor_active_us) / nullif(sum(tensor_active_known_us), 0) AS "Tensor cores active",
              100.0 * sum(dram_active_us) / nullif(sum(dram_active_known_us), 0) AS "Memory active"
            FROM gpu_1m WHERE mig_uuid IS NULL AND $__timeFilter(window_start) AND {IN_CLUSTER}
            GROUP BY 1 ORDER BY 1
            """,
            interval="1m", unit="percent", says="Means of all GPUs that agents sample.",
        ),
        table(
            "Pools now",
            f"""
            SELECT pool, sum(nodes) AS nodes, sum(gpus) AS gpus, sum(usable) AS usable, sum(held) AS held, sum(jobs) AS jobs
            FROM ({BY_POOL}) GROUP BY pool ORDER BY gpus DESC
            """,
        ),
        table(
            "Who waits, and what for",
            f"""
            SELECT team, pool, job_id, gpus_milli / 1000.0 AS gpus, waited_from, "constraint", reason, starts_when
            FROM pending WHERE until IS NULL AND {IN_POOL}
            ORDER BY gpus_milli DESC, waited_from LIMIT 100
            """,
        ),
        table(
            "Free, and of no use to who waits",
            f"""
            SELECT pool, free_gpus_milli / 1000.0 AS free, unusable_gpus_milli / 1000.0 AS of_no_use, tasks, from_time
            FROM fragmentation
            WHERE to_time IS NULL AND {IN_POOL}
            ORDER BY unusable_gpus_milli DESC LIMIT 50
            """,
            says="Free GPUs that the current mix of waiting jobs cannot use.",
        ),
        table(
            "Quotas",
            f"""
            SELECT owner, pool, kind, gpus_milli / 1000.0 AS quota, held_gpus_milli / 1000.0 AS held,
              100.0 * held_gpus_milli / nullif(gpus_milli, 0) AS used
            FROM quota_use WHERE to_time IS NULL AND {IN_CLUSTER}
            ORDER BY used DESC LIMIT 100
            """,
            units={"used": "percent"},
        ),
    ],
    back="now-3d", ahead="now+1d",
    annotations=[
        annotation(
            "Lent",
            f"""
            SELECT verified_time AS time, coalesce(undone_time, effect_ends_time) AS timeend,
              decision_kind || ' ' || object AS text, decision_kind AS tags
            FROM actions WHERE decision_kind = 'lend' AND $__timeFilter(verified_time) AND {IN_CLUSTER}
            ORDER BY 1 LIMIT 500
            """,
            "purple",
        ),
    ],
)
