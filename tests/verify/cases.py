"""The traces: how DuckDB reads each one, and what is asked of it beyond the questions about all jobs.

What a mapping in schemas/imports assumes (a time zone, where seconds count from) is repeated here in DuckDB's terms.
"""

from dataclasses import dataclass, field

from compare import Question
from jobs import DAY_MS, QUESTIONS, QUEUE_QUESTIONS, VIEWS
from sacct import ATTEMPTS as SACCT_ATTEMPTS

MARCH_2021_MS = 1_614_816_000_000  # 2021-03-04T00:00:00Z, where the seconds of ms_itp_jobs count from
YEAR_2023_MS = 1_672_531_200_000  # 2023-01-01T00:00:00Z, likewise for the Alibaba pods
SHANGHAI_MS = 8 * 3_600_000


@dataclass
class Case:
    """`views` is SQL over the view `source`, the file as it is."""

    name: str
    views: str
    questions: list[Question]
    import_arguments: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.import_arguments = self.import_arguments or ["jobs", "--map", self.name]


def jobs_case(name: str, attempts: str, questions: list[Question]) -> Case:
    return Case(name, f"CREATE TABLE att AS {attempts};\n{VIEWS}", QUESTIONS + questions)


PHILLY_ATTEMPTS = jobs_case(
    "philly_multigpu_attempts",
    """SELECT 'philly' AS cluster, id AS job_id, cluster AS team, NULL::VARCHAR AS user_name, cluster AS pool,
              num_gpus * 1000 AS asked_milli, num_gpus * 1000 AS held_milli, epoch_ms(submitted_time) AS submit_ms,
              epoch_ms(start_time) AS start_ms, epoch_ms(end_time) AS end_ms,
              CASE WHEN attempt + 1 < n_attempts THEN 'REQUEUED' ELSE 'UNKNOWN' END AS final_state
       FROM source""",
    [
        *QUEUE_QUESTIONS,
        Question(
            "the ledger by team, from minutes",
            1,
            "SELECT team, sum(gpu_ms) FROM ledger_1m GROUP BY team",
            "SELECT cluster, sum(num_gpus * epoch_ms(end_time - start_time)) FROM source GROUP BY cluster",
        ),
        # 20.5 % is published of 3,034 jobs; the cut has 2,077 of them.
        Question(
            "share of GPU time in attempts but the last, ppm",
            0,
            "SELECT sum(gpu_ms_lost) * 1000000 / sum(gpu_ms_held) FROM jobs",
            """SELECT sum(num_gpus * epoch_ms(end_time - start_time)) FILTER (WHERE attempt < n_attempts - 1) * 1000000
                      // sum(num_gpus * epoch_ms(end_time - start_time))
               FROM source""",
        ),
    ],
)

PHILLY_JOBS = jobs_case(
    "philly_jobs",
    """SELECT 'philly' AS cluster, 'row-' || src_row AS job_id, cluster AS team, NULL::VARCHAR AS user_name,
              cluster AS pool, num_gpus * 1000 AS asked_milli, num_gpus * 1000 AS held_milli,
              epoch_ms(timestamp) AS submit_ms, submit_ms AS start_ms,
              submit_ms + round(duration * 1000)::BIGINT AS end_ms, 'UNKNOWN' AS final_state
       FROM source""",
    [
        Question(
            "GPU seconds of the source's own column gpu_time",
            1,
            "SELECT team, sum(gpu_ms_held) FROM jobs GROUP BY team",
            "SELECT cluster, round(sum(gpu_time) * 1000)::BIGINT FROM source GROUP BY cluster",
        )
    ],
)

