"""Sites to look at: data folders made by the program, served by it."""

import json
import re
import subprocess
import time
import urllib.request
from pathlib import Path

START_SECONDS = 300


def made(tidegate: Path, folder: Path) -> Path:
    """A synthetic hour with GPUs, MIG slices, prices and training jobs that report steps."""
    command = [tidegate, "bench", "ledger", "--hours", "1", "--nodes", "3", "--keep", folder, "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


class Site:
    """`tidegate up` on a data folder."""

    def __init__(self, tidegate: Path, folder: Path, *options: str):
        command = [tidegate, "up", "--data", folder, "--listen", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self._listening()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _listening(self) -> str:
        for line in self.process.stdout:
            if found := re.search(r"http://[\d.]+:\d+", line):
                return found.group()
        raise RuntimeError(f"it ended before it listened, with status {self.process.wait()}")

    def rows(self, sql: str) -> list[dict]:
        """The rows of a query, not as a browser."""
        request = urllib.request.Request(f"{self.address}/v1/sql", sql.encode(), {"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def wait_for(self, sql: str):
        """Waits until a query of one number is not 0."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if list(self.rows(sql)[0].values())[0]:
                return
            time.sleep(0.5)
        raise RuntimeError(f"not in {START_SECONDS} s: {sql}")

    def close(self):
        """Ends the server as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.stdout.close()
