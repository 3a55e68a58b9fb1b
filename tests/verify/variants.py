"""Other ways to bring in the same history. Each must end in the same tables."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet

from cases import Case
from compare import Answer
from program import Data
from sacct import END_S, MIDDLE_S, Year

SEED = 20_240_229


@dataclass
class History:
    """A case's file and, where it is generated, what it was made of."""

    case: Case
    file: Path
    year: Year | None = None


def again(label: str, data: Data, history: History) -> Answer:
    """The same file a second time, into the same folder."""
    before = data.contents(with_origin=True)
    counts = data.bring_in(history.case.import_arguments, history.file)
    answer = _same(label, "imported again: nothing written, nothing changed", before, data.contents(with_origin=True))
    written = counts["events written"]
    if written or not counts["already present"]:
        answer.equal, answer.difference = False, f"{written} events written"
    return answer


def overlapping(label: str, data: Data, history: History, fresh: Data) -> Answer:
    """The first 60 % of the rows, then the last 60 %."""
    rows = rows_of(history.file)
    cut = len(rows) * 6 // 10
    for name, part in [("first", rows[:cut]), ("last", rows[-cut:])]:
        fresh.bring_in(history.case.import_arguments, _write(history.file, fresh.folder, name, part))
    return _same(label, "two overlapping exports equal the whole", *_both(data, fresh))


def shuffled(label: str, data: Data, history: History, fresh: Data) -> Answer:
    """The rows in another order."""
    rows = rows_of(history.file)
    # A fixed order that has nothing to do with the file's: the same at every run, on every machine.
    rows.sort(key=lambda row: (row * 2_654_435_761) % 4_294_967_296)
    fresh.bring_in(history.case.import_arguments, _write(history.file, fresh.folder, "shuffled", rows))
    return _same(label, "shuffled rows equal ordered rows", *_both(data, fresh))


def grown(label: str, data: Data, history: History, fresh: Data) -> Answer:
    """Accounting printed in the middle of the year, with jobs waiting and running, and again at its end."""
    for name, at_s in [("middle", MIDDLE_S), ("end", END_S)]:
        file = _beside(history.file, fresh.folder, name)
        history.year.write(file, at_s)
        fresh.bring_in(history.case.import_arguments, file)
    ours, grown = _both(data, fresh)
    # The raw events keep what was said at the time: that a job waited, for which reason.
    for contents in (ours, grown):
        contents.pop("job_events")
    return _same(label, "an export of mid-year, then of the year, equal the year", ours, grown)


def _both(data: Data, fresh: Data) -> tuple[dict, dict]:
    return data.contents(with_origin=False), fresh.contents(with_origin=False)


def _same(label: str, question: str, ours: dict, other: dict) -> Answer:
    rows = sum(rows for rows, _ in ours.values())
    changed = [name for name in sorted(ours.keys() | other.keys()) if ours.get(name) != other.get(name)]
    note = ", ".join(f"{name}: {ours.get(name, (0,))[0]} and {other.get(name, (0,))[0]} rows" for name in changed)
    return Answer(label, question, rows, not changed, "contents" if changed else "0", note)


def rows_of(file: Path) -> list[int]:
    """The numbers of a file's rows, from 0."""
    if file.suffix == ".parquet":
        return list(range(parquet.read_metadata(file).num_rows))
    return list(range(len(file.read_text().splitlines()) - 1))


def _beside(file: Path, folder: Path, name: str) -> Path:
    return folder.with_name(f"{folder.name}-{name}{file.suffix}")


def _write(file: Path, folder: Path, name: str, rows: list[int]) -> Path:
    """A file of these rows of another file, in this order."""
    target = _beside(file, folder, name)
    if file.suffix == ".parquet":
        parquet.write_table(parquet.read_table(file).take(rows), target)
    else:
        header, *lines = file.read_text().splitlines()
        target.write_text("\n".join([header, *(lines[row] for row in rows)]) + "\n")
    return target
