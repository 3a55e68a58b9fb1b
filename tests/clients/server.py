"""A site with known tables, and the ways into it."""

import json
import os
import ssl
import subprocess
import threading
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
CERTIFICATES = HERE.parent.parent / "crates/tidegate/tests/cli/tls"
CA = CERTIFICATES / "ca.pem"
# Longest wait for a start, s.
PATIENCE_S = 120

JOBS = '''job_id,team,gpus,submit_time,start_time,end_time,state
1,vision,1,2024-03-01T00:00:00Z,2024-03-01T01:00:00Z,2024-03-01T02:00:00Z,COMPLETED
2,vision,8,2024-03-01T00:00:00Z,2024-03-01T00:30:00Z,2024-03-01T04:30:00.5Z,FAILED
3,"spoken ""word""",2,2024-03-01T01:00:00Z,2024-03-01T01:00:01Z,2024-03-02T01:00:00Z,COMPLETED
4,,1,2024-03-02T00:00:00Z,2024-03-02T00:00:10Z,2024-03-02T00:10:00Z,CANCELLED
'''

# Takes far longer than any check waits.
ENDLESS = (
    "SELECT count(*) FROM generate_series(1, 3000000) a, generate_series(1, 3000000) b WHERE a.value <> b.value + 1"
)


def expect(seen, wanted, what: str = "") -> None:
    if seen != wanted:
        raise AssertionError(f"{what}: {seen!r}, not {wanted!r}")


class Site:
    """`tidegate up` with tokens and TLS, on free ports."""

    def __init__(self, folder: Path, tidegate: Path):
        self.tidegate, self.data, self.tokens = tidegate, folder / "data", folder / "tokens.toml"
        jobs = folder / "jobs.csv"
        jobs.write_text(JOBS)
        self._run("import", "jobs", jobs, "--map", "jobs_csv", "--data", self.data)
        self.token = self._run("token", "new", "--id", "ada", "--role", "viewer", "--tokens", self.tokens).strip()
        self.up = subprocess.Popen(
            [tidegate, "up", "--data", self.data, "--no-insight", "--listen", "127.0.0.1:0", "--postgres", "127.0.0.1:0",
             "--flight", "127.0.0.1:0", "--tokens", self.tokens, "--tls-cert", CERTIFICATES / "first.pem", "--tls-key", CERTIFICATES / "first.key"],
            env=self._environment(), stdout=subprocess.PIPE, text=True,
        )
        said = self._said("flight")
        self.http_port = int(said["SQL"].split("/v1/")[0].rsplit(":", 1)[1])
        self.postgres_port = int(said["psql"].split("port=")[1].split()[0].strip('"'))
        self.flight_port = int(said["flight"].rsplit(":", 1)[1])

    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "PG"))}

    def _run(self, *arguments) -> str:
        done = subprocess.run([self.tidegate, *arguments], env=self._environment(), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"tidegate {arguments[0]}: {done.stderr}")
        return done.stdout

    def _said(self, last: str) -> dict[str, str]:
        """What it prints at the start, by first word, up to a line with this one."""
        said = {}
        patience = threading.Timer(PATIENCE_S, self.up.kill)
        patience.start()
        for line in self.up.stdout:
            word, _, rest = line.strip().partition(" ")
            said[word] = rest.strip()
            if word == last:
                patience.cancel()
                return said
        raise RuntimeError(f"it did not start: {said}")

    def close(self) -> None:
        self.up.terminate()
        self.up.wait(timeout=PATIENCE_S)

    def post(self, sql: str, accept: str = "application/json") -> bytes:
        request = urllib.request.Request(
            f"https://localhost:{self.http_port}/v1/sql", data=sql.encode(),
            headers={"Authorization": f"Bearer {self.token}", "Accept": accept},
        )
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=CA)) as answer:
            return answer.read()

    def rows(self, sql: str) -> list[dict]:
        return json.loads(self.post(sql))

    @property
    def conninfo(self) -> str:
        """For libpq, but for the password."""
        return f"host=localhost port={self.postgres_port} dbname=tidegate user=ada sslmode=verify-full sslrootcert={CA}"
