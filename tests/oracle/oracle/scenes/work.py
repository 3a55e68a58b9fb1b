"""What runs and waits in a scene: jobs, their attempts, holds and steps."""

from dataclasses import dataclass, field

from .builder import MINUTE, Booking, NodePlan, Scene
from .site import TEAMS, USERS
from .traces import tell_holds, tell_steps

LIMITS = ["QOSMaxJobsPerUserLimit", "AssocGrpGRES", "QOSMaxGRESPerUser", "AssocMaxJobsLimit", "QOSGrpGRES"]
OPEN = ["Resources", "Priority", "Resources", "Licenses", "NodeDown", "NobodyKnowsThis", None]
OWN = ["Dependency", "JobHeldUser", "BeginTime", "Reservation", "InvalidAccount", "QOSMaxGRESPerJob"]


@dataclass
class JobPlan:
    job_id: str
    gpus_milli: int
    # Nodes asked for.
    count: int
    fields: dict
    # Nodes with the devices on each, while an attempt is placed.
    placed: dict[str, list[int]] = field(default_factory=dict)


def build_work(scene: Scene) -> None:
    for number in range(scene.rng.randint(1, 9)):
        if scene.chance(0.1):
            # An array: tasks of one shape; or components of a heterogeneous job.
            for part in range(scene.rng.randint(2, 3)):
                array = {"array_job_id": str(number), "array_task_id": part} if scene.chance(0.7) else {}
                add_job(scene, f"{number}{'_' if array else '+'}{part}", array)
        else:
            add_job(scene, str(number), {})


def add_job(scene: Scene, job_id: str, extra: dict) -> None:
    rng = scene.rng
    fields = {"team": rng.choice([*TEAMS, None]), "user_name": rng.choice(USERS),
              "pool": rng.choice(["p", "p", "p", "q", None]), **extra}
    count = rng.choice([1, 1, 1, 1, 2, 2, 3])
    milli = rng.choice([250, 500, 500]) if scene.chance(0.1) and count == 1 else 1000 * count * rng.choice(
        [1, 1, 2, 4, 8])
    if scene.chance(0.05):
        milli = 0
    job = JobPlan(job_id, milli, count, fields)
    submitted = scene.time()
    if scene.chance(0.95):
        # Sometimes the scheduler's own account of it comes minutes late.
        submitted = scene.job(submitted, "SUBMITTED", job_id, late=120_000 if scene.chance(0.1) else 0,
                              gpus_milli=str(milli), priority=priority(scene), **fields)
    if scene.chance(0.3):
        scene.job(scene.time(submitted, min(submitted + MINUTE, scene.end)), "ELIGIBLE", job_id)
    wait_and_run(scene, job, submitted, 0)


def priority(scene: Scene) -> int | None:
    return scene.rng.choice([None, None, 1, 10, 100])


def wait_and_run(scene: Scene, job: JobPlan, since: int, attempt: int) -> None:
    """Waits, with reasons that change; then runs, is cancelled, or waits to the end."""
    if scene.chance(0.35):
        start = since
    else:
        start = scene.time(since, scene.end)
        tell_reasons(scene, job, since, start)
    fate = scene.rng.random()
    if fate < 0.3:
        return
    if fate < 0.38:
        scene.job(start, "ENDED", job.job_id, final_state="CANCELLED", **job.fields)
        return
    end = scene.time(start + scene.quantum, scene.end + MINUTE)
    if place(scene, job, start, min(end, scene.end)):
        run(scene, job, start, end if end < scene.end else None, attempt)


