"""Whether `pending` says of waits what a replay of the same history finds: which of them, and what was free."""

import csv
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as parquet

from compare import Answer
from program import Data
from replay import History, Hold, Node, Wait
from sacct import COLUMNS
from scheduler import NODES, Cluster, boxes

SEED = 20_171_003
# What looks as if nothing were known of it would be equal and prove nothing.
CLASSES_OF_SCHEDULER = {
    "behind_others", "capacity_taken", "dependency", "fragmented", "gang", "not_eligible", "not_provisioned", "team_limit",
}


@dataclass
class Scene:
    """A history as a file, the nodes that are declared for it, and the same again for the replay."""

    file: Path
    import_arguments: list[str]
    nodes: list[str]
    history: History


def replayed(label: str, scene: Scene, fresh: Data, samples: int) -> list[Answer]:
    """Compares at the ends of sampled stretches, and at random instants of them."""
    nodes = [argument for spec in scene.nodes for argument in ("--nodes", spec)]
    fresh.bring_in([*scene.import_arguments, *nodes], scene.file)
    rows = fresh.ask(
        "SELECT job_id, waited_from, since, coalesce(until, as_of) AS until, constraint, free_gpus_milli, largest_free_gpus, "
        "fitting_nodes FROM pending ORDER BY job_id, waited_from, since"
    ).to_pylist()
    waits = {(wait.job_id, wait.begin): wait for wait in scene.history.waits}
    whole = Answer(label, "pending has every wait, from begin to end", len(waits), *_covers(rows, waits))
    dice = random.Random(SEED)
    chosen = dice.sample(rows, min(samples, len(rows)))
    wrong, compared, classes = "", 0, set()
    for row in chosen:
        wait = waits.get((row["job_id"], row["waited_from"]))
        if wait is None:
            continue
        last = row["until"] - 1
        for t in {row["since"], dice.randint(row["since"], last), last}:
            found = scene.history.verdict(wait, t)
            classes.add(found.constraint)
            compared += 1
            said, expected = [row["constraint"]], [found.constraint]
            if t == last and found.free is not None:
                said += [row["free_gpus_milli"], row["largest_free_gpus"], row["fitting_nodes"]]
                expected += [found.free, found.largest, found.fitting]
            if said != expected and not wrong:
                wrong = f"job {wait.job_id} at {datetime.fromtimestamp(t / 1000, UTC)}: tidegate {said}, replay {expected}"
    told = ", ".join(sorted(name or "not known" for name in classes))
    same = Answer(label, f"sampled waits as replayed: {told}", compared, not wrong, "class or numbers" if wrong else "0", wrong)
    if scene.import_arguments[0] == "sacct" and not classes >= CLASSES_OF_SCHEDULER:
        same.equal, same.note = False, f"the scene lacks {CLASSES_OF_SCHEDULER - classes}"
    return [whole, same]


def _covers(rows: list[dict], waits: dict) -> tuple[bool, str, str]:
    ends: dict[tuple, int] = {}
    for row in rows:
        key = (row["job_id"], row["waited_from"])
        if ends.setdefault(key, row["waited_from"]) != row["since"]:
            return False, "a gap", f"{key} before {row['since']}"
        ends[key] = row["until"]
    for key, wait in waits.items():
        if ends.pop(key, None) != wait.end:
            return False, "an end", f"{key}: should end at {wait.end}"
    return not ends, "0" if not ends else "waits", "" if not ends else f"{len(ends)} more, first {min(ends)}"


def scheduler(folder: Path, jobs: int) -> Scene:
    """A cluster of known nodes with every kind of wait."""
    cluster = Cluster(SEED, jobs)
    file = folder / "line.txt"
    cluster.save(file)
    records = sorted((Record(line) for line in cluster.lines), key=lambda record: record.submit)
    until = max(time for record in records for time in (record.submit, record.start, record.end) if time)
    nodes = [Node(box.name, box.gpus * 1000, frozenset(box.pools)) for box in boxes()]
    holds = [record.hold() for record in records if record.nodes]
    # What a job was given in its last attempt is nothing that an earlier one tells: each wait has its own shape.
    waits = [wait for record in records if (wait := record.wait(until))]
    return Scene(file, ["sacct", "--cluster", "line"], NODES, History(nodes, holds, waits))


class Record:
    """A line of accounting."""

    def __init__(self, line: str):
        cells = dict(zip(COLUMNS.split("|"), line.split("|"), strict=True))
        self.cells, self.job_id, self.pool = cells, cells["JobID"], cells["Partition"]
        self.submit, self.eligible, self.start, self.end = (
            None if cells[name] == "Unknown" else _ms(datetime.fromisoformat(cells[name]))
            for name in ("Submit", "Eligible", "Start", "End")
        )
        self.milli = int(cells["ReqTRES"].split("gres/gpu=")[1].split(",")[0]) * 1000
        self.nodes = tuple(cells["NodeList"].split(",")) if cells["AllocTRES"] else ()

    def hold(self) -> Hold:
        return Hold(self.pool, self.start, self.end, self.milli, self.nodes)

    def wait(self, until: int) -> Wait | None:
        end = (self.start if self.nodes else self.end) or until
        reason = None if self.cells["Reason"] == "None" else self.cells["Reason"]
        wait = Wait(
            self.job_id, self.pool, self.submit, end, self.milli, _shape(self.milli, len(self.nodes)),
            eligible=self.eligible, priority=int(self.cells["Priority"]), reason=reason,
            before_eligible=reason in ("Dependency", "BeginTime"),
        )
        return wait if wait.begin < end else None


