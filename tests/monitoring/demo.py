"""`tidegate up --demo`, once its present has come."""

import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

# Longest wait for the demo's past, s.
PATIENCE_S = 300
# What comes last: of the autopilot, of the signals, and of joined tables.
LAST = ["prediction_scores", "stragglers", "ledger_1d"]


class Demo:
    """A demo with a Postgres door, on free ports."""

    def __init__(self, tidegate: Path, data: Path, webhook: str):
        self.tidegate, self.data, self.webhook = tidegate, data, webhook
        self._start(["--demo", "--demo-speed", "max"], "It is now")

    def _start(self, options: list[str], last: str) -> None:
        """Starts the program, and waits for this line."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "PG"))}
        self.up = subprocess.Popen(
            [self.tidegate, "up", *options, "--data", self.data, "--listen", "127.0.0.1:0", "--postgres", "127.0.0.1:0"],
            env={**environment, "TIDEGATE_WEBHOOK_URL": self.webhook},
            stdout=subprocess.PIPE, stderr=(self.data.parent / "log").open("a"), text=True,
        )
        watch = threading.Timer(PATIENCE_S, self.up.kill)
        watch.start()
        for line in self.up.stdout:
            if found := re.search(r"(http://[\d.]+:\d+)/$", line.strip()):
                self.address = found[1]
            if found := re.search(r"psql .* port=(\d+)", line):
                self.postgres_port = int(found[1])
            if line.startswith(last):
                break
        else:
            raise RuntimeError(f"no {last!r} in {PATIENCE_S} s; status {self.up.wait()}")
        watch.cancel()
        # Who reads nothing any more must not hold it up.
        threading.Thread(target=self.up.stdout.read, daemon=True).start()

    def again(self) -> None:
        """Stops it, and starts it on what it recorded."""
        self._stop()
        self._start([], "psql")

    def __enter__(self):
        until = time.monotonic() + PATIENCE_S
        while not all(self.rows(f"SELECT count(*) AS n FROM {last}")[0]["n"] for last in LAST):
            if time.monotonic() > until:
                raise RuntimeError(f"not in {PATIENCE_S} s: {LAST}")
            time.sleep(0.5)
        return self

    def __exit__(self, *_):
        self._stop()

    def _stop(self) -> None:
        self.up.terminate()
        try:
            self.up.wait(30)
        except subprocess.TimeoutExpired:
            self.up.kill()

    def rows(self, sql: str) -> list[dict]:
        request = urllib.request.Request(f"{self.address}/v1/sql", sql.encode(), {"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def page(self, path: str, accept: str = "text/plain") -> str:
        request = urllib.request.Request(self.address + path, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()
