"""Questions about jobs, from a table of attempts that DuckDB made of the source file.

A case makes the table `att`, one row per attempt or wait as the source has them, times in ms since 1970:
cluster, job_id, team, user_name, pool, asked_milli, held_milli, submit_ms, start_ms, end_ms, final_state.
start_ms is NULL for what has not started, end_ms and final_state for what has not ended. A job that went back to the queue
has an attempt or a wait after the one that ended.
"""

from compare import Question

DAY_MS = 86_400_000

# Everything below is computed again from the definitions: what was held and waited for, from when to when.
VIEWS = f"""
CREATE TABLE cluster_end AS
    SELECT cluster, max(greatest(submit_ms, coalesce(start_ms, submit_ms), coalesce(end_ms, submit_ms))) AS as_of_ms
    FROM att GROUP BY cluster;

CREATE TABLE life AS
    SELECT att.*, as_of_ms,
           lag(end_ms) OVER tries AS end_before_ms,
           min(submit_ms) OVER (PARTITION BY cluster, job_id) AS first_submit_ms,
           row_number() OVER tries = count(*) OVER (PARTITION BY cluster, job_id) AS is_last,
           row_number() OVER tries - 1 AS attempt,
           lead(submit_ms) OVER tries IS NOT NULL AS is_followed
    FROM att JOIN cluster_end USING (cluster)
    WINDOW tries AS (PARTITION BY cluster, job_id ORDER BY start_ms NULLS LAST, submit_ms);

CREATE TABLE spans AS
    SELECT cluster, team, user_name, pool, job_id, final_state, is_followed, 'held' AS kind, held_milli AS milli,
           start_ms AS from_ms, coalesce(end_ms, as_of_ms) AS to_ms
    FROM life WHERE start_ms IS NOT NULL
    UNION ALL
    SELECT cluster, team, user_name, pool, job_id, final_state, is_followed, 'queued', asked_milli,
           coalesce(end_before_ms, first_submit_ms), coalesce(start_ms, end_ms, as_of_ms)
    FROM life;

-- Cut at midnight UTC. GPU thousandths x ms; a thousand of them are one gpu_ms.
CREATE TABLE daily AS
    SELECT *, milli::HUGEINT * greatest(0, least(to_ms, day_ms + {DAY_MS}) - greatest(from_ms, day_ms)) AS amount
    FROM (SELECT *, unnest(generate_series(from_ms - from_ms % {DAY_MS}, to_ms, {DAY_MS})) AS day_ms FROM spans);
"""


def held_or_queued(kind: str) -> str:
    return f"(sum(amount) FILTER (WHERE kind = '{kind}') // 1000)"


def usage(name: str, column: str, kind: str, table: str, keys: str) -> Question:
    """GPU time of a kind by UTC day and some keys, nothing where there is none."""
    columns = len(keys.split(",")) + 1
    day = "window_start" if table == "usage_1d" else "date_trunc('day', window_start)"
    return Question(
        name,
        columns,
        f"SELECT {day}, {keys}, sum({column}) FROM {table} GROUP BY {day}, {keys} HAVING sum({column}) <> 0",
        f"SELECT day_ms, {keys}, {held_or_queued(kind)} AS gpu_ms FROM daily GROUP BY ALL HAVING gpu_ms <> 0",
    )


