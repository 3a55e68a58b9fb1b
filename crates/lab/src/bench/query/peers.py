"""The questions of `tidegate bench query`, asked of DuckDB and ClickHouse on the same samples in the same run.

Reads a JSON object from standard input: samples and holds (Parquet files), folder, threads, repeat, questions; writes one to standard
output: per system its version, the bytes of its table, and per question and form the answer and what it took.
"""

import json
import os
import resource
import statistics
import sys
import time

import chdb
import duckdb
from chdb import session

METRIC_TYPES = {"ts": "Int64", "node": "LowCardinality(String)", "gpu_uuid": "LowCardinality(String)", "gpu_index": "Int32",
                "job_id": "LowCardinality(String)", "team": "LowCardinality(String)"}
# samples, how many of them could be read, those in which the GPU did nothing, sums of two ratios; the same text in both dialects
MINUTES = """SELECT {minute} AS minute, node, gpu_uuid, job_id, team, count(*) AS samples, count(gpu_util_ppm) AS known,
    sum(CASE WHEN gpu_util_ppm = 0 THEN 1 ELSE 0 END) AS idle, sum(gpu_util_ppm) AS util, sum(sm_active_ppm) AS sm
    FROM samples GROUP BY ALL"""


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measured(ask, repeat):
    """The answer and the medians of CPU and wall seconds; the first time does not count."""
    answer, took = ask(), []
    for _ in range(repeat):
        cpu, wall = cpu_seconds(), time.monotonic()
        ask()
        took.append((cpu_seconds() - cpu, time.monotonic() - wall))
    return {"rows": answer, "cpu_s": statistics.median(c for c, _ in took), "wall_s": statistics.median(w for _, w in took)}


def forms(question, system):
    return question.get(system, {}).items()


def of_duckdb(given, wide):
    path = os.path.join(given["folder"], "duckdb.db")
    db = duckdb.connect(path, config={"threads": given["threads"]})
    db.execute("SET enable_progress_bar = false")
    db.execute(f"CREATE TABLE holds AS SELECT * FROM '{given['holds']}'")
    # Rows carry their job, as exporters label them. A join by equality on ten-second slots would not be exact; this is.
    db.execute(f"""CREATE TABLE samples AS SELECT s.*, h.job_id, h.team FROM '{given['samples']}' s LEFT JOIN holds h
        ON h.node = s.node AND h.gpu_index = s.gpu_index AND s.ts >= h.from_ms AND s.ts < h.to_ms ORDER BY s.node, s.gpu_uuid, s.ts""")
    db.execute("CREATE TABLE minutes AS " + MINUTES.format(minute="ts // 60000 * 60000"))
    db.execute(f"COPY samples TO '{wide}' (FORMAT parquet)")
    db.execute("CHECKPOINT")
    answers = {
        question["name"]: {form: measured(lambda: db.sql(sql).fetchall(), given["repeat"]) for form, sql in forms(question, "duckdb")}
        for question in given["questions"]
    }
    return {"version": duckdb.__version__, "answers": answers}


def of_clickhouse(given, wide):
    db = session.Session(os.path.join(given["folder"], "clickhouse"))
    names = [row[0] for row in duckdb.sql(f"DESCRIBE SELECT * FROM '{wide}'").fetchall()]
    columns = ", ".join(f"{name} {METRIC_TYPES.get(name, 'Nullable(Int64)')}" for name in names)
    db.query("CREATE DATABASE fleet ENGINE = Atomic")
    db.query("USE fleet")
    db.query(f"SET max_threads = {given['threads']}")
    db.query("SET output_format_json_quote_64bit_integers = 0")
    db.query(f"CREATE TABLE samples ({columns}) ENGINE = MergeTree ORDER BY (node, gpu_uuid, ts)")
    chosen = ", ".join(f"ifNull({name}, '')" if name in ("job_id", "team") else name for name in names)
    db.query(f"INSERT INTO samples SELECT {chosen} FROM file('{wide}', Parquet)")
    db.query("OPTIMIZE TABLE samples FINAL")
    db.query("CREATE TABLE minutes ENGINE = MergeTree ORDER BY (node, gpu_uuid, minute) AS "
             + MINUTES.format(minute="intDiv(ts, 60000) * 60000"))
    db.query("OPTIMIZE TABLE minutes FINAL")

    def ask(sql):
        rows = json.loads(str(db.query(sql, "JSONCompact")))["data"]
        # An array of quantiles stands beside them.
        return [[cell for cell in row if not isinstance(cell, list)] for row in rows]

    answers = {
        question["name"]: {form: measured(lambda: ask(sql), given["repeat"]) for form, sql in forms(question, "clickhouse")}
        for question in given["questions"]
    }
    stored = db.query("SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND table = 'samples'", "JSONCompact")
    return {"version": chdb.engine_version, "answers": answers, "table_bytes": int(json.loads(str(stored))["data"][0][0])}


def main():
    # What the engines print by themselves is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    given = json.load(sys.stdin)
    wide = os.path.join(given["folder"], "wide.parquet")
    with answers:
        json.dump({"duckdb": of_duckdb(given, wide), "clickhouse": of_clickhouse(given, wide)}, answers)


main()
