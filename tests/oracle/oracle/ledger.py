"""The ledger of one cluster by minute: docs/ledger.md from instants to rows."""

from collections import defaultdict
from collections.abc import Iterator

from .claims import ORDER, claims, idle_nodes, not_provisioned
from .held import Did, Training, by_samples, classes
from .instants import WHOLE, NodeNow, Now, now, within
from .minute import NodeMinute, devices_of, place_unnamed
from .model import Cluster, Job, Row
from .segments import segments


class Ledger:
    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.training = Training(cluster)
        self.rows: list[Row] = []
        self.nodes: dict[tuple[int, str], NodeMinute] = {}
        # (minute, what a row says) -> thousandths x ms: what needs no minute of a device.
        self.sums: dict[tuple, int] = defaultdict(int)
        # (job, node, minute) -> held before the first step of its attempt, thousandths x ms.
        self.early: dict[tuple[str, str, int], tuple[str, int]] = {}

    def job(self, job_id: str) -> Job:
        return self.cluster.jobs.get(job_id) or Job(job_id)

    def compute(self) -> list[Row]:
        for minute, start, stop in segments(self.cluster):
            watched = self.cluster.watched_from
            is_watched = watched is not None and minute >= watched
            instant = now(self.cluster, start, is_watched)
            left, taken, beyond = idle_nodes(instant, self.cluster.jobs)
            made = claims(instant, left)
            ms = stop - start
            self.commitments(instant, minute, ms)
            if is_watched:
                self.watched(instant, minute, start, stop, taken, made)
                self.numbers(instant, minute, ms, beyond)
            else:
                self.stretch(instant, minute, ms, left, made)
        for node in self.nodes.values():
            self.node_minute(node)
        for key, value in self.sums.items():
            if value:
                minute, pool, node, team, user, job_id, kind, formula = key
                ms = -(-value // WHOLE) if value < 0 else value // WHOLE
                self.rows.append(Row(minute, self.cluster.name, pool, node, None, None, team, user, job_id, kind,
                                     formula, ms))
        return self.rows

    def unheld(self, minute: int, pool, node, kind: str, formula: str, value: int) -> None:
        self.sums[minute, pool, node, None, None, None, kind, formula] += value

    def held_somewhere(self, minute: int, node, job_id: str, value: int) -> None:
        job = self.job(job_id)
        self.sums[minute, job.pool, node, job.team, job.user, job_id, "unknown", "hold"] += value

    def commitments(self, instant: Now, minute: int, ms: int) -> None:
        in_force = [r for r in self.cluster.reservations if within(r.start, r.end, instant.t)]
        for pool, milli in not_provisioned(instant, in_force).items():
            self.unheld(minute, pool, None, "not_provisioned", "capacity", milli * 7 * ms)

    def numbers(self, instant: Now, minute: int, ms: int, beyond: int) -> None:
        """GPUs held somewhere in a pool: without a node; what no idle GPU is left for is imbalance."""
        for job_id, milli in instant.by_number.items():
            self.held_somewhere(minute, None, job_id, milli * ms)
        self.unheld(minute, None, None, "imbalance", "hold", -beyond * ms)

    def stretch(self, instant: Now, minute: int, ms: int, left: dict, made: dict) -> None:
        """While nobody watches: no devices, and held time is held in full; what is too much is imbalance."""
        total, everything = 0, 0
        for node in instant.nodes.values():
            total += node.there
            everything += self.stretch_of_node(node, instant, minute, ms)
            for kind in ORDER:
                milli = made.get((node.name, kind), 0)
                self.unheld(minute, None, None, kind, "queue", milli * ms)
                left[node.name] -= milli
                everything += milli
            self.unheld(minute, None, None, "no_demand", "queue", left[node.name] * ms)
            everything += left[node.name]
        for job_id, milli in instant.by_number.items():
            self.held_somewhere(minute, None, job_id, milli * ms)
            everything += milli
        # Of a cluster without nodes only held time is known.
        if self.has_nodes(instant.t):
            self.unheld(minute, None, None, "imbalance", "hold", (total - everything) * ms)

    def has_nodes(self, t: int) -> bool:
        return any(span.start <= t for node in self.cluster.nodes.values() for span in node.spans)

    def stretch_of_node(self, node: NodeNow, instant: Now, minute: int, ms: int) -> int:
        held: dict[str, int] = defaultdict(int, node.unnamed)
        for jobs in node.named.values():
            for job_id, milli in jobs.items():
                held[job_id] += milli
        for job_id, milli in held.items():
            self.held_somewhere(minute, None, job_id, milli * ms)
        unhealthy = node.lost_free + (node.free if node.condition == "unhealthy" else 0)
        drained = node.free if node.condition == "drained" else 0
        self.unheld(minute, None, None, "unhealthy", "capacity", unhealthy * ms)
        self.unheld(minute, None, None, "drained", "capacity", drained * ms)
        return sum(held.values()) + unhealthy + drained

    def watched(self, instant: Now, minute: int, start: int, stop: int, taken: dict, made: dict) -> None:
        sampled = defaultdict(set)
        for node, device, mig, at in self.cluster.samples:
            if at == minute:
                sampled[node].add((device, mig))
        # Of a node that nobody registered, samples show which devices it has.
        for name in sampled:
            self.nodes.setdefault((minute, name), NodeMinute(name, minute))
        for name, node in instant.nodes.items():
            whole = self.nodes.setdefault((minute, name), NodeMinute(name, minute))
            whole.add(node, stop - start, sampled[name] | set(node.named), taken.get(name, 0))
            for kind in ORDER:
                whole.claimed[kind] += made.get((name, kind), 0) * (stop - start)
            self.before_first_step(node, minute, start, stop)

    def before_first_step(self, node: NodeNow, minute: int, start: int, stop: int) -> None:
        held: dict[str, int] = defaultdict(int, node.unnamed)
        for jobs in node.named.values():
            for job_id, milli in jobs.items():
                held[job_id] += milli
        for job_id, milli in held.items():
            found = self.training.before_first(self.job(job_id), start, stop)
            if found:
                kind, begin, end = found
                key = (job_id, node.name, minute)
                self.early[key] = (kind, self.early.get(key, (kind, 0))[1] + milli * (end - begin))

    def node_minute(self, node: NodeMinute) -> None:
        devices = devices_of(node, self.cluster)
        beyond = place_unnamed(node, devices)
        did: dict[str, Did] = defaultdict(Did)
        for device in devices:
            for job_id, part in by_samples(device).items():
                did[job_id].add(part)
        for job_id, ms in beyond.items():
            did[job_id].add(Did(unknown=ms))
        for job_id, part in did.items():
            self.job_minute(node, job_id, part)
        self.rest(node, devices, sum(part.held for part in did.values()))

    def job_minute(self, node: NodeMinute, job_id: str, did: Did) -> None:
        job = self.job(job_id)
        key = (job_id, node.name, node.minute)
        early = self.early.get(key)
        before = (early[0], early[1] // WHOLE) if early else None
        for kind, formula, ms in classes(did, self.training.parts.get(key, {}), before):
            self.row(node, job.pool, kind, formula, ms, job)

    def rest(self, node: NodeMinute, devices: list, held: int) -> None:
        """What nobody held, class by class: each GPU-ms takes the first that applies. Rounding leaves a ms here
        and there, which is idle, or of the class that a node without any idle time is in."""
        imbalance = -(-node.imbalance // WHOLE)
        unhealthy, drained = node.unhealthy // WHOLE, node.drained // WHOLE
        if node.is_registered:
            has = node.has // WHOLE
        else:
            has = held + sum(max(0, device.capacity - device.held_ms) for device in devices)
        idle = max(0, has - imbalance - held - node.taken // WHOLE - unhealthy - drained)
        if node.is_registered and node.idle == 0:
            if node.drained > 0:
                drained, idle = drained + idle, 0
            else:
                unhealthy, idle = unhealthy + idle, 0
        self.row(node, node.pool, "imbalance", "hold", imbalance)
        self.row(node, node.pool, "unhealthy", "capacity", unhealthy)
        self.row(node, node.pool, "drained", "capacity", drained)
        busy = min(idle, sum(self.busy(device, node.is_registered) for device in devices))
        self.row(node, node.pool, "unallocated_busy", "samples", busy)
        idle -= busy
        for kind in ORDER:
            claimed = min(idle, node.claimed[kind] // WHOLE)
            self.row(node, node.pool, kind, "queue", claimed)
            idle -= claimed
        self.row(node, node.pool, "no_demand", "queue", idle)

    @staticmethod
    def busy(device, is_registered: bool) -> int:
        """Active time beyond that in which anybody held it, of the time in which the device could be used. In a
        minute in which nobody registered the node, samples are all that is known of it."""
        unusable = device.unusable if is_registered else 0
        free = max(0, device.capacity - device.held_ms - unusable)
        return min(free, max(0, device.active - max(device.wall, device.held_ms)))

    def row(self, node: NodeMinute, pool, kind: str, formula: str, ms: int, job: Job | None = None) -> None:
        if ms:
            self.rows.append(Row(node.minute, self.cluster.name, pool, node.name, None, None,
                                 job.team if job else None, job.user if job else None,
                                 job.job_id if job else None, kind, formula, ms))


def ledger(cluster: Cluster) -> Iterator[Row]:
    return iter(Ledger(cluster).compute())
