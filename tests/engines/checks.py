"""What other engines read, beside each other and beside `tidegate sql`."""

import re
import time
from pathlib import Path

from deltalake import DeltaTable

from engines import DuckDb, sums_by_delta_rs, sums_by_duckdb
from writer import PATIENCE_S, Writer

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs/guide/doors.md"
# Written all the time: events as they came, rows of attempts, minutes and days.
BUSY = ["attempts", "device_ledger_1m", "gpu_1m", "gpu_samples", "job_events", "node_free"]
# Of these nothing is taken away again.
APPENDED = ["gpu_samples", "job_events"]
# Tables with several rows of one key, until maintenance merges them: docs/guide/doors.md.
MERGED = ["gpu_1h", "gpu_1m", "training_1m"]
# How long they read once the demo has come to its present, s.
PRESENT_S = 10
# Of each busy table at least so many versions are read, or the demo was not read while it wrote.
VERSIONS = 3


def while_written(writer: Writer) -> str:
    """Both engines see the same in each version that they come across."""
    duck = DuckDb()
    seen: dict[str, list[tuple[int, int]]] = {name: [] for name in BUSY}
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        writer.must_live()
        if writer.is_present.is_set():
            until = min(until, time.monotonic() + PRESENT_S)
        folders = writer.tables()
        for name in (name for name in BUSY if name in folders):
            table = DeltaTable(folders[name])
            one, other = sums_by_delta_rs(table), sums_by_duckdb(duck, name, table)
            if one != other:
                raise AssertionError(f"{name} at {table.version()}: {one} by delta-rs, {other} by DuckDB")
            seen[name].append((table.version(), one[0]))
        time.sleep(2)
    if not writer.is_present.is_set():
        raise AssertionError(f"the demo has not come to its present in {PATIENCE_S} s")
    for name, read in seen.items():
        if len(dict(read)) < VERSIONS or read != sorted(read, key=lambda version_and_rows: version_and_rows[0]):
            raise AssertionError(f"{name}: versions {[version for version, _ in read]}")
        if name in APPENDED and read != sorted(read):
            raise AssertionError(f"{name} has lost rows: {read}")
    return "versions read: " + ", ".join(f"{len(dict(read))} of {name}" for name, read in seen.items())


def at_rest(writer: Writer) -> str:
    """Every table on disk has the rows that `tidegate sql` shows."""
    writer.end()
    duck, keys, tables = DuckDb(), writer.keys(), writer.tables()
    shown_paths = re.findall(r"\{lake\}/(\w+)/(v\d+)", GUIDE.read_text())
    if not shown_paths:
        raise AssertionError(f"{GUIDE.name} shows no table's folder any more")
    for name, version in shown_paths:
        if tables[name].name != version:
            raise AssertionError(f"{GUIDE.name} shows {name}/{version}; it is in {tables[name].name}")
    rows: dict[str, int] = {}
    differ = []
    for name, folder in sorted(tables.items()):
        answer = writer.rows(f"SELECT * FROM {name}")
        shown, stored = f"SELECT * FROM read_parquet('{answer}')", on_disk(name, duck.columns(answer), keys[name])
        counted = [shown, f"{shown} EXCEPT ALL {stored}", f"{stored} EXCEPT ALL {shown}"]
        sql = "SELECT " + ", ".join(f"(SELECT count(*) FROM ({query}))" for query in counted)
        rows[name], missing, more = duck.numbers(sql, name, DeltaTable(folder))
        if missing or more:
            differ.append(f"{name}: {missing} of {rows[name]} rows are missing on disk, {more} are too many")
    if differ:
        raise AssertionError("; ".join(differ))
    if empty := [name for name in [*BUSY, *MERGED] if not rows.get(name)]:
        raise AssertionError(f"there are no rows in {', '.join(empty)}")
    return f"{len(rows)} tables, {sum(not count for count in rows.values())} of them empty; {sum(rows.values()):,} rows"


def on_disk(name: str, columns: list[str], key: list[str]) -> str:
    """A query that reads the rows of a table from its files."""
    if name not in MERGED:
        return "SELECT " + ", ".join(f'"{column}"' for column in columns) + " FROM {table}"
    shown = (f'"{column}"' if column in key else f'{merges(column)}("{column}")' for column in columns)
    return f"SELECT {', '.join(shown)} FROM {{table}} GROUP BY " + ", ".join(f'"{column}"' for column in key)


def merges(column: str) -> str:
    """The function that merges a column, as docs/guide/doors.md says."""
    if column.startswith("first_"):
        return "min"
    return "max" if "max" in column.split("_") or column.startswith("last_") or column == "gpu_index" else "sum"
