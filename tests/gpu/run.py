#!/usr/bin/env python3
"""Compares what Tidegate records of a real GPU with what NVIDIA's own programs say at the same time.

    tests/gpu/run.py --tidegate BIN --node BIN --out FOLDER [--seconds 30] [--pairs 4]

Needs an idle GPU, its driver with nvidia-smi, PyTorch, and root (to report a hold). A job keeps the
GPU busy in phases of known work (load.py). Meanwhile nvidia-smi prints utilisation, power, clocks
and memory, and `nvidia-smi dmon` the driver's GPM metrics. Then the same work runs with and
without an agent in turn, which shows what an agent costs a job. CI has no GPU, so nothing runs this
there: docs/results/gpu.md has the figures.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from witness import Dmon, Smi  # noqa: E402

LOAD = Path(__file__).resolve().parent / "load.py"
PHASES = ["idle", "bf16", "half", "fp32", "copies"]
PORT = 18428
# Samples within this time of a phase's ends are left out: averages of the driver reach back.
EDGE_MS = 3_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True)
    parser.add_argument("--node", type=Path, required=True, help="the program tidegate-node")
    parser.add_argument("--out", type=Path, required=True, help="folder for what was recorded")
    parser.add_argument("--seconds", type=float, default=30, help="length of a phase")
    parser.add_argument("--pairs", type=int, default=4, help="turns with and without an agent")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    site = Site(options.tidegate.resolve(), options.node.resolve(), options.out.resolve())
    try:
        return compare(site, options)
    finally:
        site.close()


def compare(site: "Site", options) -> int:
    (options.out / "doctor.txt").write_text(site.doctor())
    site.start_server()
    site.start_agent()
    site.hold("bf16")
    witnesses = [Smi(options.out / "smi.csv"), Dmon(options.out / "dmon.txt")]
    used = site.agent_cpu_s(), time.time()
    phases = [site.load(phase, options.seconds) for phase in PHASES]
    used = (site.agent_cpu_s() - used[0]) / (time.time() - used[1])
    for witness in witnesses:
        witness.end()
    last = f"SELECT count(*) AS n FROM gpu_samples WHERE to_unixtime(event_time) * 1000 >= {phases[-1]['to_ms']}"
    wait_until("the last phase is in the tables", lambda: site.sql(last)[0]["n"] > 0)
    samples = site.sql("SELECT *, date_part('epoch', event_time) AS second FROM gpu_samples ORDER BY event_time")
    (options.out / "samples.json").write_text(json.dumps(samples))
    report = {
        "agent_cpu_share": used,
        "phases": [row(phase, samples, witnesses) for phase in phases],
        "steps": site.sql("SELECT count(*) AS steps, sum(model_flops) AS flops FROM steps"),
        "mfu": site.sql("SELECT * FROM mfu_jobs"),
        "missing": sorted({name for sample in samples for name in (sample["missing"] or "").split(",") if name}),
        "cost": site.cost(options.seconds / 2, options.pairs),
    }
    (options.out / "report.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    faults = disagreements(report)
    print("\n".join(faults) or "Tidegate and NVIDIA agree")
    return 1 if faults else 0


def disagreements(report: dict) -> list[str]:
    """What differs by more than rounding, and by more than two readings a moment apart explain."""
    faults = []
    for found in report["phases"]:
        smi, dmon = found["smi"], found["dmon"]
        pairs = [
            ("gpu_util_ppm", found["gpu_util_ppm"] / 1e4, smi["utilization.gpu"], 3),
            ("memory_util_ppm", found["memory_util_ppm"] / 1e4, smi["utilization.memory"], 3),
            ("sm_active_ppm", found["sm_active_ppm"] / 1e4, dmon["smutil"], 3),
            ("sm_occupancy_ppm", found["sm_occupancy_ppm"] / 1e4, dmon["smocc"], 3),
            ("tensor_active_ppm", found["tensor_active_ppm"] / 1e4, dmon["mmaact"], 3),
            ("fp32_active_ppm", found["fp32_active_ppm"] / 1e4, dmon["fp32"], 3),
            ("dram_active_ppm", found["dram_active_ppm"] / 1e4, dmon["dram"], 3),
            ("power_mw", found["power_mw"] / 1e3, smi["power.draw.average"], 5),
            ("energy_mj", found["energy_mw"] / 1e3, smi["power.draw.average"], 5),
            ("framebuffer_used_bytes", found["framebuffer_used_bytes"] / 2**20, smi["memory.used"], 1),
        ]
        for name, ours, theirs, most in pairs:
            if abs(ours - theirs) > most:
                faults.append(f"{found['phase']}: {name} is {ours:.1f}, NVIDIA says {theirs:.1f}")
    return faults


def wait_until(what: str, condition, patience_s: float = 60) -> None:
    until = time.time() + patience_s
    while not condition():
        if time.time() > until:
            raise RuntimeError(f"not within {patience_s:.0f} s: {what}")
        time.sleep(0.5)


def row(phase: dict, samples: list[dict], witnesses: list) -> dict:
    """Means over one phase: Tidegate's, and the witness's beside it."""
    since, until = phase["from_ms"] + EDGE_MS, phase["to_ms"] - EDGE_MS
    inside = [sample for sample in samples if since <= sample["second"] * 1000 < until]
    found = {"phase": phase["phase"], "samples": len(inside)}
    found["tflops"] = phase["flops"] / (phase["to_ms"] - phase["from_ms"]) / 1e9
    for name in [
        "gpu_util_ppm", "memory_util_ppm", "graphics_active_ppm", "sm_active_ppm", "sm_occupancy_ppm",
        "tensor_active_ppm", "tensor_hmma_active_ppm", "fp32_active_ppm", "dram_active_ppm", "power_mw",
        "sm_clock_mhz", "memory_clock_mhz", "gpu_temp_celsius", "framebuffer_used_bytes", "process_count",
        "process_memory_bytes", "interval_us",
    ]:
        values = [sample[name] for sample in inside if sample[name] is not None]
        found[name] = statistics.fmean(values) if values else None
    energy = [(sample["second"], sample["energy_mj"]) for sample in inside if sample["energy_mj"] is not None]
    if len(energy) > 1:
        # mJ a second are mW.
        found["energy_mw"] = (energy[-1][1] - energy[0][1]) / (energy[-1][0] - energy[0][0])
    for witness in witnesses:
        found[type(witness).__name__.lower()] = witness.means(since, until)
    return found


class Site:
    """A server and an agent on this machine."""

    def __init__(self, tidegate: Path, node: Path, out: Path):
        self.tidegate, self.node, self.out = tidegate, node, out
        self.socket = out / "agent.sock"
        self.server = self.agent = None

    def start_server(self) -> None:
        with (self.out / "server.log").open("w") as log:
            self.server = subprocess.Popen(
                [self.tidegate, "up", "--ingest", "--data", self.out / "data", "--listen", f"127.0.0.1:{PORT}"],
                stdout=log, stderr=log,
            )
        wait_until("the server listens", lambda: not socket.socket().connect_ex(("127.0.0.1", PORT)))

    def start_agent(self) -> None:
        with (self.out / "agent.log").open("a") as log:
            self.agent = subprocess.Popen(
                [
                    self.node, "agent", "--source", "nvml", "--node", "gpu-01", "--log", f"http://127.0.0.1:{PORT}",
                    "--spool", self.out / "spool", "--socket", self.socket,
                ],
                stdout=log, stderr=log,
            )
        wait_until("the agent listens", self.socket.is_socket)

    def stop_agent(self) -> None:
        self.agent.terminate()
        self.agent.wait(60)
        self.agent = None
        self.socket.unlink(missing_ok=True)

    def hold(self, job: str) -> None:
        subprocess.run([self.node, "event", "hold", "--job", job, "--gpus", "0", "--socket", self.socket], check=True)

    def doctor(self) -> str:
        ran = subprocess.run([self.node, "doctor"], capture_output=True, text=True)
        return ran.stdout + ran.stderr

    def agent_cpu_s(self) -> float:
        fields = Path(f"/proc/{self.agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, phase: str, seconds: float) -> dict:
        command = [sys.executable, LOAD, "--phase", phase, "--seconds", str(seconds)]
        if phase == "bf16" and self.agent:
            command += ["--report", self.socket]
        # As Slurm sets it for a job of one GPU.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        return json.loads(ran.stdout.splitlines()[-1])

    def cost(self, seconds: float, pairs: int) -> list[dict]:
        """Operations per second of the same work, with and without an agent in turn, in TFLOP/s."""
        found = []
        for pair in range(pairs):
            rates = {}
            for watched in [True, False] if pair % 2 == 0 else [False, True]:
                if watched and not self.agent:
                    self.start_agent()
                elif not watched and self.agent:
                    self.stop_agent()
                done = self.load("bf16", seconds)
                rates["with" if watched else "without"] = done["flops"] / (done["to_ms"] - done["from_ms"]) / 1e9
            found.append(rates)
        return found

    def sql(self, query: str) -> list[dict]:
        ran = subprocess.run(
            [self.tidegate, "sql", "--data", self.out / "data", "--format", "json", query], capture_output=True, text=True
        )
        if ran.returncode:
            raise RuntimeError(ran.stderr)
        return json.loads(ran.stdout)

    def close(self) -> None:
        for process in (self.agent, self.server):
            if process:
                process.terminate()
                process.wait(60)


if __name__ == "__main__":
    sys.exit(main())
