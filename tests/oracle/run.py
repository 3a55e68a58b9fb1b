#!/usr/bin/env python3
"""Compares the ledger with the oracle: of random scenes through `tidegate pipeline test`, or of a data folder."""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from oracle import tables  # noqa: E402
from oracle.compare import Difference, compare  # noqa: E402
from oracle.events import clusters  # noqa: E402
from oracle.ledger import ledger  # noqa: E402
from oracle.recorded import Folder  # noqa: E402
from oracle.scenes import make  # noqa: E402
from oracle.shrink import shrink  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tidegate", default="tidegate", help="the program to test")
    parser.add_argument("--scenes", type=int, default=300, help="how many random scenes")
    parser.add_argument("--seed", type=int, default=1, help="number of the first scene")
    parser.add_argument("--also", type=int, nargs="+", default=[], metavar="SEED", help="further scenes, e.g. --also 997 2866")
    parser.add_argument("--per-case", type=int, default=300, help="scenes that go through one run together")
    parser.add_argument("--shrink", type=int, default=1, help="how many differing scenes to make minimal")
    parser.add_argument("--keep", type=Path, help="folder for the cases; by default one that is removed")
    parser.add_argument("--data", type=Path, help="compare the ledger of this data folder with what it recorded")
    parser.add_argument("--events", type=Path, help="print the oracle's ledger of this file of events as CSV")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.events:
        return print_ledger(options.events)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            if options.data:
                return test_folder(options.tidegate, options.data)
            return test_scenes(options, options.keep or Path(scratch))
        except (tables.CannotRun, OSError) as error:
            print(error, file=sys.stderr)
            return 2


def test_scenes(options: argparse.Namespace, folder: Path) -> int:
    begun, rows, differing, unequal_ways = time.monotonic(), 0, {}, []
    seeds = [*range(options.seed, options.seed + options.scenes), *options.also]
    for begin in range(0, len(seeds), options.per_case):
        scenes = {seed: make(seed) for seed in seeds[begin : begin + options.per_case]}
        case = folder / f"scenes-{seeds[begin]}"
        tables.write_case(case, "ledger_1m", [event for scene in scenes.values() for event in scene])
        unequal_ways += tables.run_cases(options.tidegate, case)
        table = list(tables.rows_of(case))
        rows += len(table)
        with (case / "events.jsonl").open(encoding="utf-8") as lines:
            for difference in compare(lines, table):
                differing.setdefault(difference.cluster, []).append(difference)
    report(differing)
    for way in unequal_ways:
        print(way)
    for cluster in sorted(differing)[: options.shrink]:
        print_minimal(options, folder, make(int(cluster[1:])))
    total = sum(map(len, differing.values()))
    print(f"{len(seeds)} scenes, {rows} rows, {total} differences in {len(differing)} scenes, "
          f"{len(unequal_ways)} ways of arrival that differ, {time.monotonic() - begun:.0f} s")
    return 1 if differing or unequal_ways else 0


def test_folder(tidegate: str, data: Path) -> int:
    begun, folder = time.monotonic(), Folder(tidegate, data)
    table = list(folder.ledger())
    found = compare(folder.events(), table)
    for difference in found[:20]:
        print(shown(difference))
    print(f"{len(table)} rows of {data}, {len(found)} differences, {time.monotonic() - begun:.0f} s")
    return 1 if found else 0


def shown(difference: Difference) -> str:
    minute = datetime.fromtimestamp(difference.minute / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    names = ("pool", "node", "team", "user", "job")
    about = " ".join(f"{n}={v}" for n, v in zip(names, difference.key, strict=False) if v is not None)
    kind, formula = difference.key[-2:]
    return (f"{difference.cluster} {minute} {about} {kind}/{formula}: "
            f"expected {difference.expected}, found {difference.found} GPU-ms")


def report(differing: dict[str, list[Difference]]) -> None:
    kinds = Counter(d.key[-2:] for found in differing.values() for d in found)
    for (kind, formula), count in kinds.most_common():
        print(f"{count:6} differences of {kind}/{formula}")
    for found in list(differing.values())[:10]:
        print(shown(found[0]))


def print_minimal(options: argparse.Namespace, folder: Path, scene: list[dict]) -> None:
    """The scene without all that does not matter, the minute, and both values."""
    def found(candidates: list[list[dict]]) -> list[list[Difference]]:
        return differences_of(options.tidegate, folder / "minimal", candidates)

    events, left = shrink(scene, found)
    print("\nminimal scene:")
    for event in events:
        print(json.dumps(event))
    for difference in left:
        print(shown(difference))


def differences_of(tidegate: str, case: Path, candidates: list[list[dict]]) -> list[list[Difference]]:
    """Differences of each candidate, all of them in one run: each is a cluster of its own."""
    renamed = [[in_cluster(event, f"c{place:06}") for event in events] for place, events in enumerate(candidates)]
    lines = [event for events in renamed for event in events]
    tables.write_case(case, "ledger_1m", lines)
    tables.run_cases(tidegate, case)
    by_cluster = defaultdict(list)
    for difference in compare(map(json.dumps, lines), tables.rows_of(case)):
        by_cluster[difference.cluster].append(difference)
    return [by_cluster[f"c{place:06}"] for place in range(len(candidates))]


def in_cluster(event: dict, cluster: str) -> dict:
    [(schema, body)] = event.items()
    return {schema: {**body, "envelope": {**body["envelope"], "cluster": cluster}}}


def print_ledger(file: Path) -> int:
    with file.open(encoding="utf-8") as lines:
        told = clusters(lines)
    print("minute_ms,cluster,pool,node,gpu_uuid,mig_uuid,team,user_name,job_id,class,formula,gpu_ms")
    for cluster in told.values():
        for row in ledger(cluster):
            values = (row.minute, row.cluster, row.pool, row.node, row.device, row.mig, row.team, row.user,
                      row.job_id, row.kind, row.formula, row.gpu_ms)
            print(",".join("" if value is None else str(value) for value in values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