MS_ITP_JOBS = jobs_case(
    "ms_itp_jobs",
    f"""SELECT cluster, job_id, NULL::VARCHAR AS team, NULL::VARCHAR AS user_name, NULL::VARCHAR AS pool,
               num_gpu * 1000 AS asked_milli, num_gpu * 1000 AS held_milli,
               {MARCH_2021_MS} + submission_time * 1000 AS submit_ms, submit_ms AS start_ms,
               submit_ms + duration * 1000 AS end_ms, 'UNKNOWN' AS final_state
        FROM source""",
    [
        Question(
            "GPU seconds by cluster",
            1,
            "SELECT cluster, sum(gpu_ms_held) FROM usage_1h GROUP BY cluster",
            "SELECT cluster, sum(num_gpu * duration) * 1000 FROM source GROUP BY cluster",
        )
    ],
)

OPENB_PODS = jobs_case(
    "alibaba_openb_pods",
    f"""SELECT 'alibaba-openb' AS cluster, name AS job_id, NULL::VARCHAR AS team, NULL::VARCHAR AS user_name,
               NULL::VARCHAR AS pool, num_gpu * gpu_milli AS asked_milli, num_gpu * gpu_milli AS held_milli,
               {YEAR_2023_MS} + creation_time * 1000 AS submit_ms,
               {YEAR_2023_MS} + (scheduled_time * 1000)::BIGINT AS start_ms,
               {YEAR_2023_MS} + deletion_time * 1000 AS end_ms,
               CASE pod_phase WHEN 'Failed' THEN 'FAILED' WHEN 'Pending' THEN 'CANCELLED' ELSE 'COMPLETED' END AS final_state
        FROM source""",
    [
        *QUEUE_QUESTIONS,
        Question(
            "pods by fraction of a GPU",
            1,
            "SELECT gpus_milli, count(*), sum(gpu_ms_held) FROM jobs GROUP BY gpus_milli",
            """SELECT num_gpu * gpu_milli, count(*),
                      coalesce(sum(num_gpu * gpu_milli * (deletion_time - scheduled_time)::BIGINT), 0)::HUGEINT
               FROM source GROUP BY ALL""",
        ),
    ],
)

OPENB_NODES = Case(
    "alibaba_openb_nodes",
    "",
    [
        Question(
            "nodes, GPUs, CPUs and memory by model",
            1,
            "SELECT gpu_model, count(*), sum(gpus_milli), sum(cpus_milli), sum(memory_bytes) FROM nodes GROUP BY gpu_model",
            """SELECT model, count(*), sum(gpu) * 1000, sum(cpu_milli), sum(memory_mib::HUGEINT) * 1048576
               FROM source GROUP BY model""",
        ),
        Question("every node", 1, "SELECT node, gpus_milli FROM nodes", "SELECT sn, gpu * 1000 FROM source"),
    ],
)

MIT_SUPERCLOUD = jobs_case(
    "mit_supercloud_slurm_sample",
    """SELECT 'supercloud' AS cluster, id_job || '@' || time_submit AS job_id, NULL::VARCHAR AS team,
              id_user::VARCHAR AS user_name, "partition" AS pool, gpus_req * 1000 AS asked_milli,
              gpus_alloc * 1000 AS held_milli, time_submit * 1000 AS submit_ms, time_start * 1000 AS start_ms,
              time_end * 1000 AS end_ms,
              CASE state WHEN 3 THEN 'COMPLETED' WHEN 4 THEN 'CANCELLED' WHEN 5 THEN 'FAILED' WHEN 6 THEN 'TIMEOUT'
                         WHEN 7 THEN 'NODE_FAIL' WHEN 11 THEN 'OUT_OF_MEMORY' END AS final_state
       FROM source""",
    [
        *QUEUE_QUESTIONS,
        Question(
            "nodes of jobs",
            1,
            "SELECT job_id, node_count, nodes FROM jobs",
            """SELECT id_job || '@' || time_submit, nodes_alloc,
                      array_to_string(regexp_extract_all(nodelist, '[\\w.-]+'), ',')
               FROM source""",
        ),
    ],
)

