"""A site under attack: a real Slurm, `tidegate up` with an autopilot that acts, and an honest agent
whose events must all arrive."""

import http.client
import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import wire

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "slurm/ledger"))

from processes import Slurm, wait_until  # noqa: E402

# systemd's default, and what attacks on connections count on.
DESCRIPTORS = 1024
# The server of a small site may take this much, whatever is sent to it; MiB.
MEMORY_MIB = 2500
POLICY = """
name = "hostile"
[modes]
drain_node = "act"
return_node = "act"
[worth]
least_net_gpu_hours = 0.0
[stability]
dwell_s = 0
"""


class Broken(Exception):
    """Something that must hold no longer does."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Site:
    """The programs and what the honest agent was promised. Without `slurm` there is no autopilot."""

    def __init__(self, folder: Path, tidegate: Path, slurm: bool = True):
        self.folder, self.tidegate = folder, tidegate
        self.slurm = Slurm(folder / "slurm", "4+1") if slurm else None
        self.env = self.slurm.env if self.slurm else None
        self.promised = 0
        self.server: subprocess.Popen | None = None
        self.data = folder / "data"
        self.autopilot = self._autopilot() if slurm else []
        self.start()

    def _autopilot(self) -> list[str | Path]:
        """Arguments of a server whose autopilot acts."""
        folder = self.folder
        (folder / "hostile.toml").write_text(POLICY, encoding="utf-8")
        conf = json.dumps(str(folder / "slurm/slurm.conf"))
        (folder / "autopilot.toml").write_text(
            'cluster = "tidegate"\npolicy = "hostile.toml"\nlook_every_s = 1\nplan_every_s = 1\nlease_s = 5\n'
            f"[slurm]\nconf = {conf}\n", encoding="utf-8")
        self._run("autopilot", "resume", "--data", self.data)
        return ["--autopilot", folder / "autopilot.toml"]

    def _run(self, *arguments) -> str:
        done = subprocess.run([self.tidegate, *arguments], capture_output=True, text=True, env=self.env)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return done.stdout

    def start(self) -> None:
        """Starts the server with the limits that systemd gives it."""
        said = (self.folder / "up.said").open("ab")
        limit = (DESCRIPTORS, DESCRIPTORS)
        self.server = subprocess.Popen(
            [self.tidegate, "up", "--ingest", "--data", self.data, "--listen", "127.0.0.1:0",
             *self.autopilot],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True, env=self.env,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit))
        for line in self.server.stdout:
            if line.startswith("events"):
                self.port = int(line.partition("127.0.0.1:")[2].split("/")[0].split()[0])
                break
        else:
            raise Broken(f"the server did not start: see {said.name}")
        wait_until("the server answers", lambda: self.get("/readyz")[0] == 200)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.server:
            self.server.send_signal(how)
            self.server.wait()
            self.server = None

    def close(self) -> None:
        self.end()
        if self.slurm:
            self.slurm.end()

    # What anybody may send.

    def request(self, method: str, path: str, body: bytes | str = b"", headers: dict[str, str] | None = None,
                patience_s: float = 60) -> tuple[int, bytes]:
        """Status and body of the answer; status 0 if the connection broke."""
        door = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience_s)
        try:
            door.request(method, path, body, headers or {})
            answer = door.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error).encode()
        finally:
            door.close()

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        return self.request("GET", path, headers=headers)

    def sql(self, query: str, patience_s: float = 60, limit_s: float = 20) -> tuple[int, bytes]:
        body = json.dumps({"sql": query, "timeout_ms": int(limit_s * 1000)})
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        return self.request("POST", "/v1/sql", body, headers, patience_s)

    def rows(self, query: str) -> list[dict]:
        status, said = self.sql(query)
        if status != 200:
            raise Broken(f"an honest query failed with {status}: {said[:300]!r}")
        return json.loads(said)

    def append(self, body: bytes) -> tuple[int, bytes]:
        return self.request("POST", "/v1/events", body, {"Content-Type": "application/x-protobuf"})

    # What must hold.

    def honest(self, count: int = 50) -> None:
        """The honest agent appends events, which the server acknowledges."""
        numbers = range(self.promised, self.promised + count)
        source = "agent/n1@tidegate"
        records = [wire.record("node", "tidegate/n1", now_ms(), {2: 19, 3: "n1", 11: f"honest-{number}"},
                               source, number) for number in numbers]
        status, said = self.append(wire.append("node", source, self.promised, records))
        if status != 200:
            raise Broken(f"honest events were refused with {status}: {said[:300]!r}")
        self.promised += count

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.server.pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024

    def leases(self) -> int:
        return self.rows("SELECT count(*) AS n FROM autopilot_events WHERE kind = 'LEASE_TAKEN'")[0]["n"]

    def check(self) -> None:
        """All that must hold after an attack; raises `Broken` with what does not."""
        if (status := self.server.poll()) is not None:
            raise Broken(f"the server ended with status {status}")
        self.honest()
        stored = "SELECT count(DISTINCT fault_class) AS n FROM node_events WHERE fault_class LIKE 'honest-%'"

        def arrived() -> bool:
            return self.rows(stored)[0]["n"] == self.promised

        wait_until("acknowledged events are in the tables", arrived, 120)
        ready, said = self.get("/readyz")
        if ready != 200:
            raise Broken(f"/readyz says {ready}: {said[:200]!r}")
        if self.slurm:
            self.check_autopilot()
        if (peak := self.memory_mib()) > MEMORY_MIB:
            raise Broken(f"the server took {peak:.0f} MiB")

    def check_autopilot(self) -> None:
        before = self.leases()
        wait_until("the autopilot renews its lease", lambda: self.leases() > before, 120)
        states = self.slurm.run("sinfo", "--noheader", "--format=%n %T")
        if "drain" in states:
            raise Broken(f"a node was drained: {states!r}")

    def restart(self) -> None:
        """kill -9 and a new start: what is on the log must not end the next life either."""
        self.end()
        self.start()
