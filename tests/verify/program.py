"""The program under test, driven as a user drives it: through its commands."""

import re
import subprocess
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.ipc

COMMAND_SECONDS_MAX = 1800

# Where an event came from and its number in that source differ between two ways to bring in the same history.
ORIGIN_COLUMNS = {"source", "epoch", "seq"}


class CommandFailed(Exception):
    """A command ended with another status than expected."""


class Data:
    """One data folder of the program."""

    def __init__(self, binary: Path, folder: Path):
        self.binary = binary
        self.folder = folder
        self.known: dict[bool, dict[str, tuple[int, int]]] = {}

    def bring_in(self, arguments: list[str], file: Path) -> dict[str, int]:
        """`tidegate import`; returns the counts it prints by their label."""
        self.known.clear()
        command = ["import", arguments[0], str(file), *arguments[1:], "--data", str(self.folder)]
        text = self._run(command).decode()
        counts = re.findall(r"^(\w[\w ]*\w) {2,}([\d,]+)", text, re.MULTILINE)
        return {label: int(number.replace(",", "")) for label, number in counts}

    def ask(self, sql: str) -> pa.Table:
        """`tidegate sql`; times come back as milliseconds since 1970."""
        options = ["--format", "arrow", "--max-rows", "100000000"]
        raw = self._run(["sql", "--data", str(self.folder), *options, sql])
        table = pa.ipc.open_stream(raw).read_all()
        columns = {name: _in_ms(table.column(name)) for name in table.column_names}
        return pa.table(columns)

    def tables(self) -> list[str]:
        """Those that are stored; views are functions of them."""
        described = self.ask("describe").to_pylist()
        return [table["table_name"] for table in described if table["kind"] == "table"]

    def contents(self, with_origin: bool) -> dict[str, tuple[int, int]]:
        """Rows and a checksum of every stored table, whatever the order of rows.

        Without origin, what only tells how the events came in is left out: the numbers the source gave them, and the
        heartbeats that end each import.
        """
        if with_origin not in self.known:
            self.known[with_origin] = self._contents(with_origin)
        return dict(self.known[with_origin])

    def _contents(self, with_origin: bool) -> dict[str, tuple[int, int]]:
        # Both tell how the events came in and how far the tables are, and nothing else. A second import brings
        # `table_lag` up to date even if it adds no row.
        bookkeeping = {"table_lag"} if with_origin else {"table_lag", "window_revisions"}
        names = [name for name in self.tables() if name not in bookkeeping]
        contents = {name: (0, 0) for name in names}
        # Most tables of an import are empty, and one question tells which.
        counts = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS n FROM {name}" for name in names)
        for name in (row["name"] for row in self.ask(counts).to_pylist() if row["n"]):
            table = self.ask(f"SELECT * FROM {name}")
            if not with_origin:
                kept = [column for column in table.column_names if column not in ORIGIN_COLUMNS]
                table = table.select(kept)
            contents[name] = _checksum(table, with_origin)
        return contents

    def _run(self, arguments: list[str]) -> bytes:
        done = subprocess.run(
            [self.binary, *arguments], capture_output=True, timeout=COMMAND_SECONDS_MAX, check=False
        )
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-2000:]
            raise CommandFailed(f"status {done.returncode} from: tidegate {' '.join(arguments)}\n{said}")
        return done.stdout


def _in_ms(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_timestamp(column.type):
        return column
    # The cast is checked: a time that is not a whole millisecond is an error, as the events hold milliseconds.
    return column.cast(pa.timestamp("ms", tz=column.type.tz)).cast(pa.int64())


def _checksum(table: pa.Table, with_origin: bool) -> tuple[int, int]:
    with duckdb.connect() as db:
        db.register("contents", table)
        no_heartbeats = "kind" in table.column_names and not with_origin
        where = "WHERE kind <> 'OBSERVED'" if no_heartbeats else ""
        sums = f"SELECT count(*), coalesce(sum(hash(t)::HUGEINT), 0) FROM (SELECT * FROM contents {where}) t"
        return db.execute(sums).fetchone()
