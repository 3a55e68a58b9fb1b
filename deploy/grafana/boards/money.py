"""Where the money goes: the ledger, from paid to productive."""

from .parts import CLUSTER, IN_TEAM, POOL, STATES, TEAM, bars, board, lines, stats, table

SHARES = """
    sum(gpu_ms) / 3600000.0 AS "GPU-hours",
    sum(cost_micros) / 1000000.0 AS "Cost",
    100.0 * sum(CASE WHEN class = 'productive' THEN gpu_ms ELSE 0 END) / nullif(sum(gpu_ms), 0) AS "Productive",
    100.0 * sum(CASE WHEN class IN ('idle_held', 'empty_held') THEN gpu_ms ELSE 0 END) / nullif(sum(gpu_ms), 0)
      AS "Held and idle",
    100.0 * sum(CASE WHEN class = 'unknown' THEN gpu_ms ELSE 0 END) / nullif(sum(gpu_ms), 0) AS "Not known"
"""
WITHIN = f"$__timeFilter(window_start) AND {IN_TEAM}"
PERCENT = {"Productive": "percent", "Held and idle": "percent", "Not known": "percent", "GPU-hours": "h"}

BOARD = board(
    "money", "where the money goes",
    "The ledger of GPU time: each paid GPU-millisecond is in exactly one class.",
    [CLUSTER, POOL, TEAM],
    [
        stats(
            "GPU time that was paid for", f"SELECT {SHARES} FROM ledger_1h WHERE {WITHIN}", units=PERCENT,
            says="Cost is in the currency of the prices in force; without prices it is empty.",
        ),
        bars(
            "GPU-hours by class",
            f"""
            SELECT class || ' (' || formula || ')' AS class, sum(gpu_ms) / 3600000.0 AS gpu_hours
            FROM ledger_1h WHERE {WITHIN}
            GROUP BY class, formula ORDER BY gpu_hours DESC
            """,
            unit="h", says="The evidence for a class is in brackets. docs/ledger.md has the rules.",
        ),
        lines(
            "GPUs by state",
            f"""
            SELECT $__timeGroupAlias(l.window_start, $__interval),
              CASE WHEN l.class IN ('productive', 'active') THEN l.class ELSE c.state END AS metric,
              sum(l.gpu_ms) / CAST($__interval_ms AS DOUBLE) AS gpus
            FROM (SELECT window_start, class, formula, gpu_ms FROM ledger_1h WHERE {WITHIN}) l
            JOIN ledger_classes c ON c.class = l.class AND c.formula = l.formula
            GROUP BY 1, 2 ORDER BY 1
            """,
            stacked=True, interval="1h", colors=STATES, height=12,
            says="productive, active (busy, no steps reported), step (lost inside jobs), held (held and idle), free, "
                 "unusable, unknown. The newest hour is not over.",
        ),
        table(
            "Teams", f"SELECT coalesce(team, '(none)') AS team, {SHARES} FROM ledger_1h WHERE {WITHIN} GROUP BY 1 ORDER BY 2 DESC LIMIT 50",
            units=PERCENT, says="(none) is time that no job held.",
        ),
        table(
            "Pools", f"SELECT coalesce(pool, '(none)') AS pool, {SHARES} FROM ledger_1h WHERE {WITHIN} GROUP BY 1 ORDER BY 2 DESC LIMIT 50",
            units=PERCENT,
        ),
        table(
            "What leaks most, and why",
            f"""
            SELECT c.state, l.class, c.meaning, l.gpu_hours AS "GPU-hours", l.cost AS "Cost"
            FROM (
              SELECT class, formula, sum(gpu_ms) / 3600000.0 AS gpu_hours, sum(cost_micros) / 1000000.0 AS cost
              FROM ledger_1h WHERE {WITHIN} AND class <> 'productive' GROUP BY class, formula
            ) l JOIN ledger_classes c ON c.class = l.class AND c.formula = l.formula
            ORDER BY l.gpu_hours DESC
            """,
            units={"GPU-hours": "h"},
        ),
        table(
            "Jobs that cost most",
            f"""
            SELECT job_id, coalesce(team, '(none)') AS team, {SHARES}
            FROM ledger_1h WHERE {WITHIN} AND job_id IS NOT NULL
            GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 50
            """,
            units=PERCENT,
        ),
        table(
            "What tokens cost",
            """
            SELECT job_id, team, currency, gpu_ms / 3600000.0 AS "GPU-hours", tokens,
              cost_micros_per_million_tokens / 1000000.0 AS cost_per_million, coalesce(cost_reason, token_reason) AS why_not
            FROM token_costs
            WHERE cluster IN (${cluster:sqlstring}) AND coalesce(team, '(none)') IN (${team:sqlstring})
            ORDER BY cost_micros_per_million_tokens DESC LIMIT 50
            """,
            units={"GPU-hours": "h", "tokens": "short"}, says="Of jobs that report steps with tokens, over their whole life.",
        ),
        table(
            "A point of idle GPUs costs in a year",
            """
            SELECT pool, gpu_model, gpus_milli / 1000.0 AS gpus, currency, point_cost_micros / 1000000.0 AS cost_of_a_point, reason
            FROM idle_costs
            WHERE cluster IN (${cluster:sqlstring}) AND coalesce(pool, '(none)') IN (${pool:sqlstring})
              AND from_time <= now() AND coalesce(to_time > now(), true)
            ORDER BY point_cost_micros DESC LIMIT 50
            """,
        ),
    ],
)
