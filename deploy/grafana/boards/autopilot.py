"""What the autopilot decided, what waits for approval, and whether its predictions held."""

from .parts import CLUSTER, IN_CLUSTER, board, lines, stats, table

REAL = f"role <> 'shadow' AND {IN_CLUSTER}"
DECIDED = f"{REAL} AND $__timeFilter(decided_time)"

BOARD = board(
    "autopilot", "the autopilot",
    "Decisions with their reasons, what waits for approval, and predictions against what came.",
    [CLUSTER],
    [
        stats(
            "Decisions",
            f"""
            SELECT count(CASE WHEN mode = 'approve' AND state = 'PROPOSED' AND expires_time > now() THEN 1 END) AS "For approval",
              count(*) AS "Decided", count(CASE WHEN rule IS NOT NULL THEN 1 END) AS "Refused by a rule",
              count(CASE WHEN state = 'VERIFIED' THEN 1 END) AS "Done",
              count(CASE WHEN state IN ('ACTION_FAILED', 'COMPENSATED') THEN 1 END) AS "Failed or undone"
            FROM decisions WHERE {DECIDED}
            """,
            width=14,
        ),
        stats(
            "Record",
            f"""
            SELECT count(*) AS "Scored", 100.0 * sum(within) / nullif(count(*), 0) AS "Within bounds",
              sum(CASE WHEN realised_gpu_ms IS NOT NULL THEN predicted_gpu_ms END) / 3600000.0 AS "Predicted",
              sum(realised_gpu_ms) / 3600000.0 AS "Realised"
            FROM prediction_scores WHERE {IN_CLUSTER} AND $__timeFilter(scored_time)
            """,
            width=10, units={"Within bounds": "percent", "Predicted": "h", "Realised": "h"},
            says="Net gain in useful GPU-hours, of what could be measured.",
        ),
        table(
            "For approval",
            f"""
            SELECT action, decided_time, decision_kind, object, gpus, net_gpu_ms / 3600000.0 AS "GPU-hours", expires_time, why
            FROM decisions WHERE mode = 'approve' AND state = 'PROPOSED' AND expires_time > now() AND {REAL}
            ORDER BY expires_time LIMIT 50
            """,
            width=24, height=6, units={"GPU-hours": "h"}, says="Approve on Tidegate's page, or with tidegate autopilot approve.",
        ),
        lines(
            "Decisions by kind",
            f"""
            SELECT $__timeGroupAlias(decided_time, $__interval), decision_kind AS metric, CAST(count(*) AS DOUBLE) AS decisions
            FROM decisions WHERE {DECIDED}
            GROUP BY 1, 2 ORDER BY 1
            """,
            interval="1h", stacked=True,
        ),
        lines(
            "Predicted and realised gain",
            f"""
            SELECT $__timeGroupAlias(scored_time, $__interval), sum(predicted_gpu_ms) / 3600000.0 AS "Predicted",
              sum(realised_gpu_ms) / 3600000.0 AS "Realised"
            FROM prediction_scores WHERE realised_gpu_ms IS NOT NULL AND {IN_CLUSTER} AND $__timeFilter(scored_time)
            GROUP BY 1 ORDER BY 1
            """,
            interval="1h", unit="h", says="Useful GPU-hours; negative where doing nothing was better.",
        ),
        table(
            "Latest decisions",
            f"""
            SELECT decided_time, decision_kind, object, mode, gpus, net_gpu_ms / 3600000.0 AS "GPU-hours", state, approved_by, rule, why
            FROM decisions WHERE {DECIDED}
            ORDER BY decided_time DESC LIMIT 100
            """,
            width=24, units={"GPU-hours": "h"},
        ),
        table(
            "Refused, by rule",
            f"""
            SELECT rule, decision_kind, count(*) AS decisions, max(decided_time) AS latest, max(refused_why) AS an_example
            FROM decisions WHERE rule IS NOT NULL AND {DECIDED}
            GROUP BY 1, 2 ORDER BY decisions DESC LIMIT 50
            """,
        ),
        table(
            "Actions",
            f"""
            SELECT decided_time, decision_kind, object, state, approved_by, verified_after_ms, effect_ends_time, undone_time, why
            FROM actions WHERE {IN_CLUSTER} AND $__timeFilter(decided_time)
            ORDER BY decided_time DESC LIMIT 100
            """,
            units={"verified_after_ms": "ms"},
        ),
        table(
            "Can the forecasts be trusted?",
            f"""
            SELECT kind, name, reach, state, since_time, inside80_ppm / 10000.0 AS inside_80, below95_ppm / 10000.0 AS below_95
            FROM forecast_coverage WHERE {IN_CLUSTER}
            ORDER BY state = 'HOLDS', kind, name, reach LIMIT 100
            """,
            units={"inside_80": "percent", "below_95": "percent"},
            says="inside_80 should be 80 %, below_95 95 %. What is TOO_LOW is lent on by nobody.",
        ),
        table(
            "Why nothing was done",
            f"""
            SELECT made_time, policy, why FROM plans
            WHERE role = 'base' AND decisions = 0 AND why IS NOT NULL AND {IN_CLUSTER} AND $__timeFilter(made_time)
            ORDER BY made_time DESC LIMIT 50
            """,
        ),
    ],
)
