"""One job: its attempts and its waits, from its events."""

from collections.abc import Callable
from dataclasses import dataclass

from .model import Attempt, Job, Wait


@dataclass
class Run:
    """Attempts that a resize divides are one run."""

    start: int
    end: int | None
    attempt_ids: set[str]


def time(event: dict) -> int:
    return int(event["envelope"]["event_time_ms"])


def job_of(job_id: str, events: list[dict]) -> tuple[Job, list[Run]]:
    # A step starts and ends too; it runs on its job's devices.
    events = sorted((e for e in events if e["kind"] not in ("STARTED", "ENDED") or not e.get("step_id")), key=time)
    job = Job(job_id)
    # What a job is, as last stated.
    for event in events:
        job.team = event.get("team") or job.team
        job.user = event.get("user_name") or job.user
        job.pool = event.get("pool") or job.pool
        if event["kind"] == "ELIGIBLE":
            job.eligible = time(event)
        if event.get("priority") is not None:
            job.priorities.append((time(event), int(event["priority"])))
    asked = last_number(events, lambda kind: kind == "SUBMITTED")
    ends, runs = add_attempts(job, events, asked)
    add_waits(job, events, asked, ends)
    return job, runs


def last_number(events: list[dict], counts: Callable[[str], bool]) -> int | None:
    """The GPUs that the latest of these events states, in thousandths."""
    stated = [e["gpus_milli"] for e in events if counts(e["kind"]) and e.get("gpus_milli") is not None]
    return int(stated[-1]) if stated else None


def node_names(event: dict) -> tuple[str, ...]:
    return tuple(name for name in (event.get("nodes") or "").split(",") if name)


def add_attempts(job: Job, events: list[dict], asked: int | None) -> tuple[list[dict], list[Run]]:
    """Attempts in order of start: STARTED to ENDED of one attempt_id. A suspended job keeps its GPUs."""
    started = sorted((e for e in events if e["kind"] == "STARTED"), key=time)
    ended = {str(e["attempt_id"]): e for e in events if e["kind"] == "ENDED" and e.get("attempt_id") is not None}
    ends, runs = [], []
    for event in started:
        attempt_id = str(event["attempt_id"])
        end = ended.get(attempt_id)
        stop = time(end) if end else None
        pieces = [(time(event), int(event.get("gpus_milli", asked or 0)), node_names(event))]
        for other in events:
            if other["kind"] == "RESIZED" and str(other.get("attempt_id")) == attempt_id:
                before = pieces[-1]
                pieces.append((time(other), int(other.get("gpus_milli", before[1])), node_names(other) or before[2]))
        goes_on = bool(ends) and ends[-1] is not None and ends[-1].get("final_state") == "RESIZED"
        if goes_on:
            runs[-1].end = stop
            runs[-1].attempt_ids.add(attempt_id)
        else:
            runs.append(Run(time(event), stop, {attempt_id}))
        job.attempts.append(Attempt(time(event), stop, pieces, event.get("node_count"), len(runs) > 1))
        ends.append(end)
    return ends, runs


def add_waits(job: Job, events: list[dict], asked: int | None, ends: list[dict | None]) -> None:
    submitted = next((time(e) for e in events if e["kind"] == "SUBMITTED"), None)
    gone = next((time(e) for e in events if e["kind"] == "ENDED" and e.get("attempt_id") is None), None)
    begins, begin = [], submitted
    for attempt, end in zip(job.attempts, ends, strict=True):
        if begin is not None and begin < attempt.start:
            begins.append((begin, attempt.start, attempt))
        resized = end is not None and end.get("final_state") == "RESIZED"
        begin = attempt.end if end is not None and not resized else None
    if begin is not None and (not job.attempts or queued_again(events, ends[-1], begin)):
        begins.append((begin, gone, None))
    for start, end, attempt in begins:
        wanted = asked
        if wanted is None and attempt is not None:
            wanted = attempt.pieces[-1][1]
        if wanted is None:
            wanted = last_number(events, lambda kind: kind != "WAITING") or 0
        reasons = [(time(e), e.get("reason")) for e in events
                   if e["kind"] == "WAITING" and start <= time(e) and (end is None or time(e) < end)]
        job.waits.append(Wait(start, end, wanted, reasons, shape_of(events, wanted, attempt)))


def queued_again(events: list[dict], end: dict, at: int) -> bool:
    """Whether the job went back to the queue when its last attempt ended."""
    return end.get("final_state") == "REQUEUED" or any(e["kind"] in ("SUBMITTED", "WAITING") and time(e) >= at for e in events)


def shape_of(events: list[dict], asked: int, attempt: Attempt | None) -> tuple[int, int] | None:
    """The latest shape that any WAITING event of the job states, at whatever time; else, for jobs of at most
    one GPU, one node; else, where it was later given as many GPUs as it asked for on n nodes and they divide
    evenly, that shape."""
    stated = [(int(e["asked_node_count"]), int(e["asked_gpus_per_node_milli"])) for e in events
              if e["kind"] == "WAITING" and e.get("asked_node_count") and e.get("asked_gpus_per_node_milli")]
    if stated:
        return stated[-1]
    if asked <= 1000:
        return 1, asked
    if attempt is not None:
        _, gpus, nodes = attempt.pieces[0]
        count = len(nodes) or attempt.node_count
        if gpus == asked and count and gpus % count == 0:
            return count, gpus // count
    return None
