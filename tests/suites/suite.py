"""One suite of tests: a program that cargo built, run as cargo would run it."""

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

# A suite that takes longer hangs.
PATIENCE_S = 3_300
LONG_S = 12 * 3_600
RESULT = re.compile(r"^test (?P<name>\S+)(?: - should panic)? \.\.\. (?P<outcome>ok|FAILED|ignored)")


@dataclass
class Test:
    name: str
    outcome: str
    """passed, failed or skipped."""
    took_s: float = 0.0
    why: str = ""


@dataclass
class Suite:
    package: str
    target: str
    kind: str
    program: str
    folder: Path

    @classmethod
    def of(cls, message: dict) -> "Suite":
        """From cargo's message of the program."""
        manifest, target = Path(message["manifest_path"]), message["target"]
        package = message["package_id"].partition("#")[2].partition("@")[0]
        package = package if not package[:1].isdigit() else manifest.parent.name
        return cls(package, target["name"], target["kind"][0], message["executable"], manifest.parent)

    @property
    def name(self) -> str:
        is_inside = self.kind in ("lib", "bin") and self.package == self.target.replace("_", "-")
        return f"{self.package}/{'unit' if is_inside else self.target}"

    def run(self, scratch: Path, threads: int) -> tuple[float, list[Test]]:
        """Runs all tests of the suite; returns how long it took and what became of each. Shows what
        failed.
        """
        output, skipped = (scratch / f"{Path(self.program).name}.{what}" for what in ("output", "skipped"))
        environment = os.environ | {"CARGO_MANIFEST_DIR": str(self.folder), "TIDEGATE_SKIPPED": str(skipped)}
        patience_s = LONG_S if os.environ.get("TIDEGATE_LONG") == "1" else PATIENCE_S
        order = self.listed(environment)
        began = time.monotonic()
        with output.open("wb") as stderr:
            process = subprocess.Popen(
                [self.program, f"--test-threads={threads}"], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=stderr, text=True, errors="replace", start_new_session=True,
            )
            watch = Watch(order, threads, began)
            with Limit(process, patience_s) as limit:
                said = [watch.hear(line) for line in process.stdout]
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
        took_s = time.monotonic() - began
        # Of a program that ended well every test has, also one whose line another one's output
        # spoilt.
        unheard = "passed" if process.returncode == 0 else "failed"
        tests = [self.judged(name, watch, lines_of(skipped), unheard) for name in order]
        if process.returncode != 0:
            print(f"\n--- {self.name}: status {process.returncode}", *said_of_failures(said), output.read_text(errors="replace"), sep="\n")
            if not any(test.outcome == "failed" for test in tests):
                why = f"took more than {patience_s} s" if limit.is_over else f"status {process.returncode}"
                tests.append(Test(self.name, "failed", took_s, why))
        outcome = "" if process.returncode == 0 else ", FAILED"
        # Of the suite and of what it started and waited for.
        processor_s = used.ru_utime + used.ru_stime
        print(f"{self.name}: {len(tests)} tests in {took_s:.1f} s, {processor_s:.0f} s of processors{outcome}", flush=True)
        return took_s, [test for test in tests if test.outcome != "ignored"]

    def listed(self, environment: dict) -> list[str]:
        """Names of the tests, in the order in which the program begins them."""
        listed = subprocess.run([self.program, "--list"], cwd=self.folder, env=environment, capture_output=True, text=True, check=True)
        return [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]

    def judged(self, name: str, watch: "Watch", skipped: dict[str, str], unheard: str) -> Test:
        outcome, took_s = watch.ended.get(name, (unheard, 0.0))
        why = "it did not end" if name not in watch.ended and unheard == "failed" else ""
        if outcome == "passed" and name in skipped:
            outcome, why = "skipped", skipped[name]
        return Test(f"{self.name} {name}", outcome, took_s, why)


class Watch:
    """Tells from a suite's output when each test began and ended.

    The program begins its tests in the order of its list, the next one when one has ended, and says
    only which have ended; so of so many threads, the begin of each is known.
    """

    def __init__(self, order: list[str], threads: int, began: float):
        self.waiting = list(reversed(order))
        self.running: dict[str, float] = {}
        self.ended: dict[str, tuple[str, float]] = {}
        for _ in range(threads):
            self.begin(began)

    def begin(self, now: float) -> None:
        if self.waiting:
            self.running[self.waiting.pop()] = now

    def hear(self, line: str) -> str:
        """Takes in a line of the output; returns it."""
        if found := RESULT.match(line):
            now = time.monotonic()
            outcome = {"ok": "passed", "FAILED": "failed", "ignored": "ignored"}[found["outcome"]]
            self.ended[found["name"]] = (outcome, now - self.running.pop(found["name"], now))
            self.begin(now)
        return line.rstrip("\n")


class Limit:
    """Kills a process and all it started when it takes too long."""

    def __init__(self, process: subprocess.Popen, seconds: float):
        self.process, self.is_over = process, False
        self.timer = Timer(seconds, self.pass_over)

    def pass_over(self) -> None:
        self.is_over = True
        os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> "Limit":
        self.timer.start()
        return self

    def __exit__(self, *_) -> None:
        self.timer.cancel()


def said_of_failures(said: list[str]) -> list[str]:
    """What the program says of tests that failed; all of it where it did not get so far."""
    at = next((number for number, line in enumerate(said) if line == "failures:"), None)
    return said[-200:] if at is None else said[at:]


def lines_of(file: Path) -> dict[str, str]:
    """Why tests were skipped, by name."""
    if not file.exists():
        return {}
    return dict(line.split("\t", 1) for line in file.read_text().splitlines())
