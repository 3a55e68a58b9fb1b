"""The pieces of time between which nothing changes, cut at minutes."""

from collections.abc import Iterator

from .model import MINUTE, Cluster


def changes(cluster: Cluster) -> set[int]:
    """Every instant at which something of the cluster begins, ends or becomes another."""
    found: set[int | None] = set()
    for node in cluster.nodes.values():
        for interval in (*node.spans, *node.lost):
            found |= {interval.start, interval.end}
        found |= {since for since, _ in node.states}
    for interval in (*cluster.reservations, *cluster.holds):
        found |= {interval.start, interval.end}
    for job in cluster.jobs.values():
        found.add(job.eligible)
        found |= {since for since, _ in job.priorities}
        for attempt in job.attempts:
            found |= {attempt.start, attempt.end} | {piece[0] for piece in attempt.pieces}
        for wait in job.waits:
            found |= {wait.start, wait.end} | {since for since, _ in wait.reasons}
    return {t for t in found if t is not None}


def segments(cluster: Cluster) -> Iterator[tuple[int, int, int]]:
    """(minute, from, to) in order: inside each the cluster stands still."""
    begin, end = cluster.observed_from, cluster.observed_to
    cuts = {t for t in changes(cluster) if begin < t < end} | {begin, end}
    cuts |= set(range(begin // MINUTE * MINUTE + MINUTE, end, MINUTE))
    order = sorted(cuts)
    for start, stop in zip(order, order[1:], strict=False):
        yield start // MINUTE * MINUTE, start, stop
