"""A question, answered twice, and the difference of the answers."""

from dataclasses import dataclass
from decimal import Decimal
from numbers import Number

import duckdb
import pyarrow as pa

from program import Data


@dataclass
class Question:
    """Asked of the program and of DuckDB. The first `keys` columns say what a row is about, the others are the answer."""

    name: str
    keys: int
    tidegate: str
    duckdb: str
    # Of interpolated quantiles only: sums and times must be equal.
    tolerance: float = 0.0


@dataclass
class Answer:
    case: str
    question: str
    rows: int
    equal: bool
    difference: str = "0"
    note: str = ""


def answer(case: str, question: Question, data: Data, db: duckdb.DuckDBPyConnection) -> Answer:
    ours = _by_key(_rows(data.ask(question.tidegate)), question.keys)
    expected = _by_key(db.execute(question.duckdb).fetchall(), question.keys)
    # No rows on either side would be equal and prove nothing.
    if not expected:
        return Answer(case, question.name, 0, False, "-", "the question finds nothing in the source")
    largest, first = 0, ""
    for key in sorted(ours.keys() | expected.keys(), key=str):
        difference = _difference(ours.get(key), expected.get(key))
        if difference > question.tolerance and not first:
            first = f"first: {key}: tidegate {ours.get(key)}, source {expected.get(key)}"
        largest = max(largest, difference)
    return Answer(case, question.name, len(expected), not first, _short(largest), first)


def _rows(table: pa.Table) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in table.columns))) if table.num_rows else []


def _by_key(rows: list[tuple], keys: int) -> dict[tuple, list[tuple]]:
    found: dict[tuple, list[tuple]] = {}
    for row in rows:
        found.setdefault(row[:keys], []).append(row[keys:])
    return {key: sorted(values, key=str) for key, values in found.items()}


def _difference(ours: list[tuple] | None, expected: list[tuple] | None) -> float:
    """Largest difference of two groups of rows; infinite where a row is missing or a text differs."""
    if ours is None or expected is None or len(ours) != len(expected):
        return float("inf")
    pairs = [pair for a, b in zip(ours, expected) for pair in zip(a, b, strict=True)]
    return max((_apart(a, b) for a, b in pairs), default=0)


def _apart(a, b) -> float:
    if isinstance(a, (Number, Decimal)) and isinstance(b, (Number, Decimal)):
        # Whole numbers are subtracted as such: as floats, large sums would look equal that are not.
        return abs(a - b) if isinstance(a, int) and isinstance(b, int) else abs(float(a) - float(b))
    return 0 if a == b else float("inf")


def _short(number: float) -> str:
    return "rows or texts" if number == float("inf") else f"{number:.6g}"
