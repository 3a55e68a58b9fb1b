"""A Superset of its own, asked through its API as its page does."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Longest wait for a start and for an answer, s.
PATIENCE_S = 120


class Refused(AssertionError):
    """Superset answered with an error."""


class Superset:
    """`superset run` with metadata of its own in a folder."""

    def __init__(self, home: Path, folder: Path):
        shutil.copy(home / "metadata.db", folder / "metadata.db")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address, self.token, self.log = f"http://127.0.0.1:{port}", "", folder / "superset.log"
        environment = {
            "SUPERSET_CONFIG_PATH": str(HERE / "superset_config.py"), "SUPERSET_METADATA": str(folder / "metadata.db"),
            "SUPERSET_HOME": str(folder), "FLASK_APP": "superset", "PYTHONWARNINGS": "ignore",
        }
        self.process = subprocess.Popen(
            [home / "bin/superset", "run", "--port", str(port)], env=os.environ | environment,
            stdout=self.log.open("w"), stderr=subprocess.STDOUT,
        )

    def __enter__(self):
        until = time.monotonic() + PATIENCE_S
        while not self._is_up():
            if self.process.poll() is not None or time.monotonic() > until:
                self.close()
                raise RuntimeError(f"Superset did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.2)
        self.token = self.call("POST", "/api/v1/security/login", username="admin", password="admin", provider="db")["access_token"]
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=PATIENCE_S)

    def _is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def call(self, method: str, path: str, **body) -> dict:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        sent = json.dumps(body).encode() if method != "GET" else None
        request = urllib.request.Request(self.address + path, sent, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(f"{method} {path}: {error.code} {error.read().decode()[:1500]}") from None

    def chart(self, dataset: int, result_type: str = "full", **query) -> list[dict]:
        """The rows that a chart on a dataset draws."""
        answer = self.call(
            "POST", "/api/v1/chart/data", datasource={"id": dataset, "type": "table"}, queries=[query],
            result_format="json", result_type=result_type,
        )
        [result] = answer["result"]
        if result["status"] != "success" or result["error"]:
            raise Refused(f"{result['error']}: {result['query']}")
        return result["data"]
