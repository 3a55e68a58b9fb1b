"""A demo that writes its tables, and what `tidegate sql` shows of them afterwards."""

import json
import os
import subprocess
import threading
from pathlib import Path

# Longest wait for the demo's present, s.
PATIENCE_S = 600


class Writer:
    def __init__(self, tidegate: Path, folder: Path):
        self.tidegate, self.folder, self.data = tidegate, folder, folder / "data"
        self.up = subprocess.Popen(
            [tidegate, "up", "--demo", "--demo-speed", "max", "--listen", "127.0.0.1:0", "--flush-every", "2", "--data", self.data],
            env=self._environment(), stdout=subprocess.PIPE, stderr=(folder / "log").open("w"), text=True,
        )
        self.is_present = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}

    def _listen(self) -> None:
        for line in self.up.stdout:
            if line.startswith("It is now"):
                self.is_present.set()

    def must_live(self) -> None:
        if (status := self.up.poll()) is not None:
            raise RuntimeError(f"it ended with {status}:\n{(self.folder / 'log').read_text()[-2000:]}")

    def tables(self) -> dict[str, Path]:
        """Folders of the tables on disk, by name: of each the newest version of its layout."""
        logs = sorted(self.data.glob("lake/*/v*/_delta_log"), key=lambda log: int(log.parent.name[1:]))
        return {log.parent.parent.name: log.parent for log in logs}

    def end(self) -> None:
        self.up.terminate()
        try:
            self.up.wait(60)
        except subprocess.TimeoutExpired:
            self.up.kill()

    def keys(self) -> dict[str, list[str]]:
        """Columns that name a row, of every table, as the program describes them."""
        described = json.loads(self._sql("json", "describe"))
        return {row["table_name"]: row["one_row_per"].split(", ") for row in described}

    def rows(self, sql: str) -> Path:
        """The answer, as a Parquet file."""
        file = self.folder / "answer.parquet"
        file.write_bytes(self._sql("parquet", sql))
        return file

    def _sql(self, form: str, sql: str) -> bytes:
        command = [self.tidegate, "sql", "--format", form, "--max-rows", "10000000", sql, "--data", self.data]
        done = subprocess.run(command, env=self._environment(), capture_output=True)
        if done.returncode:
            raise RuntimeError(f"{sql}: {done.stderr.decode()}")
        return done.stdout