HELIOS_QUOTAS = Case(
    "helios_vc_gpus_daily",
    f"""CREATE TABLE changes AS
        SELECT cluster, vc, gpus * 1000 AS milli, epoch_ms(date::TIMESTAMP) - {SHANGHAI_MS} AS from_ms,
               lag(gpus) OVER days * 1000 AS before_milli
        FROM source WINDOW days AS (PARTITION BY cluster, vc ORDER BY date)
        QUALIFY before_milli IS DISTINCT FROM milli""",
    [
        Question(
            "quota changes by cluster",
            1,
            "SELECT cluster, count(*) FROM capacity WHERE previous_gpus_milli IS NOT NULL GROUP BY cluster",
            "SELECT cluster, count(*) FROM changes WHERE before_milli IS NOT NULL GROUP BY cluster",
        ),
        Question(
            "every quota, from when to when",
            3,
            "SELECT cluster, owner, from_time, gpus_milli, previous_gpus_milli, to_time FROM capacity WHERE kind = 'QUOTA_SET'",
            """SELECT cluster, vc, from_ms, milli, before_milli, lead(from_ms) OVER (PARTITION BY cluster, vc ORDER BY from_ms)
               FROM changes""",
        ),
        Question(
            "GPU time of quotas, from the intervals",
            2,
            f"""SELECT cluster, owner, sum(gpu_ms(gpus_milli, from_time, from_time, coalesce(to_time, as_of)))
                FROM capacity CROSS JOIN (SELECT plus_ms(max(event_time), {DAY_MS}) AS as_of FROM capacity_events)
                GROUP BY cluster, owner""",
            f"SELECT cluster, vc, sum(gpus) * {DAY_MS} FROM source GROUP BY cluster, vc",
        ),
    ],
)

