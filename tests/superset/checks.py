"""What people do in Superset, on the four jobs of tests/clients. A check raises, or returns what it
has seen in a few words.
"""

from dataclasses import dataclass
from datetime import datetime, timezone

from bi import Refused, Superset
from server import CA, Site, expect

SUM_OF_GPUS = {"expressionType": "SIMPLE", "column": {"column_name": "gpus_milli"}, "aggregate": "SUM", "label": "gpus"}
# When the jobs start, by time grain of Superset: the first one at 01:00, the others at 00:30,
# 01:00:01 and 00:00:10 of the next day.
DAY, NEXT = "2024-03-01 ", "2024-03-02 "
GRAINS = {
    "PT1S": [f"{DAY}00:30:00", f"{DAY}01:00:00", f"{DAY}01:00:01", f"{NEXT}00:00:10"],
    "PT5S": [f"{DAY}00:30:00", f"{DAY}01:00:00", f"{NEXT}00:00:10"],
    "PT30S": [f"{DAY}00:30:00", f"{DAY}01:00:00", f"{NEXT}00:00:00"],
    "PT1M": [f"{DAY}00:30:00", f"{DAY}01:00:00", f"{NEXT}00:00:00"],
    "PT5M": [f"{DAY}00:30:00", f"{DAY}01:00:00", f"{NEXT}00:00:00"],
    "PT10M": [f"{DAY}00:30:00", f"{DAY}01:00:00", f"{NEXT}00:00:00"],
    "PT15M": [f"{DAY}00:30:00", f"{DAY}01:00:00", f"{NEXT}00:00:00"],
    "PT30M": [f"{DAY}00:30:00", f"{DAY}01:00:00", f"{NEXT}00:00:00"],
    "PT1H": [f"{DAY}00:00:00", f"{DAY}01:00:00", f"{NEXT}00:00:00"],
    "P1D": [f"{DAY}00:00:00", f"{NEXT}00:00:00"],
    "P1W": ["2024-02-26 00:00:00"],
    "P1M": [f"{DAY}00:00:00"],
    "P3M": ["2024-01-01 00:00:00"],
    "P1Y": ["2024-01-01 00:00:00"],
}


@dataclass
class Seen:
    """What the checks have made in Superset so far."""

    superset: Superset
    site: Site
    database: int = 0
    jobs: int = 0


def it_connects(seen: Seen) -> str:
    site = seen.site
    uri = f"postgresql+psycopg2://ada:{site.token}@localhost:{site.postgres_port}/tidegate?sslmode=verify-full&sslrootcert={CA}"
    seen.superset.call("POST", "/api/v1/database/test_connection/", sqlalchemy_uri=uri, database_name="tidegate")
    made = seen.superset.call("POST", "/api/v1/database/", sqlalchemy_uri=uri, database_name="tidegate", expose_in_sqllab=True)
    seen.database = made["id"]
    expect(seen.superset.call("GET", f"/api/v1/database/{seen.database}/schemas/")["result"], ["public"])
    listed = seen.superset.call("GET", f"/api/v1/database/{seen.database}/tables/?q=(schema_name:public)")["result"]
    known = {row["table_name"] for row in site.rows("describe tables")}
    expect({table["value"] for table in listed}, known, "tables")
    return f"{len(known)} tables and views"


def a_table_becomes_a_dataset(seen: Seen) -> str:
    seen.jobs = seen.superset.call("POST", "/api/v1/dataset/", database=seen.database, schema="public", table_name="jobs")["id"]
    dataset = seen.superset.call("GET", f"/api/v1/dataset/{seen.jobs}")["result"]
    columns = {column["column_name"]: (column["type"], column["is_dttm"]) for column in dataset["columns"]}
    expect(set(columns), {row["column_name"] for row in seen.site.rows("describe jobs")})
    expect(columns["gpus_milli"], ("BIGINT", False))
    expect(columns["start_time"][1], True, f"start_time is no time: {columns['start_time']}")
    return f"{len(columns)} columns"


def charts_with_a_time_range(seen: Seen) -> str:
    def jobs(since: str, until: str) -> list[str]:
        rows = seen.superset.chart(
            seen.jobs, columns=["job_id"], metrics=["count"], orderby=[["job_id", True]],
            filters=[{"col": "start_time", "op": "TEMPORAL_RANGE", "val": f"{since} : {until}"}],
        )
        return [row["job_id"] for row in rows]

    expect(jobs("2024-03-01", "2024-03-02"), ["1", "2", "3"])
    # From is within, until is not.
    expect(jobs("2024-03-01T00:30:00", "2024-03-01T01:00:00"), ["2"])
    expect(jobs("2024-03-01T01:00:00", "2024-03-01T01:00:01"), ["1"])
    expect(jobs("2024-03-01T01:00:00.000001", ""), ["3", "4"])
    expect(jobs("2025-01-01", "2026-01-01"), [])
    rows = seen.superset.chart(
        seen.jobs, columns=["team"], metrics=[SUM_OF_GPUS], granularity="start_time", orderby=[["team", True]],
        time_range="2024-03-01T00:00:00 : 2024-03-02T00:00:00",
    )
    expect([(row["team"], row["gpus"]) for row in rows], [('spoken "word"', 2000), ("vision", 9000)])
    return "bounds to the microsecond"


