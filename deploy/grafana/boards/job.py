"""A job: its attempts, its GPUs, its steps, and what it waits for."""

from .parts import CLUSTER, board, lines, stats, table, variable

JOB = variable(
    "job", "Job",
    """
    SELECT j.job_id FROM jobs j LEFT JOIN goodput g ON g.cluster = j.cluster AND g.job_id = j.job_id
    WHERE j.cluster IN (${cluster:sqlstring}) AND coalesce(j.end_time >= $__timeFrom(), true)
    ORDER BY j.end_time IS NULL DESC, g.job_id IS NOT NULL DESC, j.gpu_ms_held DESC, j.job_id LIMIT 1000
    """,
    many=False,
)
OF = "cluster IN (${cluster:sqlstring}) AND job_id = ${job:sqlstring}"

BOARD = board(
    "job", "a job",
    "One job: how it ran, what it waited for, what it cost, and what limits it.",
    [CLUSTER, JOB],
    [
        stats(
            "The job",
            f"""
            SELECT gpus_milli / 1000.0 AS "GPUs", coalesce(final_state, CASE WHEN start_time IS NULL THEN 'waits' ELSE 'runs' END)
                AS "State", attempts AS "Attempts", queue_ms AS "Waited", run_ms AS "Ran",
              gpu_ms_held / 3600000.0 AS "GPU-hours", gpu_ms_lost / 3600000.0 AS "Lost to retries"
            FROM jobs WHERE {OF}
            """,
            width=16, units={"Waited": "ms", "Ran": "ms", "GPU-hours": "h", "Lost to retries": "h"},
        ),
        stats(
            "Its cost",
            f"""
            SELECT currency AS "Currency", sum(cost_micros) / 1000000.0 AS "Cost"
            FROM job_costs WHERE {OF} GROUP BY currency
            """,
            width=8,
        ),
        lines(
            "Where its GPU time goes",
            f"""
            SELECT $__timeGroupAlias(window_start, $__interval), class AS metric,
              sum(gpu_ms) / CAST($__interval_ms AS DOUBLE) AS gpus
            FROM ledger_1m WHERE {OF} AND $__timeFilter(window_start)
            GROUP BY 1, 2 ORDER BY 1
            """,
            stacked=True, interval="1m",
        ),
        lines(
            "Time of a step, and parts of it",
            f"""
            SELECT $__timeGroupAlias(window_start, $__interval),
              sum(duration_us) / nullif(sum(reports), 0) / 1000.0 AS "Step",
              sum(compute_us) / nullif(sum(reports), 0) / 1000.0 AS "Computing",
              sum(communication_us) / nullif(sum(reports), 0) / 1000.0 AS "In collectives",
              sum(data_wait_us) / nullif(sum(reports), 0) / 1000.0 AS "Waiting for input"
            FROM training_1m WHERE {OF} AND $__timeFilter(window_start)
            GROUP BY 1 ORDER BY 1
            """,
            interval="1m", unit="ms", says="Means of ranks and steps. Parts may overlap.",
        ),
        lines(
            "Model FLOP utilisation",
            f"""
            SELECT $__timeGroupAlias(window_start, $__interval),
              100.0 * sum(counted_gflops) / nullif(sum(peak_gflops), 0) AS "MFU",
              100.0 * sum(hfu_bound_gflops) / nullif(sum(hfu_bound_peak_gflops), 0) AS "Bound from tensor activity"
            FROM mfu_1m WHERE {OF} AND $__timeFilter(window_start)
            GROUP BY 1 ORDER BY 1
            """,
            interval="1m", unit="percent",
        ),
        lines(
            "Tokens a second",
            f"""
            SELECT $__timeGroupAlias(window_start, $__interval), 1000.0 * sum(tokens) / $__interval_ms AS "Tokens/s"
            FROM training_1m WHERE {OF} AND $__timeFilter(window_start)
            GROUP BY 1 ORDER BY 1
            """,
            interval="1m",
        ),
        lines(
            "Time that its ranks lost",
            f"""
            SELECT $__timeGroupAlias(window_start, $__interval),
              100.0 * sum(data_wait_us) / nullif(sum(data_wait_known_us), 0) AS "Waiting for input",
              100.0 * sum(communication_us) / nullif(sum(communication_known_us), 0) AS "In collectives",
              100.0 * sum(imbalance_us) / nullif(sum(imbalance_known_us), 0) AS "For the slowest rank"
            FROM step_waits_1m WHERE {OF} AND $__timeFilter(window_start)
            GROUP BY 1 ORDER BY 1
            """,
            interval="1m", unit="percent", says="Shares of the time of steps. Table bottleneck_1m names what limits a job.",
        ),
        lines(
            "Its GPUs: a kernel runs",
            f"""
            SELECT $__timeGroupAlias(m.window_start, $__interval), m.node || ' ' || CAST(m.gpu_index AS VARCHAR) AS metric,
              100.0 * sum(m.active_us) / nullif(sum(m.us_sampled), 0) AS percent
            FROM gpu_1m m JOIN (
              SELECT DISTINCT cluster, gpu_uuid, from_time, to_time FROM gpu_spans WHERE {OF}
            ) h ON h.cluster = m.cluster AND h.gpu_uuid = m.gpu_uuid AND m.window_start >= h.from_time
              AND coalesce(m.window_start < h.to_time, true)
            WHERE m.mig_uuid IS NULL AND $__timeFilter(m.window_start)
            GROUP BY 1, 2 ORDER BY 1
            """,
            interval="1m", unit="percent", says="Of each GPU that the job held, the share of time in which a kernel ran.",
        ),
        table(
            "Attempts",
            f"""
            SELECT attempt, from_time, to_time, coalesce(final_state, 'runs') AS state, exit_code, nodes,
              gpu_ms_held / 3600000.0 AS "GPU-hours"
            FROM attempts WHERE {OF} ORDER BY attempt DESC LIMIT 100
            """,
            units={"GPU-hours": "h"},
        ),
        table(
            "Waits",
            f"""
            SELECT "constraint", reason, evidence, since, until, gpu_ms_waited / 3600000.0 AS "GPU-hours"
            FROM pending WHERE {OF} ORDER BY since DESC LIMIT 100
            """,
            units={"GPU-hours": "h"},
        ),
        table(
            "Slow ranks",
            f"""
            SELECT state, blame, node, gpu_index, rank, class, slowdown_ppm / 10000.0 AS slower, lost_gpu_ms / 3600000.0 AS "GPU-hours",
              onset_time, cleared_time
            FROM stragglers WHERE {OF} ORDER BY onset_time DESC LIMIT 50
            """,
            units={"slower": "percent", "GPU-hours": "h"},
        ),
    ],
    back="now-6h",
)
