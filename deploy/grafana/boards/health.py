"""Stragglers and the health of nodes, devices and collectors."""

from .parts import CLUSTER, IN_CLUSTER, board, lines, stats, table

BOARD = board(
    "health", "stragglers and health",
    "Who is slow, what is broken, and whether the collectors see it.",
    [CLUSTER],
    [
        stats(
            "Stragglers",
            f"""
            SELECT count(CASE WHEN state IN ('SUSPECT', 'CONFIRMED') THEN 1 END) AS "Now",
              count(CASE WHEN confirmed_time IS NOT NULL THEN 1 END) AS "Confirmed",
              sum(lost_gpu_ms) / 3600000.0 AS "GPU-hours lost"
            FROM stragglers WHERE {IN_CLUSTER} AND coalesce(cleared_time >= $__timeFrom(), true) AND state <> 'CORRECTED'
            """,
            width=12, units={"GPU-hours lost": "h"}, says="Of episodes that lasted into the chosen time.",
        ),
        stats(
            "Nodes",
            f"""
            SELECT count(*) AS "Judged", count(CASE WHEN state <> 'HEALTHY' THEN 1 END) AS "Not healthy",
              count(CASE WHEN is_lemon = 1 THEN 1 END) AS "Lemons"
            FROM node_health WHERE {IN_CLUSTER}
            """,
            width=12,
        ),
        table(
            "Slow now, and lately",
            f"""
            SELECT job_id, state, blame, node, gpu_index, rank, class, posterior_ppm / 10000.0 AS sure,
              slowdown_ppm / 10000.0 AS slower, lost_gpu_ms / 3600000.0 AS "GPU-hours", onset_time, cleared_time
            FROM stragglers WHERE {IN_CLUSTER} AND coalesce(cleared_time >= $__timeFrom(), true)
            ORDER BY cleared_time IS NULL DESC, lost_gpu_ms DESC LIMIT 100
            """,
            width=24, units={"sure": "percent", "slower": "percent", "GPU-hours": "h"},
        ),
        table(
            "Health of nodes",
            f"""
            SELECT node, state, bad_ppm / 10000.0 AS bad, gpu_index, is_lemon, since_time, evidence
            FROM node_health WHERE {IN_CLUSTER}
            ORDER BY bad_ppm DESC LIMIT 100
            """,
            units={"bad": "percent"},
        ),
        table(
            "Faults of nodes",
            f"""
            SELECT node, fault_level, fault_class, description, from_time, to_time
            FROM node_faults WHERE {IN_CLUSTER} AND coalesce(to_time >= $__timeFrom(), true)
            ORDER BY to_time IS NULL DESC, from_time DESC LIMIT 100
            """,
        ),
        table(
            "Lost and silent devices",
            f"""
            SELECT node, gpu_uuid, kind, description, from_time, to_time
            FROM device_faults WHERE {IN_CLUSTER} AND coalesce(to_time >= $__timeFrom(), true)
            ORDER BY to_time IS NULL DESC, from_time DESC LIMIT 100
            """,
        ),
        table(
            "XIDs",
            f"""
            SELECT event_time, node, gpu_index, xid, name, severity, action
            FROM xids WHERE {IN_CLUSTER} AND $__timeFilter(event_time)
            ORDER BY event_time DESC LIMIT 100
            """,
        ),
        lines(
            "Hottest GPUs",
            f"""
            SELECT $__timeGroupAlias(window_start, $__interval), max(gpu_temp_max_celsius) AS "GPU", max(memory_temp_max_celsius) AS "Memory"
            FROM gpu_1m WHERE mig_uuid IS NULL AND {IN_CLUSTER} AND $__timeFilter(window_start)
            GROUP BY 1 ORDER BY 1
            """,
            interval="1m", unit="celsius",
        ),
        lines(
            "Throttled",
            f"""
            SELECT $__timeGroupAlias(window_start, $__interval),
              100.0 * sum(thermal_throttled_us) / nullif(sum(thermal_throttled_known_us), 0) AS "By heat",
              100.0 * sum(power_throttled_us) / nullif(sum(power_throttled_known_us), 0) AS "By power"
            FROM gpu_1m WHERE mig_uuid IS NULL AND {IN_CLUSTER} AND $__timeFilter(window_start)
            GROUP BY 1 ORDER BY 1
            """,
            interval="1m", unit="percent", says="Share of the GPUs' time in which clocks were held down.",
        ),
        table(
            "Jobs that a fault ended",
            f"""
            SELECT end_time, job_id, team, final_state, cause, node, gpu_index, xid, probability_ppm / 10000.0 AS sure,
              lost_gpu_ms / 3600000.0 AS "GPU-hours"
            FROM job_ends WHERE cause IS NOT NULL AND {IN_CLUSTER} AND $__timeFilter(end_time)
            ORDER BY end_time DESC LIMIT 100
            """,
            units={"sure": "percent", "GPU-hours": "h"},
        ),
        table(
            "Collectors",
            f"""
            SELECT source, node, last_time, stopped_time, records_dropped, conflicts, clock_skew_ms
            FROM collectors WHERE {IN_CLUSTER}
            ORDER BY records_dropped + conflicts DESC, last_time LIMIT 100
            """,
            says="The first lose records or share a name; then those that were silent for longest.",
        ),
        table(
            "Tables behind",
            "SELECT table_name, live_to, pending_windows, pending_from, pending_to FROM table_lag ORDER BY live_to LIMIT 50",
            says="How far each table of windows is computed.",
        ),
    ],
    back="now-24h",
)
