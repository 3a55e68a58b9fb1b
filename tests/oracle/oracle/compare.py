"""The ledger of the oracle beside that of the tables, to the GPU-ms."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .events import clusters
from .ledger import ledger
from .model import Cluster, Row

# What a difference is told by. Before agents watch, what nobody holds has no node.
Key = tuple


@dataclass
class Difference:
    cluster: str
    minute: int
    # pool, node, team, user, job, class, formula
    key: Key
    expected: int
    found: int


def key_of(row: Row) -> Key:
    return (row.minute, row.pool, row.node, row.team, row.user, row.job_id, row.kind, row.formula)


def sums(rows: Iterable[Row]) -> dict[Key, int]:
    found: dict[Key, int] = defaultdict(int)
    for row in rows:
        found[grain(row)] += row.gpu_ms
    return {key: ms for key, ms in found.items() if ms}


def grain(row: Row) -> Key:
    """Held time by all that a row says but its device; what nobody held without its pool, which follows from
    its node."""
    pool = row.pool if row.job_id or row.kind == "not_provisioned" else None
    return (row.minute, pool, row.node, row.team, row.user, row.job_id, row.kind, row.formula)


def differences(cluster: Cluster, table: Iterable[Row]) -> list[Difference]:
    expected, found = sums(ledger(cluster)), sums(without_nodes(cluster, table))
    keys = sorted(set(expected) | set(found), key=lambda k: tuple(str(part) for part in k))
    return [Difference(cluster.name, key[0], key[1:], expected.get(key, 0), found.get(key, 0))
            for key in keys if expected.get(key, 0) != found.get(key, 0)]


def without_nodes(cluster: Cluster, table: Iterable[Row]) -> Iterable[Row]:
    """Where nobody watched, rows name a node only if the job had one; the oracle leaves it out."""
    watched = cluster.watched_from
    for row in table:
        if watched is None or row.minute < watched:
            yield Row(row.minute, row.cluster, row.pool, None, None, None, row.team, row.user, row.job_id,
                      row.kind, row.formula, row.gpu_ms)
        else:
            yield row


def by_cluster(table: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in table:
        found[row.cluster].append(row)
    return found


def compare(lines: Iterable[str], table: Iterable[Row]) -> list[Difference]:
    """Differences of all clusters that the events tell of, and of rows of clusters that they do not."""
    told, rows = clusters(lines), by_cluster(table)
    found = [d for name, cluster in told.items() for d in differences(cluster, rows.pop(name, []))]
    found += [Difference(name, row.minute, grain(row)[1:], 0, row.gpu_ms)
              for name, extra in rows.items() for row in extra]
    return found
