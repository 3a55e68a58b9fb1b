"""The site: a real Slurm, `tidegate up`, the watcher and agents, as processes that can be killed."""

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
CLUSTER = "tidegate"
# How often the watcher asks for jobs, and for nodes and reservations.
JOBS_S, NODES_S = 1, 5
# Other checks may run beside on every processor.
PATIENCE_S = 600


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_until(what: str, condition, patience_s: float = PATIENCE_S):
    """What the condition returns once it is true."""
    until = time.monotonic() + patience_s
    while True:
        if found := condition():
            return found
        if time.monotonic() > until:
            raise TimeoutError(f"not within {patience_s:.0f} s: {what}")
        time.sleep(0.2)


class Slurm:
    """A cluster of cluster.sh with accounting; it ends when this process does."""

    def __init__(self, folder: Path, nodes: str):
        self.folder = folder
        self.env = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"), "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C",
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        for name in ("SQUEUE_FORMAT", "SQUEUE_STATES", "SACCT_FORMAT", "SQUEUE_USERS", "SQUEUE_PARTITION"):
            self.env.pop(name, None)
        command = [TESTS / "slurm/cluster.sh", "run", folder, "--dbd", f"--nodes={nodes}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            self.end()
            raise RuntimeError(f"the Slurm cluster did not come up; its logs are in {folder / 'log'}")
        self.user = self.run("id", "--user", "--name").strip()
        # A QOS of which a user may run one job at a time.
        self.run("sacctmgr", "--immediate", "add", "qos", "single", "MaxJobsPerUser=1")
        self.run("sacctmgr", "--immediate", "modify", "user", self.user, "set", "qos+=single")

    def run(self, *command: str) -> str:
        """What a program of Slurm prints; slurmctld may be busy for a moment."""
        for _ in range(3):
            done = subprocess.run(command, env=self.env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode == 0:
                return done.stdout
            if "Unable to contact" not in done.stderr and "timed out" not in done.stderr:
                break
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Program:
    """A program of Tidegate that may be killed and started again, and when it lived (ms)."""

    command: list
    output: Path
    env: dict
    process: subprocess.Popen | None = None
    lives: list[list[int | None]] = field(default_factory=list)

    def start(self) -> None:
        with self.output.open("ab") as said:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=self.env)
        self.lives.append([now_ms(), None])

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it and waits until it is gone; one that ended by itself is a failure."""
        if self.process is None:
            return
        process, self.process = self.process, None
        status = process.poll()
        process.send_signal(how)
        process.wait()
        self.lives[-1][1] = now_ms()
        if status is not None:
            raise RuntimeError(f"{self.command[1]} ended by itself with status {status}: see {self.output}")

    def kill(self) -> None:
        self.end(signal.SIGKILL)


class Site:
    """All of it in one folder. `agents` maps nodes to what the stand-in driver is told of their devices."""

    def __init__(self, folder: Path, tidegate: Path, nodes: str, agents: dict[str, str]):
        self.folder, self.tidegate = folder, tidegate
        self.slurm = Slurm(folder / "slurm", nodes)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.up = self.program("up", "--data", folder / "data", "--ingest", "--listen", self.url[7:], "--no-insight")
        self.watcher = self.program(
            "watch", "slurm", "--cluster", CLUSTER, "--log", self.url, "--spool", folder / "watch",
            "--interval", f"{JOBS_S}s", "--inventory", f"{NODES_S}s", "--slurm-conf", folder / "slurm/slurm.conf")
        self.agents = {node: self.agent(node, scenario) for node, scenario in agents.items()}

    def program(self, *arguments) -> Program:
        name = "-".join(str(a) for a in arguments[:1]) + f"-{len(list(self.folder.glob('*.said')))}"
        output = self.folder / f"{name}.said"
        output.touch()
        return Program([self.tidegate, *arguments], output, self.slurm.env)

    def agent(self, node: str, scenario: str) -> Program:
        driver = self.folder / "driver.so"
        if not driver.exists():
            subprocess.run([TESTS / "nvml/build.sh", driver], check=True)
        own = self.folder / f"driver-{node}.so"
        shutil.copy(driver, own)
        Path(f"{own}.scenario").write_text(f"host {node[1:]}\n{scenario}", encoding="utf-8")
        log = self.folder / f"kernel-{node}.log"
        log.touch()
        return self.program(
            "agent", "--source", "nvml", "--nvml-lib", own, "--kernel-log", log, "--node", node, "--cluster", CLUSTER,
            "--log", self.url, "--spool", self.folder / f"agent-{node}", "--interval", "1s", "--flush", "5s")

    def wait_for_door(self) -> None:
        """Waits until `up` listens: a collector that starts earlier backs off, and its first events come late."""
        host, _, port = self.url[7:].partition(":")

        def answers() -> bool:
            with socket.socket() as door:
                return door.connect_ex((host, int(port))) == 0

        wait_until("up listens", answers)

    def catch_up(self) -> None:
        """Ends `up`, and computes whatever the log holds."""
        self.up.end()
        subprocess.run(
            [self.tidegate, "up", "--data", self.folder / "data", "--listen", "127.0.0.1:0", "--no-insight",
             "--exit-when-done"], check=True, stdout=subprocess.DEVNULL)

    def end(self) -> None:
        """Nothing of it is left running, whatever failed."""
        for program in (*self.agents.values(), self.watcher, self.up):
            if program.process is not None:
                program.process.kill()
                program.process.wait()
        self.slurm.end()