def philly(file: Path, folder: Path) -> Scene:
    """Each virtual cluster on nodes of its own, three quarters of what it held at most, and four nodes that serve all."""
    rows = parquet.read_table(file).to_pylist()
    holds = [Hold(r["cluster"], _ms(r["start_time"]), _ms(r["end_time"]), r["num_gpus"] * 1000) for r in rows]
    waits, ended = [], {}
    for r in sorted(rows, key=lambda r: (r["id"], r["attempt"])):
        begin, start = ended.get(r["id"], _ms(r["submitted_time"])), _ms(r["start_time"])
        ended[r["id"]] = _ms(r["end_time"])
        if begin < start:
            milli = r["num_gpus"] * 1000
            waits.append(Wait(r["id"], r["cluster"], begin, start, milli, _shape(milli, 0)))
    nodes = [Node(f"any{n:02}", 8000) for n in range(1, 5)]
    for pool in sorted({hold.pool for hold in holds}):
        count = -(-_most([hold for hold in holds if hold.pool == pool]) * 3 // 32_000)
        nodes += [Node(f"{pool}-{n:02}", 8000, frozenset([pool])) for n in range(1, count + 1)]
    return _declared(file, folder, History(nodes, holds, waits))


def openb(file: Path, folder: Path) -> Scene:
    """All nodes of the trace; of its pods nobody says on which they ran."""
    start_ms = 1_672_531_200_000
    time = lambda seconds: None if seconds is None else start_ms + round(seconds * 1000)  # noqa: E731
    holds, waits = [], []
    for pod in parquet.read_table(file).to_pylist():
        milli = pod["num_gpu"] * pod["gpu_milli"]
        begin, start, end = time(pod["creation_time"]), time(pod["scheduled_time"]), time(pod["deletion_time"])
        if start is not None and milli:
            holds.append(Hold(None, start, end, milli))
        if begin < (start or end):
            waits.append(Wait(pod["name"], None, begin, start or end, milli, _shape(milli, 0)))
    listed = parquet.read_table(file.with_name("alibaba_openb_nodes.parquet")).to_pylist()
    return _declared(file, folder, History([Node(node["sn"], node["gpu"] * 1000) for node in listed], holds, waits))


def supercloud(file: Path, folder: Path) -> Scene:
    """Every node that a job with GPUs ran on, two GPUs each, as the paper says."""
    holds, waits = [], []
    for r in parquet.read_table(file).to_pylist():
        nodes = tuple(r["nodelist"].strip("[]").replace("'", "").replace(" ", "").split(",")) if r["nodelist"] else ()
        asked, held, count = r["gpus_req"] * 1000, r["gpus_alloc"] * 1000, r["nodes_alloc"]
        submit, eligible, start, end = (r[f"time_{name}"] * 1000 for name in ("submit", "eligible", "start", "end"))
        job_id = f"{r['id_job']}@{r['time_submit']}"
        if held:
            holds.append(Hold(r["partition"], start, end, held, nodes))
        if submit < start:
            shape = _shape(asked, count if asked == held or asked <= 1000 else 0)
            late = eligible if submit < eligible < start else None
            waits.append(Wait(job_id, r["partition"], submit, start, asked, shape, late, r["priority"]))
    names = sorted({name for hold in holds for name in hold.nodes})
    return _declared(file, folder, History([Node(name, 2000) for name in names], holds, waits))


# Traces whose jobs waited, by the mapping that they are imported with.
TRACES = {
    "philly_multigpu_attempts": philly,
    "alibaba_openb_pods": openb,
    "mit_supercloud_slurm_sample": supercloud,
}


def _declared(file: Path, folder: Path, history: History) -> Scene:
    """The nodes as a table that a user would write."""
    table = folder / f"{file.stem}-nodes.csv"
    with table.open("w", newline="", encoding="utf-8") as target:
        rows = csv.writer(target)
        rows.writerow(["node", "gpus", "pool"])
        rows.writerows([node.name, node.milli // 1000, ",".join(sorted(node.pools))] for node in history.nodes)
    return Scene(file, ["jobs", "--map", file.stem], [str(table)], history)


def _shape(milli: int, nodes: int) -> tuple[int, int] | None:
    """Up to one GPU is asked of one node; else what the attempt was given, if it is as much on each node."""
    if 0 < milli <= 1000:
        return (1, milli)
    return (nodes, milli // nodes) if nodes and milli and milli % nodes == 0 else None


def _most(holds: list[Hold]) -> int:
    held = most = 0
    for _, milli in sorted([(hold.start, hold.milli) for hold in holds] + [(hold.end, -hold.milli) for hold in holds]):
        held += milli
        most = max(most, held)
    return most


def _ms(wall: datetime) -> int:
    return round(wall.replace(tzinfo=UTC).timestamp() * 1000)
