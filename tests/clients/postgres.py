"""What each client of Postgres' protocol is asked to do. A check raises, or returns what it has seen
in a few words."""

import os
import subprocess
import threading
import time
from datetime import datetime, timezone

import psycopg
import sqlalchemy
from server import CA, ENDLESS, HERE, Site, expect


def psql(site: Site, typed: str) -> str:
    done = subprocess.run(
        ["psql", "-X", "--no-align", "--tuples-only", "-v", "ON_ERROR_STOP=1", site.conninfo],
        env={**os.environ, "PGPASSWORD": site.token}, input=typed, capture_output=True, text=True, timeout=60,
    )
    if done.returncode or done.stderr:
        raise AssertionError(f"{typed}: {done.stdout} {done.stderr}")
    return done.stdout.strip()


def psql_asks(site: Site) -> str:
    expect(psql(site, "SELECT job_id, gpus_milli FROM jobs ORDER BY job_id LIMIT 2;"), "1|1000\n2|8000")
    expect(psql(site, "BEGIN; SELECT 1; COMMIT;"), "BEGIN\n1\nCOMMIT")
    expect(psql(site, "SELECT 1 AS one, 'x' AS two \\gdesc"), "one|bigint\ntwo|text")
    return "queries, a block, \\gdesc"


def psql_lists_tables(site: Site) -> str:
    tables = {row["table_name"] for row in site.rows("describe tables")}
    expect({line.split("|")[1] for line in psql(site, "\\d").splitlines()}, tables)
    described = psql(site, "\\d jobs").splitlines()
    columns = {line.split("|")[0]: line.split("|")[1] for line in described}
    expect(set(columns), {row["column_name"] for row in site.rows("describe jobs")})
    expect((columns["job_id"], columns["submit_time"]), ("text", "timestamp with time zone"))
    expect("job_id" in psql(site, "\\d+ jobs"), True)
    for command in ("\\dt", "\\dt+", "\\dv", "\\dv+", "\\dn", "\\dn+", "\\l", "\\l+", "\\dx", "\\df", "\\du"):
        psql(site, command)
    return f"{len(tables)} tables and views"


def psycopg_binds(site: Site) -> str:
    with psycopg.connect(site.conninfo, password=site.token) as session:
        row = session.execute(
            "SELECT job_id, gpus_milli, start_time FROM jobs WHERE gpus_milli >= %s AND start_time < %s AND team = %s",
            (8000, datetime(2024, 3, 2, tzinfo=timezone.utc), "vision"),
        ).fetchall()
        expect(row, [("2", 8000, datetime(2024, 3, 1, 0, 30, tzinfo=timezone.utc))])
        for binary in (False, True):
            cursor = session.cursor(binary=binary)
            cursor.execute(
                "SELECT 1::bigint, 2.5::double, true, 'é', NULL, ARRAY[1,2], DATE '2024-03-01', 12.34::decimal(6,2)"
            )
            seen = cursor.fetchone()
            expect(seen[:6], (1, 2.5, True, "é", None, [1, 2]), f"binary {binary}")
            expect((str(seen[6]), str(seen[7])), ("2024-03-01", "12.34"), f"binary {binary}")
        with session.cursor() as cursor:
            cursor.executemany("SELECT count(*) FROM jobs WHERE gpus_milli > %s", [(0,), (1000,), (2000,)], returning=True)
            counts = [cursor.fetchone()[0]]
            while cursor.nextset():
                counts.append(cursor.fetchone()[0])
            expect(counts, [4, 2, 1])
        for _ in range(7):
            expect(session.execute("SELECT gpus_milli FROM jobs WHERE job_id = %s", ("2",)).fetchone(), (8000,))
    return "parameters, text and binary, prepared statements, a pipeline"


def psycopg_sees_failures(site: Site) -> str:
    with psycopg.connect(site.conninfo, password=site.token, autocommit=True) as session:
        for sql, error in (
            ("SELECT * FROM nothing", psycopg.errors.UndefinedTable),
            ("SELECT nothing FROM jobs", psycopg.errors.UndefinedColumn),
            ("SELEC 1", psycopg.errors.SyntaxError),
            ("DROP TABLE jobs", psycopg.errors.ReadOnlySqlTransaction),
        ):
            try:
                session.execute(sql)
            except error:
                continue
            raise AssertionError(f"{sql} did not fail")
        expect(session.execute("SELECT 1").fetchone(), (1,))
    try:
        psycopg.connect(site.conninfo, password="tidegate_wrong").close()
    except psycopg.OperationalError as error:
        assert "not known here" in str(error), error
    else:
        raise AssertionError("a wrong token came in")
    return "codes of failures, a wrong token"


