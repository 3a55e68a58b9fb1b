"""A scene while it is being made: its clock, its chances, and the events told so far."""

import random
from dataclasses import dataclass, field

# Friday, 2024-03-01 00:00 UTC.
BASE = 1_709_251_200_000
MINUTE = 60_000


@dataclass
class Booking:
    """GPUs of a node that a job has, so that scenes rarely give one GPU to two."""

    start: int
    end: int
    device: int
    milli: int


@dataclass
class NodePlan:
    name: str
    gpus: int
    pools: str | None
    begin: int
    end: int
    bookings: list[Booking] = field(default_factory=list)
    # Devices that are cut into MIG slices, with the sevenths of each slice.
    cut: dict[int, list[int]] = field(default_factory=dict)
    # Its agent: None, or from when on it tells, how wrong its clock is, and when it is silent.
    agent_from: int | None = None
    skew: int = 0
    silent: tuple[int, int] = (0, 0)

    def uuid(self, device: int) -> str:
        return f"GPU-{self.name}-{device}"

    def room(self, device: int, start: int, end: int) -> int:
        """Thousandths of the device that nobody has from start to end; of a cut one, of its freest slice."""
        booked = self.booked(device, start, end)
        if device in self.cut:
            return 1000 if len(booked) < len(self.cut[device]) else 0
        return 1000 - sum(booking.milli for booking in booked)

    def booked(self, device: int, start: int, end: int) -> list[Booking]:
        return [b for b in self.bookings if b.device == device and b.start < end and start < b.end]

    def slice_uuid(self, device: int, place: int) -> str | None:
        """The slice that the booking at `place` of a device got; None of a device that is not cut."""
        slices = self.cut.get(device)
        return f"MIG-{self.name}-{device}-{place % len(slices)}" if slices else None

    def free(self, start: int, end: int) -> list[int]:
        return [d for d in range(self.gpus) if self.room(d, start, end) == 1000]


class Scene:
    def __init__(self, cluster: str, rng: random.Random):
        self.cluster = cluster
        self.rng = rng
        # Times are multiples of it, so that parts of a GPU add up to whole GPU-ms.
        self.quantum = rng.choice([1000, 1000, 8])
        # Some clusters are observed hours after the others.
        hours = rng.choice([0, 0, 0, 0, 0, 0, 0, 5])
        self.start = BASE + hours * 3_600_000 + rng.randrange(3) * 20_000
        self.end = self.start + rng.randint(2, 9) * MINUTE + rng.randrange(0, MINUTE, self.quantum)
        self.nodes: list[NodePlan] = []
        self.watched = False
        self._events: list[tuple[int, int, dict]] = []
        self._said: set[tuple] = set()

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def time(self, start: int | None = None, end: int | None = None) -> int:
        """A time from start to before end, on the scene's grid."""
        start, end = start if start is not None else self.start, end if end is not None else self.end
        if end - start <= self.quantum:
            return start
        return start + self.rng.randrange(0, end - start, self.quantum)

    def tell(self, schema: str, at: int, source: str, key: tuple, late: int = 0, **fields) -> int:
        """Tells an event of `key` (who it is about). Two of one key never share a ms; returns its time."""
        while (key, at) in self._said:
            at += self.quantum
        self._said.add((key, at))
        # Most records come at once, some minutes late.
        seen = at + late + (self.rng.randrange(1, 300_000) if self.chance(0.05) else 0)
        envelope = {"cluster": self.cluster, "event_time_ms": at, "observed_time_ms": seen, "source": source,
                    "epoch": 1, "seq": len(self._events)}
        body = {name: value for name, value in fields.items() if value is not None}
        self._events.append((seen, len(self._events), {schema: {"envelope": envelope, **body}}))
        return at

    def job(self, at: int, kind: str, job_id: str, source: str = "watch/slurm", late: int = 0, **fields) -> int:
        # Holds have names of their own and may begin together.
        key = ("job", job_id, fields.get("hold_id"))
        return self.tell("job_event", at, source, key, late, kind=kind, job_id=job_id, **fields)

    def node(self, at: int, kind: str, node: str, source: str = "watch/slurm", **fields) -> int:
        return self.tell("node_event", at, source, ("node", node), kind=kind, node=node, **fields)

    def capacity(self, at: int, kind: str, owner: str, **fields) -> int:
        key = ("capacity", owner, fields.get("name"))
        return self.tell("capacity_event", at, "watch/slurm", key, kind=kind, owner=owner, **fields)

    def arrived(self) -> list[dict]:
        """All events in order of arrival, some of them twice."""
        events = [event for _, _, event in sorted(self._events, key=lambda e: e[:2])]
        for event in list(events):
            if self.chance(0.03):
                [(schema, body)] = event.items()
                again = {**body["envelope"], "source": "again", "observed_time_ms": self.end + 1}
                events.append({schema: {**body, "envelope": again}})
        return events
