#!/usr/bin/env python3
"""Looks at a demo as monitoring does: Grafana's dashboards, Prometheus, a webhook.

    tests/monitoring/run.py --tidegate target/debug/tidegate [--only NAME...] [--show BOARD]

grafana.py asks every question of the dashboards through the Postgres door. prometheus.py has rules and
pages checked by promtool, and lets a real Prometheus scrape and alert. webhook.py receives what is
sent to a webhook. install.sh installs what they need, and this script runs itself by the Python that
has psycopg.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results import note  # noqa: E402

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True, help="the program to ask")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of checks; all by default")
    parser.add_argument("--show", default="", help="print the first rows of each panel of this board")
    options = parser.parse_args()
    python = subprocess.run([HERE / "install.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    # Not the file behind it, which many environments share.
    if Path(sys.executable) != Path(python):
        os.execv(python, [python, *sys.argv])
    import grafana
    import prometheus
    import webhook
    from demo import Demo

    run = Run(options.only)
    run.checks(grafana.files() + prometheus.files())
    with tempfile.TemporaryDirectory(prefix="tidegate-monitoring-", ignore_cleanup_errors=True) as folder:
        since = time.monotonic()
        receiver = webhook.Receiver()
        with Demo(options.tidegate.resolve(), Path(folder) / "data", receiver.url) as demo:
            print(f"the demo's present came after {time.monotonic() - since:.1f} s", flush=True)
            run.checks(grafana.asked_of(demo, options.show) + prometheus.asked_of(demo, Path(folder)))
            run.checks(webhook.notified_of(demo, receiver))
            said = (Path(folder) / "log").read_text()
            run.checks([("no log names the webhook's address", lambda: unnamed(said))])
    return 1 if run.failed else 0


def unnamed(said: str) -> str:
    assert "webhook" in said, "the log does not name the webhook's failures"
    assert "secret" not in said, next(line for line in said.splitlines() if "secret" in line)
    return f"{len(said.splitlines())} lines"


class Run:
    """Runs checks, and notes them for tests/run.sh."""

    def __init__(self, only: list[str]):
        self.only = only
        self.failed = 0

    def checks(self, named: list) -> None:
        for name, work in named:
            if not self.only or any(part in name for part in self.only):
                self._check(name, work)

    def _check(self, name: str, work) -> None:
        since = time.monotonic()
        try:
            outcome, said = "passed", work()
        except Exception as error:
            if not isinstance(error, AssertionError):
                traceback.print_exc()
            outcome, said = "failed", f"{type(error).__name__}: {error}"
            self.failed += 1
        print(f"{outcome} {name}, {time.monotonic() - since:.1f} s: {said}", flush=True)
        note(outcome, f"monitoring: {name}", said)


if __name__ == "__main__":
    sys.exit(main())
