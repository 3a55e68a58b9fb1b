"""Runs scenes through Tidegate as users do, and reads the ledger that it makes of them.

`tidegate pipeline test --bless` writes the table that it gets all at once, and then compares the other ways in
which events can arrive with it. What it wrote is compared with the oracle here.
"""

import csv
import json
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from .model import Row


class CannotRun(Exception):
    """Tidegate could not be run, or says that the scenes are no events."""


def write_case(folder: Path, pipeline: str, events: list[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "case.toml").write_text(f'pipeline = "{pipeline}"\n', encoding="utf-8")
    with (folder / "events.jsonl").open("w", encoding="utf-8") as file:
        for event in events:
            file.write(json.dumps(event) + "\n")


def run_cases(tidegate: str, folder: Path) -> list[str]:
    """Runs the cases below `folder`. Returns what differs between the ways of arrival."""
    done = subprocess.run([tidegate, "pipeline", "test", "--bless", str(folder)], capture_output=True, text=True,
                          check=False)
    ways = [line for line in done.stdout.splitlines() if line.endswith(" ok") or "DIFFERS" in line]
    if not ways:
        raise CannotRun(f"{tidegate} pipeline test {folder}: {done.stderr.strip() or done.stdout.strip()}")
    lines = done.stdout.splitlines()
    return ["\n".join(lines[place:place + 3]) for place, line in enumerate(lines) if "DIFFERS" in line]


def rows_of(folder: Path) -> Iterator[Row]:
    """The ledger that Tidegate wrote."""
    with (folder / "expected.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            known = {name: value or None for name, value in row.items()}
            at = int(datetime.fromisoformat(known["window_start"]).timestamp()) * 1000
            yield Row(at, row["cluster"], known["pool"], known["node"], known["gpu_uuid"], known["mig_uuid"],
                      known["team"], known["user_name"], known["job_id"], row["class"], row["formula"],
                      int(row["gpu_ms"]))
