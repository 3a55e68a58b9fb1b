"""What the oracle is given: facts about one cluster, as plain values.

Nothing here knows of events, Protobuf or Slurm. `events.py` fills it from the event contract; a site's own
records (squeue, sacct, scontrol) can fill it as well, which is how a real Slurm is compared.

Times are integers, ms since 1970 UTC; an open end is None. GPUs are integers, thousandths (`milli`).
Every interval holds from its first ms on and ends before its last.
"""

from dataclasses import dataclass, field

MINUTE = 60_000


@dataclass
class Span:
    """A node as registered: from when to when, how many GPUs, in which pools (none: it serves every pool)."""

    start: int
    end: int | None
    gpus_milli: int
    pools: tuple[str, ...] = ()


@dataclass
class Lost:
    """A device that did not answer, from when to when."""

    device: str
    start: int
    end: int | None


@dataclass
class Node:
    name: str
    spans: list[Span] = field(default_factory=list)
    # (since when, state as the scheduler names it), in order of time.
    states: list[tuple[int, str | None]] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)


@dataclass
class Reservation:
    """A reservation while it is in force. Without nodes it is a commitment of `gpus_milli` in `pool`."""

    start: int
    end: int | None
    nodes: frozenset[str] = frozenset()
    pool: str | None = None
    gpus_milli: int = 0
    accounts: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    maintenance: bool = False


@dataclass
class Attempt:
    """One attempt of a job. A resize inside it begins another piece: (since when, GPUs, nodes or none)."""

    start: int
    end: int | None
    # In order of time; the first begins with the attempt.
    pieces: list[tuple[int, int, tuple[str, ...]]]
    # How many nodes, where they are not named.
    node_count: int | None = None
    # False for the job's first attempt, and for the parts of one that a resize divides.
    is_restart: bool = False


@dataclass
class Wait:
    """From submission, or the end of the attempt before, to the start or the end of the job."""

    start: int
    end: int | None
    asked_milli: int
    # (since when, reason), in order of time.
    reasons: list[tuple[int, str | None]] = field(default_factory=list)
    # (nodes, GPUs on each in thousandths), where it is known.
    shape: tuple[int, int] | None = None


@dataclass
class Job:
    job_id: str
    team: str | None = None
    user: str | None = None
    pool: str | None = None
    eligible: int | None = None
    # (since when, priority), in order of time.
    priorities: list[tuple[int, int]] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)


@dataclass
class Hold:
    """A device that a job was known to hold, by whatever evidence.

    `device` is a UUID, or #N for number N of the node where only that is known. `mig` names a slice of it.
    `is_process`: a process was seen, nobody said whose the device is.
    """

    job_id: str
    node: str
    device: str
    mig: str | None
    start: int
    end: int | None
    share_milli: int
    is_process: bool = False
    step: str | None = None
    # Its number on the node, where that is known.
    number: int | None = None


@dataclass
class Sampled:
    """What the samples of one device (or slice) in one minute add up to, µs."""

    active: int = 0
    idle: int = 0
    empty: int = 0
    sampled: int = 0


@dataclass
class Step:
    """One training step of one rank. The parts, in µs, as the job told them."""

    job_id: str
    node: str | None
    rank: int
    number: int
    start: int
    duration_us: int
    compute_us: int = 0
    communication_us: int = 0
    data_us: int = 0
    checkpoint_us: int = 0
    restore_us: int = 0


@dataclass
class Cluster:
    name: str
    # First and last thing known of the cluster: nothing is counted outside.
    observed_from: int
    observed_to: int
    # Start of the UTC minute in which the first collector of the cluster started; None: nobody watches.
    watched_from: int | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    reservations: list[Reservation] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    # By node, device, slice or None, and start of the minute.
    samples: dict[tuple[str, str, str | None, int], Sampled] = field(default_factory=dict)
    # UUID of a device, by (node, number, minute), as samples of that minute say.
    numbers: dict[tuple[str, int, int], str] = field(default_factory=dict)
    # Of a slice, by (device, slice, minute): its sevenths of the GPU, as samples of that minute say.
    sevenths: dict[tuple[str, str, int], int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """GPU time of one class. What is not known or does not apply is None, as in the table ledger_1m."""

    minute: int
    cluster: str
    pool: str | None
    node: str | None
    device: str | None
    mig: str | None
    team: str | None
    user: str | None
    job_id: str | None
    kind: str
    formula: str
    gpu_ms: int
