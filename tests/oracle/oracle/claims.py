"""How waiting jobs claim idle GPUs: docs/ledger.md, "Idle time: claims"."""

import csv
from collections import defaultdict
from pathlib import Path

from .instants import Now, latest

LIMITS = {"quota", "qos_budget", "qos_limit", "team_budget", "team_limit", "user_limit"}
ORDER = ("quota_stranded", "fragmented", "gang_wait", "unknown")


def load_reasons(path: Path) -> dict[str, tuple[int, str]]:
    """Layer and constraint of each reason of a scheduler: schemas/pending_reasons.csv."""
    with path.open(newline="", encoding="utf-8") as file:
        return {row["reason"]: (int(row["layer"]), row["constraint"]) for row in csv.DictReader(file)
                if row["scheduler"] != "tidegate"}


REASONS = load_reasons(Path(__file__).resolve().parents[3] / "schemas" / "pending_reasons.csv")


def nature(reason: str | None) -> str:
    """limited, open or own: what keeps a job waiting."""
    layer, constraint = REASONS.get(reason or "", (3, ""))
    if constraint in LIMITS:
        return "limited"
    return "open" if layer in (2, 3) else "own"


def rank(job, wait, t: int):
    """By priority, the highest first, then unknown priority; then by when the wait began; then by job id."""
    priority = latest(job.priorities, t)
    return (priority is None, -(priority or 0), wait.start, job.job_id.encode())


def idle_nodes(now: Now, jobs) -> tuple[dict[str, int], dict[str, int], int]:
    """Idle GPUs of each node, what jobs held by number take of each, and what they hold beyond that."""
    left = {name: node.idle for name, node in now.nodes.items()}
    taken: dict[str, int] = defaultdict(int)
    beyond = 0
    def turn(job_id: str):
        return (jobs[job_id].pool is None, (jobs[job_id].pool or "").encode(), job_id.encode())

    for job_id in sorted(now.by_number, key=turn):
        wanted, pool = now.by_number[job_id], jobs[job_id].pool
        for name in sorted(left, key=str.encode):
            if now.nodes[name].serves(pool):
                part = min(wanted, left[name])
                left[name] -= part
                taken[name] += part
                wanted -= part
        beyond += wanted
    return left, dict(taken), beyond


def claims(now: Now, left: dict[str, int]) -> dict[tuple[str, str], int]:
    """What the waiting jobs claim of the idle GPUs: by node and class, sevenths of thousandths."""
    left = dict(left)
    made: dict[tuple[str, str], int] = defaultdict(int)

    def take(name: str, milli: int, kind: str) -> None:
        left[name] -= milli
        made[name, kind] += milli

    def take_all(names: list[str], asked: int, kind: str) -> None:
        for name in names:
            part = min(asked, left[name])
            take(name, part, kind)
            asked -= part

    for job, wait in sorted(now.waiting, key=lambda jw: rank(*jw, now.t)):
        kind = nature(latest(wait.reasons, now.t))
        if kind == "own":
            continue
        usable = [n.name for n in now.nodes.values() if n.serves(job.pool) and n.admits(job)]
        usable.sort(key=str.encode)
        total = sum(left[name] for name in usable)
        asked = wait.asked_milli * 7
        if kind == "limited":
            take_all(usable, min(asked, total), "quota_stranded")
            continue
        if wait.shape is None:
            if total >= asked:
                take_all(usable, asked, "unknown")
            continue
        count, each = wait.shape[0], wait.shape[1] * 7
        fitting = sorted((n for n in usable if left[n] >= each), key=lambda n: (left[n], n.encode()))
        if len(fitting) >= count:
            for name in fitting[:count]:
                take(name, each, "unknown")
        elif total >= asked:
            take_all(sorted(usable, key=lambda n: (-left[n], n.encode())), asked, "fragmented")
        elif count > 1 and fitting:
            for name in fitting:
                take(name, each, "gang_wait")
    return {key: milli for key, milli in made.items() if milli}


def not_provisioned(now: Now, reservations) -> dict[str | None, int]:
    """Commitments less what is there, by pool: GPUs that are paid for and not there."""
    committed: dict[str | None, int] = defaultdict(int)
    for reservation in reservations:
        if not reservation.nodes:
            committed[reservation.pool] += reservation.gpus_milli
    missing, backing = {}, 0
    for pool, milli in committed.items():
        if pool is not None:
            there = sum(n.has // 7 for n in now.nodes.values() if pool in n.pools)
            missing[pool] = max(0, milli - there)
            backing += min(milli, there)
    if None in committed:
        there = max(0, sum(n.has // 7 for n in now.nodes.values()) - backing)
        missing[None] = max(0, committed[None] - there)
    return {pool: milli for pool, milli in missing.items() if milli}
