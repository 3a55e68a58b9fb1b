#!/usr/bin/env python3
"""Does what README.md and the guides say: types their commands, read from the pages, in order.

    tests/docs/run.py [--page FILE]... [--section NAME]...

The working folder is a copy of the tree with nothing beside it, as a clone would be: README's first
command makes `tidegate-data` there, and the commands of the other sections are run against it.
Outputs that a page shows must come out as shown. What rules.py says of a command is all that is
special about it. Programs come from `CARGO_TARGET_DIR`/debug, where the first command puts them.
Needs Python 3.11.
"""

import argparse
import gzip
import os
import resource
import shutil
import sys
import time
from pathlib import Path

import commands
from commands import Command
from reader import Failed, Reader
from rules import How, rule

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results import note  # noqa: E402

HERE = Path(__file__).resolve().parent
# Commands that take so much time, or so much of processors with those that stayed and ended before
# them, say so: it shows where this check spends its own.
SLOW_S = 10
CERTIFICATES = HERE.parent.parent / "crates/tidegate/tests/cli/tls"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--section", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--page", action="append", default=[], help="only this one; may be repeated")
    args = parser.parse_args()
    pages = [page for page in commands.pages() if not args.page or str(page) in args.page]
    typed = [command for page in pages for command in commands.commands(page)]
    typed = [command for command in typed if not args.section or command.section in args.section]
    if not typed:
        print(f"no commands in {', '.join(args.page) or 'any page'}, {', '.join(args.section) or 'any section'}")
        return 1
    if Path("tidegate-data").exists():
        print("there is a tidegate-data in this folder: README begins where there is none")
        return 1
    there_before = set(os.listdir())
    lay_out()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    with Reader() as reader:
        for command in typed:
            began, used = time.monotonic(), processor_s()
            reader.enter(command)
            outcome, why = attempt(reader, command)
            counts[outcome] += 1
            tell(outcome, command, why)
            took_s, used_s = time.monotonic() - began, processor_s() - used
            if max(took_s, used_s) >= SLOW_S:
                print(f"         it took {took_s:.0f} s, {used_s:.0f} s of processors", flush=True)
        for command, why in reader.leave():
            counts["failed"] += 1
            tell("failed", command, why)
    for made in set(os.listdir()) - there_before:
        shutil.rmtree(made) if Path(made).is_dir() else Path(made).unlink()
    print("pages: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["failed"] else 0


def processor_s() -> float:
    """Processor time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lay_out() -> None:
    """Puts beside the tree what the text takes for there: a reader's own files."""
    shutil.copytree(HERE / "files", ".", dirs_exist_ok=True)
    for name, file in {"tide.pem": "first.pem", "tide.key": "first.key", "tide-ca.pem": "ca.pem"}.items():
        shutil.copy(CERTIFICATES / file, name)
    Path("jobs.csv.gz").write_bytes(gzip.compress(Path("jobs.csv").read_bytes()))
    for block in (block for page in commands.pages() for block in commands.blocks(page)):
        if block.language == "sql" and block.lines[0].startswith("--! name"):
            name = next(line for line in block.lines if line.startswith("--! name")).split('"')[1]
            Path(f"my_pipelines/{name}.sql").write_text("\n".join(block.lines) + "\n")


def attempt(reader: Reader, command: Command) -> tuple[str, str]:
    """What became of a command, and why if it is not passed."""
    special = rule(command)
    if special.how is How.SKIP:
        return "skipped", special.why
    if special.long and os.environ.get("TIDEGATE_LONG") != "1":
        return "skipped", "it takes minutes in an unoptimized build; TIDEGATE_LONG=1 runs it"
    try:
        reader.do(command, special)
    except Failed as failure:
        return "failed", str(failure)
    return "passed", ""


def tell(outcome: str, command: Command, why: str) -> None:
    """Says it, to people and to tests/run.sh."""
    name = f"{command.page}:{command.line} {command}"
    print(f"{outcome:8} {name}" + (f"\n         {why}" if why else ""), flush=True)
    note(outcome, name, why)


if __name__ == "__main__":
    sys.exit(main())