def tell_reasons(scene: Scene, job: JobPlan, since: int, start: int) -> None:
    pool = scene.rng.choice([LIMITS, OPEN, OPEN, OPEN, OWN])
    for _ in range(scene.rng.choice([0, 1, 1, 2])):
        shape = {}
        if scene.chance(0.6) and job.gpus_milli:
            shape = {"asked_node_count": job.count, "asked_gpus_per_node_milli": str(job.gpus_milli // job.count)}
        scene.job(scene.time(since, start), "WAITING", job.job_id, reason=scene.rng.choice(pool),
                  priority=priority(scene), late=60_000 if scene.chance(0.1) else 0, **shape, **job.fields)


def place(scene: Scene, job: JobPlan, start: int, end: int) -> bool:
    """Finds nodes with free devices; rarely takes what is taken, as a late account would have it."""
    job.placed = {}
    each = devices_of_nodes(scene, job)
    part = job.gpus_milli if 0 < job.gpus_milli < 1000 else 1000
    careless = scene.chance(0.03)
    for node in scene.rng.sample(scene.nodes, len(scene.nodes)):
        serves = job.fields["pool"] is None or node.pools is None or job.fields["pool"] in node.pools.split(",")
        if len(job.placed) == job.count or not serves or not (node.begin <= start and end <= node.end):
            continue
        if part < 1000:
            free = [d for d in range(node.gpus) if node.room(d, start, end) >= part]
        else:
            free = list(range(node.gpus)) if careless else node.free(start, end)
        if len(free) >= each[len(job.placed)]:
            job.placed[node.name] = sorted(scene.rng.sample(free, each[len(job.placed)]))
    if len(job.placed) < job.count:
        return False
    for node in placed_nodes(scene, job):
        node.bookings += [Booking(start, end, device, part) for device in job.placed[node.name]]
    return True


def devices_of_nodes(scene: Scene, job: JobPlan) -> list[int]:
    """How many devices on each node: as many on all, or for some gangs as a scheduler found them."""
    each = [max(1, job.gpus_milli // job.count // 1000)] * job.count
    if job.count > 1 and scene.chance(0.3):
        moved = scene.rng.randrange(each[0])
        each[0], each[1] = each[0] - moved, each[1] + moved
    return each


def placed_nodes(scene: Scene, job: JobPlan) -> list[NodePlan]:
    return [node for node in scene.nodes if node.name in job.placed]


def run(scene: Scene, job: JobPlan, start: int, end: int | None, attempt: int) -> None:
    rng = scene.rng
    named = scene.chance(0.8)
    nodes = ",".join(sorted(job.placed)) if named else None
    counted = job.count if named or scene.chance(0.5) else None
    held = {"gpus_milli": str(job.gpus_milli), "nodes": nodes, "node_count": counted, **job.fields}
    start = scene.job(start, "STARTED", job.job_id, attempt_id=attempt, **held)
    if job.gpus_milli:
        tell_holds(scene, job, start, end, attempt, named)
        if named and scene.watched and scene.chance(0.3):
            tell_steps(scene, job, start, end or scene.end)
    if scene.chance(0.1):
        # Slurm runs the script of a job as a step of it.
        batch = {"attempt_id": attempt, "step_id": "batch"}
        begun = scene.job(start + scene.quantum, "STARTED", job.job_id, nodes=min(job.placed), **batch)
        if end is not None:
            scene.job(max(end, begun) + scene.quantum, "ENDED", job.job_id, final_state="COMPLETED", **batch)
    if scene.chance(0.1):
        paused = scene.job(scene.time(start, end or scene.end), "SUSPENDED", job.job_id, attempt_id=attempt)
        if scene.chance(0.7):
            scene.job(scene.time(paused, end or scene.end), "RESUMED", job.job_id, attempt_id=attempt)
    if end is None:
        return
    end = max(end, start + scene.quantum)
    fate = rng.random()
    if fate < 0.15 and attempt < 3:
        end = scene.job(end, "ENDED", job.job_id, attempt_id=attempt, final_state="REQUEUED", **job.fields)
        wait_and_run(scene, job, end, attempt + 1)
    elif fate < 0.25 and attempt < 3 and job.gpus_milli >= 2000 and job.count == 1:
        # A resize: it goes on with fewer GPUs as the next attempt.
        scene.job(end, "ENDED", job.job_id, attempt_id=attempt, final_state="RESIZED", **job.fields)
        job.gpus_milli //= 2
        later = scene.time(end + scene.quantum, scene.end + MINUTE)
        if place(scene, job, end, min(later, scene.end)):
            run(scene, job, end, later if later < scene.end else None, attempt + 1)
    else:
        state = rng.choice(["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"])
        scene.job(end, "ENDED", job.job_id, attempt_id=attempt, final_state=state, **job.fields)
