"""The same cases through every door: each query of cases/*.slt must give the same rows by HTTP, by
Postgres' protocol in text and in binary, by Arrow Flight SQL, and by `tidegate sql` on the data folder.
"""

import json
import os
import subprocess
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import flight
import psycopg
from adbc_driver_flightsql import dbapi
from server import Site
from slt import Case, cases


class Failed(Exception):
    """What a door says of a query that failed."""


def from_json(lines: str) -> list[list]:
    """Rows of JSON lines, numbers with a point as they are written."""
    return [list(json.loads(line, parse_float=Decimal).values()) for line in lines.splitlines()]


def by_http(site: Site, case: Case) -> list:
    try:
        return from_json(site.post(case.without_parameters, "application/x-ndjson").decode())
    except urllib.error.HTTPError as error:
        raise Failed(error.read().decode()) from None


def by_postgres(session, case: Case, binary: bool) -> list:
    try:
        with psycopg.RawCursor(session) as cursor:
            cursor.execute(case.sql, case.parameters or None, prepare=binary, binary=binary)
            return cursor.fetchall()
    except psycopg.Error as error:
        raise Failed(str(error)) from None


def by_flight(session, case: Case) -> list:
    try:
        with session.cursor() as cursor:
            cursor.execute(case.sql, tuple(case.parameters) or None)
            return cursor.fetchall()
    except dbapi.Error as error:
        raise Failed(str(error)) from None


def by_command(site: Site, case: Case) -> list:
    done = subprocess.run(
        [site.tidegate, "sql", "--data", site.data, "--format", "jsonl", "-"], env={"PATH": os.environ["PATH"]},
        input=case.without_parameters, capture_output=True, text=True, timeout=120,
    )
    if done.returncode:
        raise Failed(done.stderr)
    return from_json(done.stdout)


def check(case: Case, door: str, ask) -> str | None:
    """What is wrong with the answer of a door."""
    try:
        rows = ask()
    except Failed as error:
        if case.fails and case.says in str(error):
            return None
        return f"{case.place} by {door}: it failed with {error}"
    if case.fails:
        return f"{case.place} by {door}: it did not fail"
    try:
        written = case.written(rows)
    except (AssertionError, ValueError) as error:
        return f"{case.place} by {door}: {error}"
    return None if written == case.rows else f"{case.place} by {door}: {written[:10]}, not {case.rows[:10]}"


def doors_agree(site: Site) -> str:
    """Every case gives its rows at every door, and a case that fails does so at each, for its reason."""
    every = cases()
    tokyo = f"{site.conninfo} options='-c TimeZone=Asia/Tokyo'"
    with (
        # Mostly starts of processes.
        ThreadPoolExecutor(2) as commands,
        psycopg.connect(site.conninfo, password=site.token, autocommit=True) as session,
        psycopg.connect(tokyo, password=site.token, autocommit=True) as elsewhere,
        flight.connect(site) as columns,
    ):
        embedded = [commands.submit(check, case, "command", lambda case=case: by_command(site, case)) for case in every]
        wrong = []
        for case in every:
            doors = {
                "HTTP": lambda: by_http(site, case),
                "Postgres in text": lambda: by_postgres(session, case, binary=False),
                "Postgres in binary": lambda: by_postgres(session, case, binary=True),
                "Flight": lambda: by_flight(columns, case),
            }
            if "D" in case.types:
                doors["Postgres from Tokyo"] = lambda: by_postgres(elsewhere, case, binary=False)
            wrong += [check(case, door, ask) for door, ask in doors.items()]
        wrong += [answer.result() for answer in embedded]
    wrong = [said for said in wrong if said]
    if wrong:
        raise AssertionError("\n".join([f"{len(wrong)} answers are wrong", *wrong]))
    return f"{len(every)} cases at 5 doors"