def psycopg_formats_times(site: Site) -> str:
    """Formats as Postgres writes them; what would make another time is refused."""
    day = datetime(2024, 3, 1, tzinfo=timezone.utc)
    with psycopg.connect(site.conninfo, password=site.token, autocommit=True) as session:
        for asked, wanted in [
            ("to_timestamp('2024-03-01 10:20:30.25', 'YYYY-MM-DD HH24:MI:SS.US')", day.replace(hour=10, minute=20, second=30, microsecond=250000)),
            ("to_timestamp('2024-03-01 00:00:00', 'YYYY-MM-DD HH24:MI:SS.US')", day),
            ("to_timestamp('20240301', 'yyyymmdd')", day),
            ("to_timestamp('1 Mar 2024, 05:06 pm', 'DD Mon YYYY, HH12:MI AM')", day.replace(hour=17, minute=6)),
            ("to_timestamp('2024-061T01:02', 'YYYY-DDD\"T\"HH24:MI')", day.replace(hour=1, minute=2)),
            ("to_timestamp('2024-03-01', '%Y-%m-%d')::timestamptz", day),
            ("to_timestamp(NULL, 'YYYY-MM-DD')", None),
            ("to_date('01.03.2024', 'DD.MM.YYYY')", day.date()),
            ("to_char(TIMESTAMP '2024-03-01 01:02:03.000456', 'DD Mon YY HH24:MI:SS.US')", "01 Mar 24 01:02:03.000456"),
            ("TIMESTAMPTZ '2024-03-01T00:00:00Z' + INTERVAL '15 minutes' * FLOOR(59 / 15)", day.replace(minute=45)),
        ]:
            expect(session.execute(f"SELECT {asked}").fetchone()[0], wanted, asked)
        for asked in [
            "to_timestamp('2024-03-01 17', 'YYYY-MM-DD HH24')", "to_timestamp('2024-03', 'YYYY-MM')", "to_timestamp('x', '')",
            "to_timestamp('2024-03-01', 'YYYY-MM-DD\"')", "to_timestamp('2024-03-01', 'YYYY-MM-DD\\')", "to_char(now(), 'Q')",
            f"to_date('x', '{'é' * 20000}')", "to_timestamp('2024-02-30', 'YYYY-MM-DD')", "to_timestamp('2024-03-01 25:00', 'YYYY-MM-DD HH24:MI')",
            "to_timestamp('2024-03-01 10:20:30 and more', 'YYYY-MM-DD HH24:MI:SS')", "INTERVAL '1 month' * 1e300",
        ]:
            try:
                session.execute(f"SELECT {asked}")
            except (psycopg.errors.DataError, psycopg.errors.SyntaxErrorOrAccessRuleViolation):
                continue
            raise AssertionError(f"{asked[:80]} did not fail")
    return "Postgres' formats, the engine's, and bad ones"


def psycopg_cancels(site: Site) -> str:
    with psycopg.connect(site.conninfo, password=site.token, autocommit=True) as session:
        threading.Timer(1, session.cancel).start()
        since = time.monotonic()
        try:
            session.execute(ENDLESS)
        except psycopg.errors.QueryCanceled:
            took_s = time.monotonic() - since
        else:
            raise AssertionError("an endless query ended")
        expect(session.execute("SELECT 1").fetchone(), (1,))
        try:
            session.execute("SET statement_timeout = 500")
            session.execute(ENDLESS)
        except psycopg.errors.QueryCanceled:
            return f"after {took_s:.1f} s, and by statement_timeout"
    raise AssertionError("a query outran statement_timeout")


def sqlalchemy_reflects(site: Site) -> str:
    url = sqlalchemy.URL.create(
        "postgresql+psycopg", "ada", site.token, "localhost", site.postgres_port, "tidegate",
        {"sslmode": "verify-full", "sslrootcert": str(CA)},
    )
    engine = sqlalchemy.create_engine(url)
    inspector = sqlalchemy.inspect(engine)
    names = inspector.get_table_names() + inspector.get_view_names()
    known = {row["table_name"] for row in site.rows("describe tables")}
    expect(set(names), known)
    expect(inspector.has_table("jobs"), True)
    expect(inspector.has_table("no_such_table"), False)
    columns = {column["name"]: str(column["type"]) for column in inspector.get_columns("jobs")}
    expect(columns["gpus_milli"], "BIGINT")
    expect(columns["start_time"], "TIMESTAMP")
    expect(inspector.get_pk_constraint("jobs")["constrained_columns"], [])
    expect(inspector.get_foreign_keys("jobs") + inspector.get_indexes("jobs"), [])
    jobs = sqlalchemy.Table("jobs", sqlalchemy.MetaData(), autoload_with=engine)
    expect(set(jobs.columns.keys()), set(columns))
    with engine.connect() as session:
        asked = sqlalchemy.select(jobs.c.job_id).where(jobs.c.gpus_milli > 1000).order_by(jobs.c.job_id)
        expect(list(session.execute(asked).scalars()), ["2", "3"])
        counted = sqlalchemy.select(sqlalchemy.func.count()).select_from(jobs)
        expect(session.execute(counted).scalar(), 4)
    return f"{len(names)} tables and views, {len(columns)} columns of jobs"


def pgjdbc(site: Site) -> str:
    jar = next(site.jars.glob("postgresql-*.jar"))
    url = f"jdbc:postgresql://localhost:{site.postgres_port}/tidegate?sslmode=verify-full&sslrootcert={CA}"
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", jar, HERE / "Jdbc.java", url, site.token],
        capture_output=True, text=True, timeout=120,
    )
    if done.returncode:
        raise AssertionError(f"{done.stdout} {done.stderr}")
    return done.stdout.strip()


CHECKS = [psql_asks, psql_lists_tables, psycopg_binds, psycopg_sees_failures, psycopg_formats_times, psycopg_cancels, sqlalchemy_reflects, pgjdbc]