QUESTIONS = [
    Question(
        "the ledger by team and day, unwatched: all that was held is unknown",
        3,
        """SELECT window_start, cluster, team, class, formula, sum(gpu_ms) FROM ledger_1d
           GROUP BY window_start, cluster, team, class, formula HAVING sum(gpu_ms) <> 0""",
        f"""SELECT day_ms, cluster, team, 'unknown', 'hold', {held_or_queued('held')} AS gpu_ms
            FROM daily GROUP BY ALL HAVING gpu_ms <> 0""",
    ),
    Question(
        "the ledger by job, from hours",
        2,
        "SELECT cluster, job_id, sum(gpu_ms) FROM ledger_1h GROUP BY cluster, job_id HAVING sum(gpu_ms) <> 0",
        f"SELECT cluster, job_id, {held_or_queued('held')} AS gpu_ms FROM daily GROUP BY ALL HAVING gpu_ms <> 0",
    ),
    Question(
        "jobs and attempts by cluster",
        1,
        "SELECT cluster, count(*), sum(attempts) FROM jobs GROUP BY cluster",
        "SELECT cluster, count(DISTINCT job_id), count(start_ms) FROM life GROUP BY cluster",
    ),
    Question(
        "jobs by final state",
        2,
        "SELECT cluster, final_state, count(*) FROM jobs GROUP BY cluster, final_state",
        """SELECT cluster, CASE WHEN final_state <> 'REQUEUED' THEN final_state END AS state, count(*)
           FROM life WHERE is_last GROUP BY ALL""",
    ),
    usage("held by team and day (usage_1d)", "gpu_ms_held", "held", "usage_1d", "cluster, team"),
    usage("held by team and day (usage_1h)", "gpu_ms_held", "held", "usage_1h", "cluster, team"),
    usage("held by pool, user, state and day", "gpu_ms_held", "held", "usage_1d", "cluster, pool, user_name, final_state"),
    Question(
        "every allocation",
        3,
        """SELECT cluster, job_id, attempt, team, gpus_milli, from_time, to_time, final_state, gpu_ms_held FROM allocations""",
        """SELECT cluster, job_id, attempt, team, held_milli, start_ms, end_ms, final_state,
                  (held_milli * (coalesce(end_ms, as_of_ms) - start_ms)) // 1000
           FROM life WHERE start_ms IS NOT NULL""",
    ),
    Question(
        "every job",
        2,
        """SELECT cluster, job_id, team, user_name, pool, submit_time, start_time, end_time, final_state, attempts,
                  gpu_ms_held, gpu_ms_queued, gpu_ms_lost
           FROM jobs""",
        """SELECT cluster, job_id, max(team), max(user_name), max(pool), min(submit_ms), min(start_ms),
                  max(end_ms) FILTER (WHERE is_last AND final_state <> 'REQUEUED'),
                  max(final_state) FILTER (WHERE is_last AND final_state <> 'REQUEUED'),
                  count(start_ms), any_value(held), any_value(queued), any_value(lost)
           FROM life JOIN (
               SELECT cluster, job_id,
                      coalesce(sum(milli * (to_ms - from_ms) // 1000) FILTER (WHERE kind = 'held'), 0) AS held,
                      coalesce(sum(milli * (to_ms - from_ms) // 1000) FILTER (WHERE kind = 'queued'), 0) AS queued,
                      coalesce(sum(milli * (to_ms - from_ms) // 1000) FILTER (WHERE kind = 'held' AND is_followed), 0) AS lost
               FROM spans GROUP BY cluster, job_id) USING (cluster, job_id)
           GROUP BY cluster, job_id""",
    ),
    Question(
        "GPU time in attempts that were followed by another",
        1,
        "SELECT cluster, sum(gpu_ms_lost), sum(gpu_ms_held) FROM jobs GROUP BY cluster",
        f"""SELECT cluster, coalesce(sum(amount) FILTER (WHERE kind = 'held' AND is_followed), 0) // 1000,
                   {held_or_queued('held')}
            FROM daily GROUP BY cluster""",
    ),
]

# A trace without start times takes a job to start when it is submitted, so nothing waits.
QUEUE_QUESTIONS = [
    usage("queued by team and day (usage_1d)", "gpu_ms_queued", "queued", "usage_1d", "cluster, team"),
    usage("queued by team and day (usage_1h)", "gpu_ms_queued", "queued", "usage_1h", "cluster, team"),
    Question(
        "queue delay p50 and p95 by team",
        2,
        """SELECT cluster, team, percentile_cont(queue_ms, 0.5), percentile_cont(queue_ms, 0.95) FROM jobs
           WHERE start_time IS NOT NULL GROUP BY cluster, team""",
        """SELECT cluster, team, quantile_cont(delay, 0.5), quantile_cont(delay, 0.95)
           FROM (SELECT cluster, team, min(start_ms) - min(submit_ms) AS delay FROM life
                 WHERE start_ms IS NOT NULL OR is_last GROUP BY cluster, team, job_id HAVING count(start_ms) > 0)
           GROUP BY ALL""",
        # Interpolated between two jobs, which DataFusion does in steps of a millionth of the gap.
        tolerance=1000.0,
    ),
    Question(
        "queue delay by team and day of start (histogram)",
        3,
        """SELECT window_start, cluster, team, sum(jobs), sum(queue_ms), max(delay_bucket_ms) <= max(queue_ms)
           FROM queue_delay_1d GROUP BY window_start, cluster, team""",
        f"""SELECT start_ms - start_ms % {DAY_MS} AS day_ms, cluster, team, count(*), sum(start_ms - submit_ms), true
            FROM (SELECT cluster, team, min(start_ms) AS start_ms, min(submit_ms) AS submit_ms
                  FROM life GROUP BY cluster, team, job_id)
            WHERE start_ms IS NOT NULL GROUP BY ALL""",
    ),
]
