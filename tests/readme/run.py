#!/usr/bin/env python3
"""Does what README.md says: types its commands, read from the file, in their order.

    tests/readme/run.py [--section NAME]

The working folder is a copy of the tree with nothing beside it, as a clone would be: README's first
command makes `tidegate-data` there, and the commands of the other sections are run against it.
Outputs that README shows must come out as shown. What rules.py says of a command is all that is
special about it. Programs come from `CARGO_TARGET_DIR`/debug, where the first command puts them.
Needs Python 3.11.
"""

import argparse
import gzip
import os
import shutil
import sys
from pathlib import Path

import commands
from commands import Command
from reader import README, Failed, Reader
from rules import How, rule

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--section", action="append", default=[], help="only this one; may be repeated")
    sections = parser.parse_args().section
    typed = [command for command in commands.commands(README) if not sections or command.section in sections]
    if not typed:
        print(f"{README} has no commands in {sections or 'any section'}")
        return 1
    if Path("tidegate-data").exists():
        print("there is a tidegate-data in this folder: README begins where there is none")
        return 1
    there_before = set(os.listdir())
    lay_out()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    with Reader() as reader:
        for command in typed:
            reader.enter(command.section)
            outcome, why = attempt(reader, command)
            counts[outcome] += 1
            tell(outcome, command, why)
        for command, why in reader.leave():
            counts["failed"] += 1
            tell("failed", command, why)
    for made in set(os.listdir()) - there_before:
        shutil.rmtree(made) if Path(made).is_dir() else Path(made).unlink()
    print("README: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["failed"] else 0


def lay_out() -> None:
    """Puts beside the tree what the text takes for there: a reader's own files."""
    shutil.copytree(HERE / "files", ".", dirs_exist_ok=True)
    Path("jobs.csv.gz").write_bytes(gzip.compress(Path("jobs.csv").read_bytes()))
    for block in commands.blocks(README):
        if block.language == "sql":
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
    """Says it, and notes it where TIDEGATE_RESULTS asks for it."""
    name = f"README.md:{command.line} {command}"
    print(f"{outcome:8} {name}" + (f"\n         {why}" if why else ""), flush=True)
    if results := os.environ.get("TIDEGATE_RESULTS"):
        with open(results, "a", encoding="utf-8") as file:
            file.write(f"{outcome}\t{name}\t{' '.join(why.split())}\n")


if __name__ == "__main__":
    sys.exit(main())
