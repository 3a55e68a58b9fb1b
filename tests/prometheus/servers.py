"""A Prometheus and a VictoriaMetrics with a given history, on loopback ports."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE_S = 60


class Server:
    """A process that answers over HTTP, ended by `close`."""

    def __init__(self, command: list, port: int, ready: str, folder: Path):
        self.url = f"http://127.0.0.1:{port}"
        self.output = folder / "output"
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
        until = time.monotonic() + PATIENCE_S
        while not self._answers(ready):
            if self.process.poll() is not None or time.monotonic() > until:
                self.close()
                raise RuntimeError(f"{command[0]} does not answer: {self.output.read_text()[-2000:]}")
            time.sleep(0.1)

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def prometheus(folder: Path, history: str) -> Server:
    """Blocks of the history, and a server that scrapes nothing."""
    folder.mkdir()
    (folder / "history.txt").write_text(history)
    (folder / "prometheus.yml").write_text("global: {}\n")
    subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", "history.txt", "data"],
                   cwd=folder, check=True, stdout=subprocess.DEVNULL)
    port = free_port()
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--storage.tsdb.retention.time=100y",
               f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    return Server(command, port, "/-/ready", folder)


def victoria_metrics(folder: Path, history: str) -> Server:
    """A server that was sent the history."""
    folder.mkdir()
    port = free_port()
    command = ["victoria-metrics", "-storageDataPath=data", "-retentionPeriod=100y", f"-httpListenAddr=127.0.0.1:{port}",
               "-loggerLevel=ERROR", f"-memory.allowedBytes={256 << 20}"]
    server = Server(command, port, "/health", folder)
    try:
        # Times are in ms here.
        lines = []
        for line in history.splitlines():
            if line and not line.startswith("#"):
                text, _, at_s = line.rpartition(" ")
                lines.append(f"{text} {round(float(at_s) * 1_000)}")
        body = ("\n".join(lines) + "\n").encode()
        request = urllib.request.Request(server.url + "/api/v1/import/prometheus", data=body, method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE_S):
            pass
        # What was sent is searched from now on.
        with urllib.request.urlopen(server.url + "/internal/force_flush", timeout=PATIENCE_S):
            pass
    except BaseException:
        server.close()
        raise
    return server
