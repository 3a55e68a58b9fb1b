"""What clients of Arrow Flight SQL are asked to do. A check raises, or returns what it has seen in a
few words."""

import subprocess
import threading
import time
from datetime import datetime, timezone

from adbc_driver_flightsql import DatabaseOptions, dbapi
from server import CA, ENDLESS, HERE, Site, expect


def connect(site: Site, token: str | None = None):
    options = {
        DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token or site.token}",
        DatabaseOptions.TLS_ROOT_CERTS.value: CA.read_text(),
    }
    return dbapi.connect(f"grpc+tls://localhost:{site.flight_port}", db_kwargs=options, autocommit=True)


def adbc_asks(site: Site) -> str:
    with connect(site) as session, session.cursor() as cursor:
        cursor.execute("SELECT job_id, gpus_milli, start_time FROM jobs ORDER BY job_id LIMIT 2")
        table = cursor.fetch_arrow_table()
        expect(table.column("gpus_milli").to_pylist(), [1000, 8000])
        expect(table.column("start_time").to_pylist()[1], datetime(2024, 3, 1, 0, 30, tzinfo=timezone.utc))
        cursor.execute("SELECT job_id FROM jobs WHERE gpus_milli >= $1 AND team = $2", (8000, "vision"))
        expect(cursor.fetchall(), [("2",)])
        cursor.execute("SELECT value, repeat('x', 100) AS filler FROM generate_series(1, 300000)")
        many = cursor.fetch_arrow_table()
        expect((many.num_rows, sum(many.column("value").to_pylist())), (300000, 300000 * 300001 // 2))
        cursor.execute("SELECT job_id FROM jobs WHERE gpus_milli > 100000")
        expect(cursor.fetch_arrow_table().num_rows, 0)
    return "queries, parameters, 300,000 rows"


def adbc_lists_tables(site: Site) -> str:
    with connect(site) as session:
        found = session.adbc_get_objects(depth="tables", db_schema_filter="public").read_all().to_pylist()
        tables = [table["table_name"] for schema in found[0]["catalog_db_schemas"] for table in schema["db_schema_tables"]]
        assert "jobs" in tables, tables
        schema = session.adbc_get_table_schema("jobs")
        expect(str(schema.field("gpus_milli").type), "int64")
        about = session.adbc_get_info()
        expect(about["vendor_name"], "Tidegate")
    return f"{len(tables)} tables and views"


def adbc_sees_failures(site: Site) -> str:
    with connect(site) as session, session.cursor() as cursor:
        for sql, said in (("SELECT * FROM nothing", "no table named nothing"), ("DROP TABLE jobs", "queries only read")):
            try:
                cursor.execute(sql)
                cursor.fetchall()
            except dbapi.Error as error:
                assert said in str(error), error
                continue
            raise AssertionError(f"{sql} did not fail")
        threading.Timer(1, cursor.adbc_cancel).start()
        since = time.monotonic()
        try:
            cursor.execute(ENDLESS)
            cursor.fetchall()
        except dbapi.Error:
            took_s = time.monotonic() - since
            assert took_s < 20, took_s
        else:
            raise AssertionError("an endless query ended")
    try:
        with connect(site, "tidegate_wrong") as session, session.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchall()
    except dbapi.Error as error:
        assert "not known here" in str(error), error
        return f"failures, a query cancelled after {took_s:.1f} s, a wrong token"
    raise AssertionError("a wrong token came in")


def flight_jdbc(site: Site) -> str:
    jar = next(site.jars.glob("flight-sql-jdbc-driver-*.jar"))
    url = f"jdbc:arrow-flight-sql://localhost:{site.flight_port}?useEncryption=true&tlsRootCerts={CA}"
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", jar,
         HERE / "FlightJdbc.java", url, site.token],
        capture_output=True, text=True, timeout=120,
    )
    if done.returncode:
        raise AssertionError(f"{done.stdout} {done.stderr}")
    return done.stdout.strip()


CHECKS = [adbc_asks, adbc_lists_tables, adbc_sees_failures, flight_jdbc]
