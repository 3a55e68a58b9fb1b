"""Who has, holds and reserves what at one instant: docs/ledger.md, "What is known" and "Who holds what"."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

from .model import MINUTE, Attempt, Cluster, Hold, Job, Node, Reservation

# A whole GPU.
WHOLE = 7000
USABLE = {"UP", "IDLE", "MIXED", "ALLOCATED"}
HARMLESS = {"CLOUD", "DYNAMIC_NORM", "PLANNED", "COMPLETING"}
UNHEALTHY = {"DOWN", "FAIL", "ERROR", "NO_RESPOND", "UNKNOWN"}
SWITCHED_OFF = {"POWERED_DOWN", "POWER_DOWN", "POWERING_DOWN"}


def within(start: int, end: int | None, t: int) -> bool:
    return start <= t and (end is None or t < end)


def latest(history: list[tuple], t: int):
    """The value that was stated last, at or before t."""
    value = None
    for since, stated in history:
        if since > t:
            break
        value = stated
    return value


def condition(state: str | None) -> str:
    """usable, unhealthy or drained, by the state that the scheduler names."""
    if state is None or state == "":
        return "usable"
    parts = set(state.replace("*", "+*").split("+")) - {""}
    if parts & USABLE and parts <= USABLE | HARMLESS:
        return "usable"
    if (parts & UNHEALTHY or "*" in parts) and not parts & SWITCHED_OFF:
        return "unhealthy"
    return "drained"


@dataclass
class NodeNow:
    """One node at one instant, sevenths of a thousandth of a GPU: a MIG slice has some sevenths of it."""

    name: str
    pools: tuple[str, ...]
    has: int
    condition: str
    reservations: list[Reservation]
    # Nobody registered a node that only jobs name: it has what is held there.
    is_registered: bool = True
    # device and slice -> sevenths of the whole device.
    sevenths: dict[tuple[str, str | None], int] = field(default_factory=dict)
    # device and slice -> job -> what the job holds of it by name.
    named: dict[tuple[str, str | None], dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    # job -> what it holds of the node without a device being named.
    unnamed: dict[str, int] = field(default_factory=dict)
    # Devices on which a process of a job was seen while nobody gave them to it.
    seen: dict[str, set] = field(default_factory=lambda: defaultdict(set))
    lost: set[str] = field(default_factory=set)

    def serves(self, pool: str | None) -> bool:
        """A node without a pool serves every pool; a job without a pool may run on every node."""
        return pool is None or not self.pools or pool in self.pools

    def admits(self, job: Job) -> bool:
        """No reservation, or one whose accounts contain its team or whose users contain its user."""
        return not self.reservations or any(
            job.team in r.accounts or job.user in r.users for r in self.reservations
        )

    @property
    def held(self) -> int:
        """Whether the node has it or not; all holds of a device together for at most the whole device."""
        named = sum(min(1000 * self.sevenths[key], sum(jobs.values())) for key, jobs in self.named.items())
        return named + sum(self.unnamed.values())

    @property
    def there(self) -> int:
        return self.has if self.is_registered else self.held

    @property
    def imbalance(self) -> int:
        """Held beyond what there is, negative."""
        return min(0, self.there - self.held)

    @property
    def lost_free(self) -> int:
        """Lost devices that nobody holds by name, of what is not held."""
        taken = {device for device, _ in self.named}
        return min(max(0, self.there - self.held), WHOLE * len(self.lost - taken))

    @property
    def free(self) -> int:
        """What nobody holds and is not lost."""
        return max(0, self.there - self.held - self.lost_free)

    @property
    def idle(self) -> int:
        """0 unless the node is usable and not in maintenance; else what nobody holds and is not lost."""
        return self.free if self.condition == "usable" else 0


def node_now(node: Node, cluster: Cluster, t: int) -> NodeNow | None:
    span = next((s for s in node.spans if within(s.start, s.end, t)), None)
    if span is None:
        return NodeNow(node.name, (), 0, "usable", [], is_registered=False)
    reserved = [r for r in cluster.reservations if node.name in r.nodes and within(r.start, r.end, t)]
    state = condition(latest(node.states, t))
    if state == "usable" and any(r.maintenance for r in reserved):
        state = "drained"
    lost = {lost.device for lost in node.lost if within(lost.start, lost.end, t)}
    return NodeNow(node.name, span.pools, span.gpus_milli * 7, state, reserved, lost=lost)


def attempt_now(job: Job, t: int) -> tuple[Attempt, int, tuple[str, ...]] | None:
    """The attempt that runs at t, with its GPUs and nodes then."""
    for attempt in job.attempts:
        if within(attempt.start, attempt.end, t):
            piece = [p for p in attempt.pieces if p[0] <= t][-1]
            return attempt, piece[1], piece[2]
    return None


@dataclass
class Now:
    """The whole cluster at one instant."""

    t: int
    nodes: dict[str, NodeNow]
    # job -> what it holds somewhere in its pool, in the same unit.
    by_number: dict[str, int]
    waiting: list


def now(cluster: Cluster, t: int, with_devices: bool) -> Now:
    nodes = {}
    for name in sorted(cluster.nodes):
        nodes[name] = node_now(cluster.nodes[name], cluster, t)
    by_number: dict[str, int] = {}
    holds = defaultdict(list)
    for hold in cluster.holds if with_devices else ():
        if within(hold.start, hold.end, t):
            holds[hold.job_id].append(replace(hold, device=device_of(hold, cluster, t // MINUTE * MINUTE)))
    for job_id in sorted(set(cluster.jobs) | set(holds)):
        job = cluster.jobs.get(job_id) or Job(job_id)
        place(job, attempt_now(job, t), holds[job_id], cluster, nodes, by_number, t // MINUTE * MINUTE)
    nodes = {name: node for name, node in sorted(nodes.items()) if node.is_registered or node.held}
    waiting = [(job, wait) for job in cluster.jobs.values() for wait in job.waits if counts(job, wait, t)]
    return Now(t, nodes, by_number, waiting)


def device_of(hold: Hold, cluster: Cluster, minute: int) -> str:
    """The UUID of what a hold names: of a slice the GPU that samples of the minute show it on; of a number the
    device that samples of the minute, or a hold that tells both, show under it. Else it stays as it is."""
    if hold.mig:
        found = (gpu for node, gpu, mig, at in cluster.samples if (node, mig, at) == (hold.node, hold.mig, minute))
        return next(found, hold.device)
    if not hold.device.startswith("#"):
        return hold.device
    sampled = cluster.numbers.get((hold.node, hold.number, minute))
    both = (h.device for h in cluster.holds if h.node == hold.node and h.number == hold.number and not h.mig
            and not h.device.startswith("#") and h.start < minute + MINUTE and (h.end is None or h.end > minute))
    return sampled or next(both, hold.device)


def counts(job: Job, wait, t: int) -> bool:
    """At an instant before eligible_time a wait does not count; a job that asks for no GPU claims nothing."""
    return within(wait.start, wait.end, t) and wait.asked_milli > 0 and (job.eligible is None or job.eligible <= t)


def place(job: Job, running, holds: list, cluster: Cluster, nodes: dict[str, NodeNow],
          by_number: dict[str, int], minute: int) -> None:
    """Per job and node the best evidence wins: devices, then nodes, then numbers."""
    gpus, names = (running[1], running[2]) if running else (0, ())
    known, counted = 0, defaultdict(int)
    for name in sorted({h.node for h in holds} | set(names)):
        node = nodes.setdefault(name, NodeNow(name, (), 0, "usable", [], is_registered=False))
        here = [h for h in holds if h.node == name]
        given = [h for h in here if not h.is_process]
        # A process proves which device a job uses, not that it is the only one: where the job has a share of
        # the node, the share is what it holds. Where it has none, the devices are all there is to count.
        devices: dict[tuple[str, str | None], int] = {}
        for hold in given if given or share(gpus, names, name) else here:
            key = (hold.device, hold.mig)
            devices[key] = max(devices.get(key, 0), hold.share_milli)
        for key, milli in devices.items():
            node.sevenths[key] = cluster.sevenths.get((*key, minute), 1) if key[1] else 7
            node.named[key][job.job_id] = milli * node.sevenths[key]
            known += milli * node.sevenths[key]
        for hold in here:
            if hold.is_process and (hold.device, hold.mig) not in devices:
                node.seen[job.job_id].add(hold.device)
        # A slice stands for one GPU of the share, though it holds only its sevenths.
        counted[name] = sum(devices.values())
    rest = max(0, gpus - sum(counted.values()))
    for name in names:
        part = min(rest, max(0, share(gpus, names, name) - counted[name]))
        if part:
            nodes[name].unnamed[job.job_id] = part * 7
        rest -= part
    if running and not names and gpus * 7 > known:
        by_number[job.job_id] = gpus * 7 - known


def share(gpus: int, names: tuple[str, ...], name: str) -> int:
    """An equal share on each node, rounded down cumulatively in the order in which they are named."""
    if name not in names:
        return 0
    place = names.index(name)
    return gpus * (place + 1) // len(names) - gpus * place // len(names)