def charts_with_a_time_grain(seen: Seen) -> str:
    for grain, wanted in GRAINS.items():
        axis = {"timeGrain": grain, "columnType": "BASE_AXIS", "sqlExpression": "start_time", "label": "time", "expressionType": "SQL"}
        rows = seen.superset.chart(
            seen.jobs, columns=[axis], metrics=["count"], orderby=[["count", False]],
            filters=[{"col": "start_time", "op": "TEMPORAL_RANGE", "val": "2024-01-01 : 2025-01-01"}],
        )
        times = sorted(datetime.fromtimestamp(row["time"] / 1000, timezone.utc).strftime("%F %T") for row in rows)
        expect(times, wanted, grain)
        expect(sum(row["count"] for row in rows), 4, grain)
    return f"{len(GRAINS)} grains"


def charts_with_filters(seen: Seen) -> str:
    for column, operator, value, wanted in [
        ("team", "==", "vision", ["1", "2"]), ("team", "!=", "vision", ["3"]), ("team", "IN", ['spoken "word"', "none"], ["3"]),
        ("team", "NOT IN", ["vision"], ["3"]), ("team", "LIKE", "%word%", ["3"]), ("team", "ILIKE", "VIS%", ["1", "2"]),
        ("team", "IS NULL", None, ["4"]), ("team", "IS NOT NULL", None, ["1", "2", "3"]), ("gpus_milli", ">=", "2000", ["2", "3"]),
        ("team", "==", "o'clock%(x)s", []),
    ]:
        asked = {"col": column, "op": operator} | ({} if value is None else {"val": value})
        rows = seen.superset.chart(seen.jobs, columns=["job_id"], metrics=[], orderby=[["job_id", True]], filters=[asked])
        expect([row["job_id"] for row in rows], wanted, f"{column} {operator} {value}")
    rows = seen.superset.chart(
        seen.jobs, columns=["team"], metrics=[SUM_OF_GPUS], orderby=[[SUM_OF_GPUS, False]], row_limit=2,
        extras={"having": "SUM(gpus_milli) > 1000", "where": "final_state <> 'CANCELLED'"},
    )
    expect([row["gpus"] for row in rows], [9000, 2000])
    values = seen.superset.call("GET", f"/api/v1/datasource/table/{seen.jobs}/column/team/values/")["result"]
    expect({value for value in values if value}, {"vision", 'spoken "word"'}, "values of a filter")
    samples = seen.superset.chart(seen.jobs, result_type="samples", row_limit=3)
    expect((len(samples), set(samples[0]) >= {"job_id", "start_time"}), (3, True), "samples")
    return "operators, HAVING, values, samples"


def a_query_becomes_a_dataset(seen: Seen) -> str:
    made = seen.superset.call(
        "POST", "/api/v1/dataset/", database=seen.database, schema="public", table_name="waits",
        sql="SELECT job_id, start_time, start_time - submit_time > INTERVAL '20 minutes' AS is_long FROM jobs",
    )
    rows = seen.superset.chart(
        made["id"], columns=["job_id"], metrics=[], orderby=[["job_id", True]],
        filters=[{"col": "start_time", "op": "TEMPORAL_RANGE", "val": "2024-03-01 : 2024-03-02"}, {"col": "is_long", "op": "IS TRUE"}],
    )
    expect([row["job_id"] for row in rows], ["1", "2"])
    return "with a time range"


def sql_lab_asks(seen: Seen) -> str:
    def asked(sql: str) -> dict:
        return seen.superset.call(
            "POST", "/api/v1/sqllab/execute/", database_id=seen.database, sql=sql, schema="public", runAsync=False, queryLimit=100,
        )

    answer = asked("SELECT team, count(*) AS jobs, to_char(min(start_time), 'YYYY-MM-DD HH24:MI') AS first FROM jobs GROUP BY team ORDER BY 2 DESC, 1")
    expect(
        [tuple(row.values()) for row in answer["data"]],
        [("vision", 2, "2024-03-01 00:30"), ('spoken "word"', 1, "2024-03-01 01:00"), (None, 1, "2024-03-02 00:00")],
    )
    for sql, part in [("SELECT * FROM job", "did you mean"), ("SELECT to_timestamp('1', 'Q')", "YYYY")]:
        try:
            asked(sql)
        except Refused as error:
            expect(part in str(error), True, str(error))
        else:
            raise AssertionError(f"{sql} did not fail")
    return "rows, and errors with their reason"


CHECKS = [
    it_connects, a_table_becomes_a_dataset, charts_with_a_time_range, charts_with_a_time_grain, charts_with_filters,
    a_query_becomes_a_dataset, sql_lab_asks,
]
