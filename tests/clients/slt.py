"""Reads sqllogictest files: cases/*.slt.

Of the format there are

    statement error [PART OF THE MESSAGE]
    query TYPES [rowsort]

where a type is T (text, or a date), I (integer), R (real, six digits), N (decimal, exact), B
(boolean), D (time) or L (list), and rows have a tab between values. Of a result too long to write
down there is one line, `N values hashing to MD5`, of all values with a line break after each.
A line `-- $1 T vision` before the query is a value for its parameter; without one it is NULL.
"""

import hashlib
import json
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass
class Case:
    place: str
    sql: str
    types: str = ""
    is_sorted: bool = False
    fails: bool = False
    says: str = ""
    parameters: list = field(default_factory=list)
    rows: list[str] = field(default_factory=list)

    @property
    def without_parameters(self) -> str:
        """The query with its values written into it, for doors that take none."""
        sql = self.sql
        for number, value in reversed(list(enumerate(self.parameters, 1))):
            sql = sql.replace(f"${number}", literal(value))
        return sql

    def written(self, rows) -> list[str]:
        """Rows as the files have them."""
        values = [[text(value, of) for value, of in zip(row, self.types, strict=True)] for row in rows]
        lines = sorted("\t".join(row) for row in values) if self.is_sorted else ["\t".join(row) for row in values]
        if len(self.rows) == 1 and "values hashing to" in self.rows[0]:
            every = [value for line in lines for value in line.split("\t")]
            hashed = hashlib.md5("".join(value + "\n" for value in every).encode()).hexdigest()
            return [f"{len(every)} values hashing to {hashed}"]
        return lines


def cases() -> list[Case]:
    return [case for file in sorted((HERE / "cases").glob("*.slt")) for case in read(file)]


def read(file: Path) -> list[Case]:
    found, lines = [], file.read_text().splitlines()
    at = 0
    while at < len(lines):
        words = lines[at].split()
        place = f"{file.name}:{at + 1}"
        at += 1
        if not words or words[0].startswith("#"):
            continue
        block, parameters = [], []
        while at < len(lines) and lines[at].strip():
            if lines[at].startswith("-- $"):
                parameters.append(parameter(*lines[at].split(" ", 3)[2:]))
            else:
                block.append(lines[at])
            at += 1
        match words:
            case ["statement", "error", *says]:
                found.append(Case(place, "\n".join(block), fails=True, says=" ".join(says), parameters=parameters))
            case ["query", types, *sort]:
                end = block.index("----")
                rows = block[end + 1 :]
                found.append(Case(place, "\n".join(block[:end]), types, sort == ["rowsort"], parameters=parameters, rows=rows))
            case _:
                raise ValueError(f"{place}: {words}")
    return found


def parameter(of: str, written: str | None = None):
    """The value of a line `-- $1 TYPE VALUE`."""
    if written is None:
        return None
    makes = {"T": str, "I": int, "R": float, "N": Decimal, "B": lambda value: value == "true", "D": datetime.fromisoformat}
    return makes[of](written)


def literal(value) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case datetime():
            return f"TIMESTAMPTZ '{value.isoformat()}'"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case _:
            return str(value)


def text(value, of: str) -> str:
    """A value as the files write it."""
    if value is None:
        return "NULL"
    match of:
        case "I":
            assert not isinstance(value, (bool, float)), f"{value!r} is no integer"
            return str(int(value))
        case "R":
            return f"{float(value):.6g}"
        case "N":
            return f"{Decimal(value):f}"
        case "B":
            return str(value).lower()
        case "D":
            moment = datetime.fromisoformat(value) if isinstance(value, str) else value
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
        case "L":
            return json.dumps(list(value), default=str, ensure_ascii=False)
        case _:
            assert isinstance(value, (str, date)), f"{value!r} is no text"
            return "(empty)" if value == "" else str(value)
