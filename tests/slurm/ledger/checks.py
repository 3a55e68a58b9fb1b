"""What must hold of the ledger of a site that ran."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import records
from oracle.compare import differences
from oracle.ledger import ledger
from oracle.model import MINUTE, Cluster, Row
from processes import JOBS_S, NODES_S, Site
from sampler import Sampler

# What a program of Slurm may take to answer, and the watcher to start: what it sees it sees later by so much.
ANSWER_MS = 1500
SHOWN = 10


class Checks:
    def __init__(self, table: list[Row], recorded: Cluster, truth: Cluster, accounting: list[records.Record],
                 sampler: Sampler, site: Site):
        self.table, self.recorded, self.truth = table, recorded, truth
        self.accounting, self.sampler, self.site = accounting, sampler, site
        self.gpus = sum(node.spans[-1].gpus_milli for node in truth.nodes.values()) // 1000

    def run(self) -> bool:
        checks = [
            ("what was recorded, computed by the oracle, is the ledger", self.same_as_recorded),
            ("classes of a minute add up to GPUs x observed time", self.adds_up),
            ("nothing lies outside of the observed time", self.ends),
            ("what jobs held is what accounting has, to the ms", self.held),
            ("what nobody held is what Slurm's records make of it", self.classes),
        ]
        good = True
        for name, check in checks:
            wrong = list(check())
            good &= not wrong
            print(f"{'passed' if not wrong else 'FAILED'}: {name}")
            for line in wrong[:SHOWN]:
                print(f"    {line}")
            if len(wrong) > SHOWN:
                print(f"    and {len(wrong) - SHOWN} more")
        return good

    def same_as_recorded(self) -> Iterator[str]:
        for difference in differences(self.recorded, self.table):
            yield f"{clock(difference.minute)} {difference.key}: {difference.expected} expected, {difference.found} found"

    def adds_up(self) -> Iterator[str]:
        """A node counts from when the watcher first saw it; its GPUs are those that scontrol shows."""
        expected: dict[int, int] = defaultdict(int)
        for node in self.truth.nodes.values():
            for minute, ms in minutes(node.spans[0].start, self.truth.observed_to):
                expected[minute] += node.spans[0].gpus_milli // 1000 * ms
        found: dict[int, int] = defaultdict(int)
        for row in self.table:
            if row.kind != "not_provisioned":
                found[row.minute] += row.gpu_ms
        for minute in sorted(expected.keys() | found.keys()):
            if expected[minute] != found[minute]:
                yield f"{clock(minute)} {expected[minute]} GPU-ms expected, {found[minute]} found"

    def ends(self) -> Iterator[str]:
        """Observed time ends before the last collector does, no row begins after it, and nobody committed to GPUs."""
        lives = [life for program in (self.site.watcher, *self.site.agents.values()) for life in program.lives]
        last = max(end for _, end in lives)
        if self.truth.observed_to > last:
            yield f"observed until {clock(self.truth.observed_to)}, and the last collector ended at {clock(last)}"
        for row in self.table:
            if row.minute > self.truth.observed_to:
                yield f"{clock(row.minute)} {row.kind} {row.gpu_ms}"
            if row.kind == "not_provisioned":
                yield f"{clock(row.minute)} not_provisioned {row.gpu_ms}, and nobody committed to anything"

    def held(self) -> Iterator[str]:
        expected = records.held(self.accounting, self.truth.observed_to)
        found: dict[tuple[str, int], int] = defaultdict(int)
        for row in self.table:
            if row.job_id:
                found[row.job_id, row.minute] += row.gpu_ms
        for key in sorted(expected.keys() | found.keys(), key=lambda key: (key[1], key[0])):
            if expected.get(key, 0) != found.get(key, 0):
                yield (f"{clock(key[1])} job {key[0]}: accounting has {expected.get(key, 0)} GPU-ms, "
                       f"the ledger {found.get(key, 0)}")

    def classes(self) -> Iterator[str]:
        """Equal to the ms where nothing changed. Until the watcher polls again it cannot know of a change, so for
        that long any GPU of the cluster may be in another class."""
        expected, found = by_class(ledger(self.truth)), by_class(self.table)
        unseen = self.unseen()
        off = total = 0
        for key in sorted(expected.keys() | found.keys()):
            minute, kind = key
            by = abs(expected[key] - found[key])
            off, total = off + by, total + expected[key]
            if by > unseen[minute] * self.gpus:
                yield (f"{clock(minute)} {kind}: {expected[key]} GPU-ms by Slurm's records, {found[key]} found; "
                       f"of {unseen[minute]} ms not known")
        observed = minutes(self.truth.observed_from, self.truth.observed_to)
        exact = sum(1 for minute, ms in observed if ms == MINUTE and not unseen[minute])
        if not exact:
            yield "something changed in every minute: none of them shows that classes are equal"
        sums = [Counter(), Counter()]
        for counted, by_kind in zip(sums, (found, expected)):
            for (_, kind), ms in by_kind.items():
                counted[kind] += ms
        print(f"        {total / 1000:.0f} GPU-s that nobody held, {off / 2000:.1f} of them in another class; "
              f"{exact} whole minutes in which all must be equal")
        for kind in sorted(sums[0].keys() | sums[1].keys()):
            print(f"        {kind}: {sums[0][kind] / 1000:.0f} GPU-s, by Slurm's records {sums[1][kind] / 1000:.0f}")

    def unseen(self) -> dict[int, int]:
        """ms of each minute within which the watcher, asking as it does, may not have seen a change yet."""
        spans = []
        for seen in self.sampler.jobs.values():
            spans += [(at - self.sampler.longest_ms, self.seen_by(at, JOBS_S)) for at, _, _ in seen.waits]
        for states in self.sampler.states.values():
            spans += [(before, self.seen_by(at, NODES_S)) for before, at, _ in states]
        for reservation in self.truth.reservations:
            spans += [(at, self.seen_by(at, NODES_S)) for at in (reservation.start, reservation.end)]
        found: dict[int, int] = defaultdict(int)
        for start, end in union(spans):
            for minute, ms in minutes(start, min(end, self.truth.observed_to)):
                found[minute] += ms
        return found

    def seen_by(self, at: int, every_s: int) -> int:
        """When a watcher that asks so often has surely seen what happened then; one that is down sees it later."""
        due = at + every_s * 1000 + ANSWER_MS
        lives = self.site.watcher.lives
        for (_, end), (start, _) in zip(lives, lives[1:]):
            if end - every_s * 1000 - ANSWER_MS < at < start:
                due = max(due, start + every_s * 1000 + 2 * ANSWER_MS)
        return due


def by_class(rows: Iterable[Row]) -> dict[tuple[int, str], int]:
    """GPU-ms of what nobody held."""
    found: dict[tuple[int, str], int] = defaultdict(int)
    for row in rows:
        if row.job_id is None:
            found[row.minute, row.kind] += row.gpu_ms
    return found


def minutes(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The minutes of a span, and how many ms of each lie in it."""
    minute = start // MINUTE * MINUTE
    while minute < end:
        yield minute, min(end, minute + MINUTE) - max(start, minute)
        minute += MINUTE


def union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def clock(ms: int) -> str:
    minute, rest = divmod(ms, MINUTE)
    return f"{minute // 60 % 24:02}:{minute % 60:02}:{rest / 1000:06.3f}"
