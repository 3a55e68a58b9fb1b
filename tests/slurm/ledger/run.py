#!/usr/bin/env python3
"""Runs a site on a real Slurm for a while, and compares its ledger with Slurm's own records.

    tests/slurm/ledger/run.py --tidegate target/debug/tidegate [--minutes 15] [--seed 1] [--keep DIR]

README.md beside this file says what happens at the site and what is compared.
"""

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "oracle")]

import records  # noqa: E402
from checks import Checks  # noqa: E402
from oracle.events import clusters  # noqa: E402
from oracle.recorded import Folder  # noqa: E402
from processes import CLUSTER, Site, now_ms  # noqa: E402
from sampler import Sampler  # noqa: E402
from workload import Step, Workload  # noqa: E402

NODES = "4+1"
# Of eight GPUs four compute all the time, whoever holds them; of four one.
COMPUTES = {"n1": (8, 4), "n2": (8, 4), "n5": (4, 1)}
# How long nothing happens at the end: a whole UTC minute, and what the watcher may be late before it.
QUIET_S = 135
# Starts when part of the run is over: before, samples of its node are missing.
LATE = "n2"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True, help="the program to test")
    parser.add_argument("--minutes", type=float, default=15, help="how long the site runs")
    parser.add_argument("--seed", type=int, default=1, help="of what happens at the site")
    parser.add_argument("--keep", type=Path, help="folder for the site; by default one that is removed")
    options = parser.parse_args()
    # So that `finally` ends the site.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
    with tempfile.TemporaryDirectory(prefix="tidegate-site-") as scratch:
        return test(options, (options.keep or Path(scratch)).resolve())


def test(options: argparse.Namespace, folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    begun = now_ms()
    site = Site(folder, options.tidegate.resolve(), NODES, {node: scenario(*gpus) for node, gpus in COMPUTES.items()})
    try:
        sampler = Sampler(site.slurm)
        run(site, sampler, options.minutes * 60, options.seed)
        found = records.read(site.slurm, begun // 1000 - 1)
        tables = Folder(site.tidegate, site.folder / "data")
        recorded = clusters(tables.events())[CLUSTER]
        truth = records.truth(site.slurm, found, sampler, recorded, begun // 1000 - 1)
        checks = Checks(list(tables.ledger()), recorded, truth, found, sampler, site)
        print(f"{options.minutes:g} minutes, seed {options.seed}: {len(truth.jobs)} jobs, {len(found)} records of "
              f"accounting, {sampler.samples} samples of Slurm, at most {sampler.longest_ms} ms apart")
        return 0 if checks.run() else 1
    finally:
        site.end()


def scenario(devices: int, busy: int) -> str:
    """The first GPUs compute, the others do nothing."""
    idle = [f"set {device} {value} 0" for device in range(busy, devices)
            for value in ("gpu_util", "gpm_graphics", "gpm_sm", "gpm_occupancy")]
    return "\n".join([f"devices {devices}", *idle, ""])


def run(site: Site, sampler: Sampler, seconds: float, seed: int) -> None:
    """Starts Tidegate, lets things happen, and ends all collectors when nothing changes any more."""
    site.up.start()
    site.wait_for_door()
    sampler.start()
    site.watcher.start()
    for node, agent in site.agents.items():
        if node != LATE:
            agent.start()
    workload = Workload(site, seconds, seed)
    workload.run(collectors(site, seconds))
    workload.conclude()
    # Whatever happened is seen soon; then a whole minute goes by in which nothing does.
    time.sleep(QUIET_S)
    for agent in site.agents.values():
        agent.end()
    site.watcher.end()
    sampler.stop()
    site.catch_up()


def collectors(site: Site, seconds: float) -> list[Step]:
    """Who is killed, or late."""
    def at(part: float, what: str, step: Callable[[], None]) -> Step:
        return part * seconds, what, step

    agent = site.agents["n1"]
    return [
        at(0.30, f"the agent of {LATE} starts late", site.agents[LATE].start),
        at(0.35, "kill -9 of up", site.up.kill), at(0.36, "up again", site.up.start),
        at(0.40, "kill -9 of an agent", agent.kill), at(0.47, "the agent again", agent.start),
        at(0.55, "kill -9 of the watcher", site.watcher.kill), at(0.57, "the watcher again", site.watcher.start),
        at(0.75, "kill -9 of up", site.up.kill), at(0.77, "up again", site.up.start),
        at(0.83, "the agent of n5 ends", site.agents["n5"].end), at(0.90, "and again", site.agents["n5"].start),
        at(0.92, "kill -9 of the watcher", site.watcher.kill), at(0.925, "the watcher again", site.watcher.start),
    ]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, TimeoutError):
        traceback.print_exc()
        sys.exit(2)
