"""The truth: the oracle's cluster made of Slurm's own records, and of nothing that Tidegate recorded of them.

Attempts, submissions and what was asked for are those of sacct, reservations those of sacctmgr. Why jobs
waited, which GPUs they held and states of nodes are as `sampler.py` saw them; when an administrator changed a state
slurmctld wrote into its log, to the ms.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from oracle.model import Attempt, Cluster, Hold, Job, Node, Reservation, Span, Wait
from processes import CLUSTER, Slurm
from sampler import Sampler, Seen, hosts, numbers

COLUMNS = ("JobID", "Submit", "Eligible", "Start", "End", "State", "NodeList", "AllocTRES", "ReqTRES", "Partition",
           "Account", "User", "Priority")


@dataclass
class Record:
    """An attempt, or a job that never started; times in ms."""

    job_id: str
    submit: int
    eligible: int | None
    start: int | None
    end: int | None
    state: str
    nodes: tuple[str, ...]
    gpus: int
    asked: int
    pool: str
    team: str
    user: str
    priority: int | None


def read(slurm: Slurm, since_s: int) -> list[Record]:
    text = slurm.run("sacct", "--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2",
                     f"--starttime=uts{since_s}", "--endtime=now", f"--format={','.join(COLUMNS)}")
    return [record for line in text.splitlines() for record in records_of(dict(zip(COLUMNS, line.split("|"), strict=True)))]


def records_of(values: dict[str, str]) -> list[Record]:
    """A line; one of tasks that wait together is one for each."""
    def time(name: str) -> int | None:
        return int(values[name]) * 1000 if values[name].isdigit() else None

    def gpus(name: str) -> int:
        found = re.search(r"gres/gpu=(\d+)", values[name])
        return int(found[1]) if found else 0

    ran = values["AllocTRES"] != ""
    nodes = tuple(hosts(values["NodeList"])) if ran else ()
    array, _, tasks = values["JobID"].partition("_")
    ids = [f"{array}_{n}" for n in numbers(tasks[1:-1])] if tasks.startswith("[") else [values["JobID"]]
    return [Record(job_id, time("Submit"), time("Eligible"), time("Start") if ran else None, time("End"),
                   values["State"], nodes, gpus("AllocTRES"), gpus("ReqTRES"), values["Partition"], values["Account"],
                   values["User"], int(values["Priority"]) if values["Priority"].isdigit() else None)
            for job_id in ids]


def held(records: list[Record], until: int) -> dict[tuple[str, int], int]:
    """GPU-ms by job and minute, as accounting has them."""
    found: dict[tuple[str, int], int] = defaultdict(int)
    for record in records:
        if record.start is None:
            continue
        end = min(until, record.end if record.end is not None else until)
        minute = record.start // 60_000 * 60_000
        while minute < end:
            ms = min(end, minute + 60_000) - max(record.start, minute)
            found[record.job_id, minute] += record.gpus * ms
            minute += 60_000
    return {key: ms for key, ms in found.items() if ms}


def truth(slurm: Slurm, records: list[Record], sampler: Sampler, product: Cluster, since_s: int) -> Cluster:
    """What the oracle is to know. When the cluster was observed, when a node was first seen, what samples of
    devices show and which number a device has are facts of the collectors: these are taken from them, and
    checked against their lives."""
    cluster = Cluster(CLUSTER, product.observed_from, product.observed_to, product.watched_from)
    cluster.samples, cluster.numbers = product.samples, product.numbers
    by_job: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_job[record.job_id].append(record)
    for job_id, own in by_job.items():
        own.sort(key=lambda r: (r.submit, r.start is None, r.start or 0))
        seen = sampler.jobs[job_id]
        cluster.jobs[job_id] = job_of(job_id, own, seen)
        cluster.holds += [hold for record in own for hold in holds_of(record, seen)]
    add_nodes(cluster, slurm, sampler, product)
    cluster.reservations = reservations(slurm, sampler, since_s)
    return cluster


def job_of(job_id: str, own: list[Record], seen: Seen) -> Job:
    last = own[-1]
    job = Job(job_id, last.team, last.user, last.pool)
    eligible = [r.eligible for r in own if r.eligible is not None and r.eligible > r.submit]
    job.eligible = eligible[-1] if eligible else None
    job.priorities = priorities(own, seen)
    begin, wait_record, runs = None, own[0], 0
    for record in own:
        # After an attempt it waits from that one's end, else from its submission.
        if begin is None:
            begin = record.submit
        if record.start is None:
            add_wait(job, seen, begin, record.end, record, None)
            begin = None
            continue
        if begin < record.start:
            add_wait(job, seen, begin, record.start, wait_record, record)
        job.attempts.append(Attempt(record.start, record.end, [(record.start, record.gpus * 1000, record.nodes)],
                                    is_restart=runs > 0))
        resized = record.state == "RESIZING"
        runs += not resized
        begin = record.end
        wait_record = next((r for r in own if r.submit >= record.submit and r is not record), record)
    return job


def holds_of(record: Record, seen: Seen) -> list[Hold]:
    """The GPUs that scontrol showed for the attempt; none if it ended before it was seen."""
    if record.start is None:
        return []
    return [Hold(record.job_id, node, f"#{number}", None, record.start, record.end, 1000, number=number)
            for node, devices in seen.gpus.get(record.start // 1000, {}).items() for number in devices]


def priorities(own: list[Record], seen: Seen) -> list[tuple[int, int]]:
    """From each submission on as accounting has it, then as squeue showed it while it waited."""
    stated = [(r.submit, r.priority) for r in own if r.priority]
    return sorted([*stated, *((at, priority) for at, _, priority in seen.waits if priority)])


def add_wait(job: Job, seen: Seen, start: int, end: int | None, asked: Record, got: Record | None) -> None:
    """A wait with its reasons. Its shape is that of the request where it names one, else what it came to."""
    reasons = [(at, None if reason == "None" else reason) for at, reason, _ in seen.waits
               if start <= at and (end is None or at < end)]
    shape = seen.shape
    if shape is None and asked.asked <= 1:
        shape = (1, asked.asked * 1000)
    if shape is None and got is not None and got.gpus == asked.asked and got.gpus % len(got.nodes) == 0:
        shape = (len(got.nodes), got.gpus // len(got.nodes) * 1000)
    job.waits.append(Wait(start, end, asked.asked * 1000, reasons, shape))


def add_nodes(cluster: Cluster, slurm: Slurm, sampler: Sampler, product: Cluster) -> None:
    logged = states_set(slurm)
    text = slurm.run("scontrol", "--all", "--oneliner", "show", "node")
    for name, pools, tres in re.findall(r"^NodeName=(\S+) .* Partitions=(\S+) .*CfgTRES=(\S+)", text, re.MULTILINE):
        gpus = int(re.search(r"gres/gpu=(\d+)", tres)[1])
        first = product.nodes[name].spans[0].start if name in product.nodes else cluster.observed_from
        node = cluster.nodes[name] = Node(name, [Span(first, None, gpus * 1000, tuple(pools.split(",")))])
        for before, at, state in sampler.states[name]:
            within = [t for t in logged[name] if before - 1000 <= t <= at]
            node.states.append((within[-1] if len(within) == 1 else at, plain(state)))


def states_set(slurm: Slurm) -> dict[str, list[int]]:
    """When slurmctld says that it set the state of a node (ms)."""
    found: dict[str, list[int]] = defaultdict(list)
    log = (slurm.folder / "log/slurmctld.log").read_text(encoding="utf-8", errors="replace")
    for at, names in re.findall(r"^\[(\S+)\] update_node: node (\S+) state set to", log, re.MULTILINE):
        for name in hosts(names):
            found[name].append(round(datetime.fromisoformat(at).timestamp() * 1000))
    return found


def plain(state: str) -> str:
    """Without what a reservation adds: reservations count by themselves."""
    return "+".join(flag for flag in state.split("+") if flag not in ("RESERVED", "MAINTENANCE", "PLANNED"))


def reservations(slurm: Slurm, sampler: Sampler, since_s: int) -> list[Reservation]:
    text = slurm.run("sacctmgr", "--noheader", "--parsable2", "show", "reservation", f"start={stamp(since_s)}",
                     "format=Name,Start,End,NodeNames,Flags")
    found = []
    for line in text.splitlines():
        name, start, end, nodes, flags = line.split("|")
        accounts, users = sampler.admitted.get(name, (frozenset(), frozenset()))
        found.append(Reservation(int(start) * 1000, int(end) * 1000, frozenset(hosts(nodes)), accounts=accounts,
                                 users=users, maintenance="MAINT" in flags.split(",")))
    return found


def stamp(seconds: int) -> str:
    """As sacctmgr reads times."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%dT%H:%M:%S")
