"""What is known of one node in one watched minute: the instants of `instants.py` added up."""

from collections import defaultdict
from dataclasses import dataclass, field

from .instants import WHOLE, NodeNow
from .model import MINUTE, Cluster

# Sums are in sevenths of a thousandth of a GPU x ms, so that nothing is rounded before a row is written.


@dataclass
class NodeMinute:
    name: str
    minute: int
    pool: str | None = None
    # ms of the minute in which the node was there and observed.
    present: int = 0
    has: int = 0
    unhealthy: int = 0
    drained: int = 0
    # Of what jobs could start on: all of it, and what others hold by number.
    idle: int = 0
    taken: int = 0
    imbalance: int = 0
    is_registered: bool = False
    # (device, slice) -> job -> held by name, what that comes to on the device, and ms in which anybody did.
    named: dict = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    device_held: dict = field(default_factory=lambda: defaultdict(int))
    wall: dict = field(default_factory=lambda: defaultdict(int))
    # job -> held without a device.
    unnamed: dict = field(default_factory=lambda: defaultdict(int))
    seen: dict = field(default_factory=lambda: defaultdict(set))
    # device -> ms in which nobody held it by name and it was of no use (node or device).
    unusable: dict = field(default_factory=lambda: defaultdict(int))
    claimed: dict = field(default_factory=lambda: defaultdict(int))

    def add(self, now: NodeNow, ms: int, devices: set, taken: int) -> None:
        """Adds an instant that lasted `ms`; of its idle GPUs jobs hold `taken` by number."""
        self.pool = ",".join(now.pools) or self.pool
        self.is_registered |= now.is_registered
        self.present += ms
        self.has += now.there * ms
        for key, jobs in now.named.items():
            self.device_held[key] += min(1000 * now.sevenths[key], sum(jobs.values())) * ms
            self.wall[key] += ms
            for job_id, share in jobs.items():
                self.named[key][job_id] += share * ms
        for job_id, milli in now.unnamed.items():
            self.unnamed[job_id] += milli * ms
        self.unhealthy += (now.lost_free + (now.free if now.condition == "unhealthy" else 0)) * ms
        self.drained += now.free * ms if now.condition == "drained" else 0
        self.idle += now.idle * ms
        self.taken += taken * ms
        self.imbalance += now.imbalance * ms
        for job_id, seen in now.seen.items():
            self.seen[job_id] |= seen
        for device, mig in devices:
            if (now.condition != "usable" or device in now.lost) and (device, mig) not in now.named:
                self.unusable[device, mig] += ms


@dataclass
class DeviceMinute:
    """One device of a node in a minute, ms."""

    key: tuple[str, str | None]
    capacity: int
    active: int
    idle: int
    empty: int
    held: dict[str, int] = field(default_factory=dict)
    unusable: int = 0
    wall: int = 0

    @property
    def held_ms(self) -> int:
        return sum(self.held.values())


def divide(amount: int, weights: dict[str, int]) -> dict[str, int]:
    """In proportion, rounded down cumulatively, in order of job id."""
    total, before, parts = sum(weights.values()), 0, {}
    if total == 0:
        return {}
    reached = 0
    for job_id in sorted(weights, key=str.encode):
        before += weights[job_id]
        upto = amount * before // total
        parts[job_id], reached = upto - reached, upto
    return parts


def devices_of(node: NodeMinute, cluster: Cluster) -> list[DeviceMinute]:
    """The node's devices as sampled in the minute or held by name, with who held them by name."""
    sampled = {(d, m): s for (n, d, m, minute), s in cluster.samples.items()
               if n == node.name and minute == node.minute}
    found = []
    keys = set(sampled) | set(node.named)
    cut: dict[str, set] = defaultdict(set)
    for gpu, mig in keys:
        if mig:
            cut[gpu].add(mig)
    keys |= {(gpu, None) for gpu in cut}
    for key in sorted(keys, key=lambda k: (k[0], k[1] or "")):
        # What a GPU that is cut does shows in its slices; it has what they leave.
        sample = None if key[1] is None and key[0] in cut else sampled.get(key)
        sevenths = sevenths_of(key, cut, cluster, node.minute)
        held = node.device_held[key] // WHOLE
        capacity = node.present * sevenths // 7
        if key[1] is None and sevenths > 0:
            # What slices leave of a GPU is all of it but what they count, in whole ms.
            slices = (sevenths_of((key[0], mig), cut, cluster, node.minute) for mig in cut.get(key[0], ()))
            capacity = node.present - sum(node.present * size // 7 for size in slices)
        device = DeviceMinute(
            key,
            capacity if node.is_registered else max(held, capped(sample, sevenths)),
            sample.active // 1000 * sevenths // 7 if sample else 0,
            sample.idle // 1000 * sevenths // 7 if sample else 0,
            sample.empty // 1000 * sevenths // 7 if sample else 0,
            unusable=node.unusable[key] * sevenths // 7,
            wall=node.wall[key] * sevenths // 7,
        )
        device.held = divide(held, node.named[key])
        found.append(device)
    return found


def sevenths_of(key: tuple[str, str | None], cut: dict[str, set], cluster: Cluster, minute: int) -> int:
    if key[1]:
        return cluster.sevenths.get((*key, minute), 1)
    return max(0, 7 - sum(cluster.sevenths.get((key[0], mig, minute), 1) for mig in cut.get(key[0], ())))


def capped(sample, sevenths: int) -> int:
    """What samples show of a device of a node that nobody registered, ms."""
    return min(sample.sampled // 1000 * sevenths // 7, MINUTE * sevenths // 7) if sample else 0


def place_unnamed(node: NodeMinute, devices: list[DeviceMinute]) -> dict[str, int]:
    """Puts unnamed shares on devices that no named hold takes. Returns what each job holds beyond them.

    First those where a process of that job was seen, then the busiest of the minute (most active, then most
    idle time), then by UUID; several shares divide what they are given in proportion.
    """
    open_shares = divide(sum(node.unnamed.values()) // WHOLE, node.unnamed)
    for device in devices:
        seers = {j: open_shares[j] for j, seen in node.seen.items() if device.key[0] in seen and j in open_shares}
        give(device, min(sum(seers.values()), max(0, device.capacity - device.held_ms)), seers, open_shares)
    busiest = sorted(devices, key=lambda d: (-d.active, -d.idle, d.key[0].encode(), d.key[1] or ""))
    for device in busiest:
        room = max(0, device.capacity - device.held_ms)
        give(device, min(sum(open_shares.values()), room), dict(open_shares), open_shares)
    return open_shares


def give(device: DeviceMinute, amount: int, shares: dict[str, int], open_shares: dict[str, int]) -> None:
    for job_id, part in divide(max(0, amount), shares).items():
        device.held[job_id] = device.held.get(job_id, 0) + part
        device.wall += part
        open_shares[job_id] -= part