HELIOS_MINUTES = Case(
    "helios_earth_vc_1min",
    f"""CREATE TABLE minutes AS
        SELECT *, epoch_ms(time) - {SHANGHAI_MS} AS at_ms, at_ms - at_ms % 3600000 AS hour_ms, at_ms - at_ms % {DAY_MS} AS day_ms
        FROM source""",
    [
        Question(
            "quota, held, queued, idle by virtual cluster and day",
            2,
            """SELECT owner, date_trunc('day', window_start), sum(ms_sampled), sum(gpu_ms_quota), sum(gpu_ms_held),
                      sum(gpu_ms_queued), sum(gpu_ms_idle)
               FROM pool_usage_1h GROUP BY 1, 2""",
            """SELECT vc, day_ms, count(*) * 60000, sum(total_gpu_num) * 60000, sum(running_gpu_num) * 60000,
                      sum(pending_gpu_num) * 60000, sum(idle_gpu_num) * 60000
               FROM minutes GROUP BY ALL""",
        ),
        Question(
            "quota, held, queued, idle by virtual cluster and hour",
            2,
            "SELECT owner, window_start, gpu_ms_quota, gpu_ms_held, gpu_ms_queued, gpu_ms_idle FROM pool_usage_1h",
            """SELECT vc, hour_ms, sum(total_gpu_num) * 60000, sum(running_gpu_num) * 60000,
                      sum(pending_gpu_num) * 60000, sum(idle_gpu_num) * 60000
               FROM minutes GROUP BY ALL""",
        ),
        Question(
            "the ledger by virtual cluster and hour: held, stranded while others wait, not looked at, and in all",
            2,
            """SELECT team, window_start, coalesce(sum(gpu_ms) FILTER (WHERE class = 'unknown' AND formula = 'hold'), 0),
                      coalesce(sum(gpu_ms) FILTER (WHERE class = 'quota_stranded'), 0),
                      coalesce(sum(gpu_ms) FILTER (WHERE formula = 'capacity'), 0), sum(gpu_ms)
               FROM ledger_1h GROUP BY 1, 2""",
            """WITH beside AS (
                   SELECT vc, hour_ms, at_ms, running_gpu_num AS held, total_gpu_num AS quota,
                          greatest(total_gpu_num - running_gpu_num, 0) AS idle, least(pending_gpu_num, idle) AS own,
                          sum(pending_gpu_num - own) OVER minute AS others, sum(idle - own) OVER minute AS all_idle,
                          sum(idle - own) OVER (minute ORDER BY vc) AS up_to,
                          sum(running_gpu_num + pending_gpu_num) OVER minute = 0 AS is_outage
                   FROM minutes WINDOW minute AS (PARTITION BY at_ms)
               ), shared AS (
                   SELECT *, CASE WHEN all_idle = 0 THEN 0 ELSE least(others, all_idle) * 1000 * up_to // all_idle
                                  - least(others, all_idle) * 1000 * (up_to - idle + own) // all_idle END AS stranded_milli
                   FROM beside
               )
               SELECT vc, hour_ms, sum(held) * 60000, sum(stranded_milli) * 60,
                      coalesce(sum(quota) FILTER (WHERE is_outage), 0) * 60000, sum(quota) * 60000
               FROM shared GROUP BY ALL HAVING sum(quota) <> 0""",
        ),
        # Published of all sixteen virtual clusters: held 69 % on average and 84 % at p95, 63.6 GPUs waiting, 264 idle.
        Question(
            "without the outage: minutes, mean held %, p95 held %, mean waiting, mean idle GPUs",
            0,
            """SELECT count(*), avg(held / quota) * 100, percentile_cont(held / quota, 0.95) * 100, avg(queued) / 1000,
                      avg(quota - held) / 1000
               FROM (SELECT CAST(sum(held_gpus_milli) AS DOUBLE) AS held, sum(quota_gpus_milli) AS quota,
                            sum(queued_gpus_milli) AS queued
                     FROM pool_samples GROUP BY event_time)
               WHERE held > 0""",
            """SELECT count(*), avg(held / quota) * 100, quantile_cont(held / quota, 0.95) * 100, avg(queued), avg(idle)
               FROM (SELECT sum(running_gpu_num) AS held, sum(total_gpu_num) AS quota, sum(pending_gpu_num) AS queued,
                            sum(idle_gpu_num) AS idle
                     FROM source GROUP BY time)
               WHERE held > 0""",
            tolerance=1e-6,
        ),
    ],
)

STEPFUN_FAULTS = Case(
    "stepfun_node_faults",
    """CREATE TABLE faults AS
       SELECT *, epoch_ms(TIMESTAMP '2024-03-30') AS base_ms, base_ms + round(fault_start_day * 86400000)::BIGINT AS from_ms,
              base_ms + round(fault_end_day * 86400000)::BIGINT AS to_ms
       FROM source""",
    [
        Question(
            "faults and their length by node",
            1,
            "SELECT node, count(*), sum(ms_between(from_time, to_time)) FROM node_faults GROUP BY node",
            "SELECT node_id, count(*), sum(to_ms - from_ms) FROM faults GROUP BY node_id",
        ),
        Question(
            "every fault",
            3,
            "SELECT node, fault_class, from_time, to_time, fault_level, description FROM node_faults",
            'SELECT node_id, class, from_ms, to_ms, level, "desc" FROM faults',
        ),
        Question("faults in nodes", 1, "SELECT node, faults FROM nodes", "SELECT node_id, count(*) FROM source GROUP BY node_id"),
    ],
)

SACCT = jobs_case("sacct", SACCT_ATTEMPTS, QUEUE_QUESTIONS)
SACCT.import_arguments = ["sacct", "--cluster", "prod"]

TRACES = [
    PHILLY_ATTEMPTS,
    PHILLY_JOBS,
    MS_ITP_JOBS,
    OPENB_PODS,
    OPENB_NODES,
    MIT_SUPERCLOUD,
    HELIOS_QUOTAS,
    HELIOS_MINUTES,
    STEPFUN_FAULTS,
]
