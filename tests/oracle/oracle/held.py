"""What held GPUs did in a minute: docs/ledger.md, "Held time"."""

from collections import defaultdict
from dataclasses import dataclass

from .minute import DeviceMinute, divide
from .model import MINUTE, Attempt, Cluster, Job, Step

HOUR = 3_600_000
STEP_CLASSES = ("restore", "redone", "checkpoint", "data_stall", "communication_stall", "productive")


@dataclass
class Did:
    """Held time of one job on one node in one minute by what samples say, ms."""

    active: int = 0
    idle_held: int = 0
    empty_held: int = 0
    unknown: int = 0

    def add(self, other: "Did") -> None:
        self.active += other.active
        self.idle_held += other.idle_held
        self.empty_held += other.empty_held
        self.unknown += other.unknown

    @property
    def held(self) -> int:
        return self.active + self.idle_held + self.empty_held + self.unknown


def by_samples(device: DeviceMinute) -> dict[str, Did]:
    """Active, then idle, then empty are taken from the samples as far as they reach; the rest is unseen."""
    rest, parts = device.held_ms, {}
    for name, known in (("active", device.active), ("idle_held", device.idle), ("empty_held", device.empty)):
        parts[name] = min(rest, known)
        rest -= parts[name]
    parts["unknown"] = rest
    did: dict[str, Did] = defaultdict(Did)
    # By what is left of each job's time, so that in the end each gets exactly what it held.
    left = {job_id: ms for job_id, ms in device.held.items() if ms > 0}
    for name, amount in parts.items():
        for job_id, ms in divide(amount, left).items():
            setattr(did[job_id], name, ms)
            left[job_id] -= ms
    return did


def parts_of(step: Step, is_redone: bool) -> dict[str, int]:
    """The time of a step, divided: restore, redone or checkpoint, data stall, communication that computing
    does not hide, and productive, each at most what the ones before left, µs."""
    left, parts = step.duration_us, {}

    def take(name: str, us: int) -> None:
        nonlocal left
        parts[name] = min(left, us)
        left -= parts[name]

    take("restore", step.restore_us)
    if is_redone:
        take("redone", left)
        return parts
    take("checkpoint", step.checkpoint_us)
    take("data_stall", step.data_us)
    take("communication_stall", min(step.communication_us, max(0, left - step.compute_us)))
    take("productive", left)
    return parts


def attempt_of(job: Job, t: int) -> Attempt | None:
    return next((a for a in job.attempts if a.start <= t and (a.end is None or t < a.end)), None)


class Training:
    """Steps of all jobs, by job, node and minute, ms."""

    def __init__(self, cluster: Cluster):
        self.parts: dict[tuple[str, str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        # (job, start of the attempt) -> when its first step began.
        self.first: dict[tuple[str, int], int] = {}
        # Steps are kept by the minute: (job, minute) -> when its first and last step began, highest number.
        minutes: dict[tuple[str, int], tuple[int, int, int]] = {}
        for step in sorted(cluster.steps, key=lambda s: s.start):
            key = (step.job_id, step.start // MINUTE * MINUTE)
            first, _, highest = minutes.get(key, (step.start, step.start, step.number))
            minutes[key] = (first, step.start, max(highest, step.number))
        for step in cluster.steps:
            job = cluster.jobs.get(step.job_id)
            attempt = attempt_of(job, step.start) if job else None
            if attempt is None or step.node is None:
                continue
            # The first one of a minute tells of the attempt that it is in.
            if minutes[step.job_id, step.start // MINUTE * MINUTE][0] >= attempt.start:
                key = (step.job_id, attempt.start)
                self.first[key] = min(self.first.get(key, step.start), step.start)
            is_first = attempt is job.attempts[0]
            before = [highest for (job_id, _), (_, last, highest) in minutes.items()
                      if job_id == step.job_id and last < attempt.start]
            self.add(step, parts_of(step, not is_first and step.number <= max(before, default=-1)))

    def add(self, step: Step, parts_us: dict[str, int]) -> None:
        """In each minute that the step reaches into, its parts as if spread evenly over it, rounded down to ms;
        of the ms that lie there the others are productive."""
        end = step.start + step.duration_us // 1000
        for minute in range(step.start // MINUTE * MINUTE, end, MINUTE):
            left = min(end, minute + MINUTE) - max(step.start, minute)
            parts = {name: us * left // step.duration_us for name, us in parts_us.items() if name != "productive"}
            parts["productive"] = left - sum(parts.values())
            for name, ms in parts.items():
                self.parts[step.job_id, step.node, minute][name] += ms

    def before_first(self, job: Job, start: int, stop: int) -> tuple[str, int, int] | None:
        """startup or recovery, and from when to when inside start..stop: up to six hours before the first
        step of the attempt."""
        for attempt in job.attempts:
            first = self.first.get((job.job_id, attempt.start))
            if first is None:
                continue
            begin, end = max(start, attempt.start, first - 6 * HOUR), min(stop, first)
            if begin < end:
                return ("recovery" if attempt.is_restart else "startup"), begin, end
        return None


def classes(did: Did, steps: dict[str, int], before: tuple[str, int] | None) -> list[tuple[str, str, int]]:
    """(class, formula, ms) of what one job held on one node in one minute."""
    rest, found = did.held, []
    for name in STEP_CLASSES:
        ms = min(rest, steps.get(name, 0))
        found.append((name, "steps", ms))
        rest -= ms
    if before is not None:
        ms = min(rest, before[1])
        found.append((before[0], "steps", ms))
        rest -= ms
    # Outside of these: rather empty than idle, rather idle than unknown, rather unknown than active.
    for name, formula in (("empty_held", "samples"), ("idle_held", "samples"), ("unknown", "hold"),
                          ("active", "samples")):
        ms = min(rest, getattr(did, name))
        found.append((name, formula, ms))
        rest -= ms
    return [(name, formula, ms) for name, formula, ms in found if ms]
