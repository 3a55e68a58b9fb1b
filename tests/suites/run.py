#!/usr/bin/env python3
"""Builds and runs the tests of all crates, suites side by side, and names the slowest tests.

    tests/suites/run.py [--suite NAME]... [--unit] [--changed CLONE]

`cargo test` runs one suite after the other, and many of ours wait: for a broker to come up, a lease
to end, a file to be written. Here the suites are run as cargo would, the longest of the last run
first, as many at a time as the machine has processors, and beside them two of those that mostly
wait. Needs Python 3.11 and nothing else:
cargo-nextest would run each test in a process of its own, and each of the tests on Kafka would
start a broker of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from suite import Suite, Test

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results import note  # noqa: E402

SLOWEST = 20
# Suites that wait for Slurm and the clock, and work for a quarter of their time at most. The
# one on Kafka works more, but among the others it would run alone at the end.
WAITING = {
    "tidegate-control/slurm_target", "tidegate-collect/live", "tidegate-collect/slurm", "tidegate-log/kafka",
    "tidegate-node/slurm",
}
WAITING_AT_ONCE = 2
# Begun first where nothing has been measured yet.
LONGEST = {"tidegate-control/slurm_target", "tidegate/cli", "tidegate-lake/crash", "tidegate-lake/lake"}
CARGO = ["cargo", "test", "--locked", "--workspace"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", action="append", default=[], help="only this one, e.g. tidegate-log/kafka; may be repeated")
    parser.add_argument("--unit", action="store_true", help="only the tests inside of crates, and build no others")
    parser.add_argument("--changed", metavar="CLONE", type=Path, help="only crates whose files differ there from the main branch")
    args = parser.parse_args()
    suites = build(["--lib", "--bins"] if args.unit else [])
    if suites is None:
        return 1
    if args.suite:
        suites = [suite for suite in suites if suite.name in args.suite]
    if args.changed:
        crates = changed(args.changed)
        print(f"differ from the main branch: {', '.join(sorted(crates)) or 'no crates'}")
        suites = [suite for suite in suites if suite.folder.name in crates]
    if args.suite and not suites:
        print(f"no suite is called {' or '.join(args.suite)}")
        return 1
    times = Times()
    suites.sort(key=lambda suite: times.of(suite.name), reverse=True)
    tests = run(suites, times)
    if not (args.suite or args.unit):
        tests += documented()
    tell(tests)
    return 1 if any(test.outcome == "failed" for test in tests) else 0


def build(targets: list[str]) -> list[Suite] | None:
    """Builds all suites, or those of some targets; what cargo says is shown as it comes."""
    began = time.monotonic()
    command = [*CARGO, *targets, "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        return None
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    found = [message for message in messages if message.get("executable") and message["profile"]["test"]]
    print(f"{len(found)} suites built in {time.monotonic() - began:.0f} s", flush=True)
    return [Suite.of(message) for message in found]


def changed(clone: Path) -> set[str]:
    """Folders of crates that differ from where the branch left the main one; on that one itself,
    from the commit before.
    """
    def git(*arguments: str) -> list[str]:
        return subprocess.run(["git", "-C", clone, *arguments], capture_output=True, text=True).stdout.split()

    head = git("rev-parse", "HEAD")
    bases = (git("merge-base", "HEAD", main) for main in ("origin/HEAD", "origin/main", "main"))
    base = next((base for base in bases if base and base != head), ["HEAD~1"])
    files = git("diff", "--name-only", *base) + git("ls-files", "--others", "--exclude-standard")
    return {file.split("/")[1] for file in files if file.startswith("crates/")}


def run(suites: list[Suite], times: "Times") -> list[Test]:
    tests: list[Test] = []
    processors = os.cpu_count() or 1
    # More working suites at a time would only slow down those that measure. One test more than there
    # are processors, for some wait for a broker.
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-suites-") as folder,
        ThreadPoolExecutor(processors) as working,
        ThreadPoolExecutor(WAITING_AT_ONCE) as waiting,
    ):
        def submit(suite: Suite):
            pool = waiting if suite.name in WAITING else working
            return pool.submit(suite.run, Path(folder), processors + 1)

        running = [submit(suite) for suite in suites]
        for suite, future in zip(suites, running):
            took_s, found = future.result()
            times.note(suite.name, took_s)
            tests += found
    times.save()
    return tests


def documented() -> list[Test]:
    """The examples in the documentation, which only cargo can run."""
    began = time.monotonic()
    ended = subprocess.run([*CARGO, "--doc"], capture_output=True, text=True)
    if ended.returncode != 0:
        print(ended.stdout + ended.stderr)
    return [Test("the examples in the documentation", "passed" if ended.returncode == 0 else "failed", time.monotonic() - began)]


def tell(tests: list[Test]) -> None:
    """Says what was slow, what was skipped and what failed, and tells tests/run.sh of each test."""
    print(f"\nthe {SLOWEST} slowest tests")
    for test in sorted(tests, key=lambda test: test.took_s, reverse=True)[:SLOWEST]:
        print(f"{test.took_s:8.1f} s  {test.name}")
    counts = {outcome: sum(test.outcome == outcome for test in tests) for outcome in ("passed", "failed", "skipped")}
    print("tests: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    for test in tests:
        note(test.outcome, test.name, test.why)


class Times:
    """How long each suite took the last time, beside what is built."""

    def __init__(self):
        self.file = Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "suite-times.json"
        self.known: dict[str, float] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def of(self, suite: str) -> float:
        return self.known.get(suite, float("inf") if suite in LONGEST else 0.0)

    def note(self, suite: str, took_s: float) -> None:
        self.known[suite] = took_s

    def save(self) -> None:
        self.file.write_text(json.dumps(self.known, indent=1))


if __name__ == "__main__":
    sys.exit(main())
