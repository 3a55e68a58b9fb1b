"""Why jobs of a history waited, computed again from who held what: from docs/ledger.md and what the columns of `pending` say.

Instant by instant, in plain Python. Times are ms since 1970, GPUs thousandths.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

REASONS_FILE = Path(__file__).resolve().parents[2] / "schemas" / "pending_reasons.csv"
with REASONS_FILE.open(newline="", encoding="utf-8") as file:
    REASONS = {row["reason"]: row for row in csv.DictReader(file) if row["scheduler"] == "slurm"}


@dataclass
class Node:
    """Empty pools: it serves every pool."""

    name: str
    milli: int
    pools: frozenset[str] = frozenset()

    def serves(self, pool: str | None) -> bool:
        return pool is None or not self.pools or pool in self.pools


@dataclass
class Hold:
    """An attempt to run. Without nodes it is somewhere in its pool."""

    pool: str | None
    start: int
    end: int | None
    milli: int
    nodes: tuple[str, ...] = ()


@dataclass
class Wait:
    """`shape` is (nodes, thousandths on each); `reason` is what accounting says of the whole wait."""

    job_id: str
    pool: str | None
    begin: int
    end: int | None
    milli: int
    shape: tuple[int, int] | None = None
    eligible: int | None = None
    priority: int | None = None
    reason: str | None = None
    before_eligible: bool = False

    def reason_at(self, t: int) -> str | None:
        """A reason binds from when the job is eligible; one that keeps it from being so, until then."""
        eligible = self.eligible is None or t >= self.eligible
        if self.before_eligible:
            return self.reason if self.eligible is None or not eligible else None
        return self.reason if eligible else None

    def stands_in_line(self, t: int) -> bool:
        waits = self.begin <= t and (self.end is None or t < self.end) and self.milli > 0
        eligible = self.eligible is None or t >= self.eligible
        known = REASONS.get(self.reason_at(t) or "")
        return waits and eligible and (known is None or known["layer"] in "23")

    def place_in_line(self) -> tuple:
        return (self.priority is None, -(self.priority or 0), self.begin, self.job_id)


@dataclass
class Verdict:
    """The numbers are None where nothing was looked up."""

    constraint: str | None
    free: int | None = None
    largest: int | None = None
    fitting: int | None = None


@dataclass
class History:
    nodes: list[Node]
    holds: list[Hold]
    waits: list[Wait]

    def free_at(self, t: int) -> dict[str, int]:
        """Idle GPUs by node: what is held on named nodes is off, then what is held by number, pool by pool and node by node."""
        free = {node.name: node.milli for node in self.nodes}
        somewhere: dict[str | None, int] = {}
        for hold in self.holds:
            if hold.start > t or (hold.end is not None and hold.end <= t):
                continue
            for name in hold.nodes:
                if name in free:
                    free[name] -= hold.milli // len(hold.nodes)
            if not hold.nodes:
                somewhere[hold.pool] = somewhere.get(hold.pool, 0) + hold.milli
        free = {name: max(milli, 0) for name, milli in free.items()}
        for pool in sorted(somewhere, key=lambda pool: (pool is None, pool or "")):
            for node in sorted(self.nodes, key=lambda node: node.name.encode()):
                if node.serves(pool):
                    part = min(somewhere[pool], free[node.name])
                    free[node.name] -= part
                    somewhere[pool] -= part
        return free

    def competes(self, wait: Wait, other: Wait) -> bool:
        """Whether there is a node that both may use."""
        return any(node.serves(wait.pool) and node.serves(other.pool) for node in self.nodes)

    def verdict(self, wait: Wait, t: int) -> Verdict:
        reason = wait.reason_at(t)
        told = REASONS[reason]["constraint"] if reason in REASONS else None
        if reason is not None and told not in ("resources", "priority"):
            return Verdict(told)
        if wait.eligible is not None and t < wait.eligible:
            return Verdict("not_eligible")
        serving = [node for node in self.nodes if node.serves(wait.pool)]
        if wait.milli == 0 or not serving:
            return Verdict(told)
        all_free = self.free_at(t)
        free = [all_free[node.name] for node in serving]
        found = Verdict(told, sum(free), max(free) // 1000)
        count, each = wait.shape or (None, 1)
        # Parts of a GPU need a GPU.
        fitting = sum(milli // 1000 >= -(-each // 1000) for milli in free)
        if wait.shape:
            found.fitting = fitting
        if sum(node.milli for node in serving) < wait.milli:
            found.constraint = "not_provisioned"
        elif count and 1 <= fitting < count and found.free < wait.milli:
            found.constraint = "gang"
        elif found.free < wait.milli:
            found.constraint = "capacity_taken"
        elif count and fitting < count:
            found.constraint = "fragmented"
        elif reason is None and self.is_behind(wait, t):
            found.constraint = "behind_others"
        elif told == "resources" and count:
            found.constraint = "not_gpus"
        return found

    def is_behind(self, wait: Wait, t: int) -> bool:
        return any(
            other.stands_in_line(t) and other.place_in_line() < wait.place_in_line() and self.competes(wait, other)
            for other in self.waits
            if other is not wait
        )
