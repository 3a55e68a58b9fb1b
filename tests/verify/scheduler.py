"""A seeded cluster with a queue, and what Slurm's accounting prints of it: for waits of every kind on known nodes.

A scheduler goes through the line by priority and starts what fits; now and then it does not look past the first that does
not, so that jobs wait behind others. Teams have limits, jobs depend on others, some are cancelled, some are requeued.
"""

import heapq
import random
from dataclasses import dataclass, field
from pathlib import Path

from sacct import COLUMNS, YEAR_START_S, sacct_time

# Pools of partitions that overlap, of one alone, and nodes in none, which serve all.
NODES = ["gpu[01-08]:8:a100:batch", "big[1-3]:16:h100:batch,large", "any[1-2]:4"]
LIMIT_OF_TEAM = 48
LIMIT = "AssocGrpGRES"


@dataclass(eq=False)
class Box:
    name: str
    gpus: int
    pools: tuple[str, ...]
    free: int = 0
    jobs: list["Job"] = field(default_factory=list)

    def __post_init__(self):
        self.free = self.gpus


def boxes() -> list[Box]:
    gpus = [Box(f"gpu{n:02}", 8, ("batch",)) for n in range(1, 9)]
    return gpus + [Box(f"big{n}", 16, ("batch", "large")) for n in range(1, 4)] + [Box(f"any{n}", 4, ()) for n in (1, 2)]


@dataclass(eq=False)
class Job:
    number: int
    submit_s: int
    eligible_s: int
    team: str
    pool: str
    nodes: int
    each: int
    run_s: int
    priority: int
    patience_s: int
    held: bool
    requeues: int
    reason: str = "None"
    waits_from_s: int = 0
    started_s: int = 0
    on: list[Box] = field(default_factory=list)

    @property
    def gpus(self) -> int:
        return self.nodes * self.each


def job(dice: random.Random, number: int, submit_s: int) -> Job:
    nodes, each = dice.choice([(1, 1), (1, 2), (1, 4), (1, 8), (1, 8), (2, 8), (2, 4), (3, 8), (1, 16), (2, 16), (40, 8)])
    pool = dice.choice(["batch", "batch", "large"])
    late_s = dice.randrange(60, 7200) if dice.random() < 0.15 else 0
    return Job(
        number, submit_s, submit_s + late_s, f"team{dice.randrange(4)}", pool, nodes, each,
        run_s=int(dice.lognormvariate(8.3, 1)), priority=dice.choice([100, 100, 100, 500]),
        patience_s=dice.randrange(600, 40_000) if nodes == 40 or dice.random() < 0.1 else 10**9,
        held=late_s > 0 and dice.random() < 0.5, requeues=1 if dice.random() < 0.08 else 0,
    )


class Cluster:
    """Runs jobs and writes a line of accounting of each attempt, and of each wait that led to none."""

    def __init__(self, seed: int, jobs: int):
        self.dice = random.Random(seed)
        self.boxes, self.line, self.lines = boxes(), [], []
        self.moments: list[tuple[int, int, str, Job | None]] = []
        at_s, self.order = YEAR_START_S, 0
        for number in range(1, jobs + 1):
            at_s += int(self.dice.expovariate(1 / 700))
            self.at(at_s, "submit", job(self.dice, number, at_s))
        self.until_s = at_s
        self.run()

    def at(self, time_s: int, what: str, about: Job | None = None) -> None:
        self.order += 1
        heapq.heappush(self.moments, (time_s, self.order, what, about))

    def run(self) -> None:
        while self.moments and self.moments[0][0] <= self.until_s:
            now_s, _, what, about = heapq.heappop(self.moments)
            if what == "submit":
                about.waits_from_s = now_s
                self.line.append(about)
                self.at(now_s + about.patience_s, "give up", about)
                self.at(about.eligible_s + 1, "schedule")
            elif what == "give up" and about in self.line:
                self.line.remove(about)
                self.write(about, None, now_s, "CANCELLED by 1007")
            elif what == "end":
                self.end(about, now_s)
            if what == "schedule":
                self.schedule(now_s)
            else:
                self.at(now_s + 2, "schedule")
        for waiting in self.line:
            self.write(waiting, None, None, "PENDING")
        for running in self.running():
            self.write(running, running.started_s, None, "RUNNING")

    def schedule(self, now_s: int) -> None:
        looks_past = self.dice.random() < 0.4
        for waiting in sorted(self.line, key=lambda job: (-job.priority, job.waits_from_s, job.number)):
            if waiting.eligible_s > now_s:
                continue
            running = sum(job.gpus for job in self.running() if job.team == waiting.team)
            if running + waiting.gpus > LIMIT_OF_TEAM and waiting.nodes < 40:
                waiting.reason = LIMIT
                continue
            serving = [box for box in self.boxes if not box.pools or waiting.pool in box.pools]
            fitting = [box for box in serving if box.free >= waiting.each]
            if len(fitting) >= waiting.nodes:
                self.start(waiting, self.dice.sample(fitting, waiting.nodes), now_s)
            elif not looks_past and waiting.nodes < 40:
                return

    def running(self) -> list[Job]:
        return list({job.number: job for box in self.boxes for job in box.jobs}.values())

    def start(self, starting: Job, on: list[Box], now_s: int) -> None:
        self.line.remove(starting)
        starting.on, starting.started_s = on, now_s
        for box in on:
            box.free -= starting.each
            box.jobs.append(starting)
        self.at(now_s + starting.run_s, "end", starting)

    def end(self, ending: Job, now_s: int) -> None:
        again = ending.requeues > 0
        self.write(ending, ending.started_s, now_s, "REQUEUED" if again else "COMPLETED")
        for box in ending.on:
            box.free += ending.each
            box.jobs.remove(ending)
        if again:
            ending.requeues, ending.reason, ending.held = 0, "BeginTime", True
            ending.submit_s, ending.eligible_s, ending.waits_from_s = now_s, now_s + 120, now_s
            self.line.append(ending)

    def write(self, job: Job, start_s: int | None, end_s: int | None, state: str) -> None:
        early = job.held and job.reason == "None"
        reason = "Dependency" if early else job.reason
        started = start_s is not None
        # A job that is cancelled while it waits shows its end as its start, and no devices.
        shown_start = start_s if started else end_s
        tres = f"billing=8,cpu=8,gres/gpu={job.gpus},mem=64G,node={job.nodes}"
        nodes = ",".join(box.name for box in job.on) if started else "None assigned"
        times = [job.submit_s, job.eligible_s, shown_start, end_s]
        eligible_known = job.eligible_s <= (end_s or self.until_s)
        shown = [sacct_time(time if n != 1 or eligible_known else None) for n, time in enumerate(times)]
        who = ["train", "ann", job.team, job.pool, "normal"]
        values = [str(job.number), *who, *shown, state, "0:0", tres, tres if started else "", nodes, "2-00:00:00", reason]
        self.lines.append("|".join([*values, str(job.priority)]))

    def save(self, file: Path) -> None:
        file.write_text("\n".join([COLUMNS, *self.lines]) + "\n")
