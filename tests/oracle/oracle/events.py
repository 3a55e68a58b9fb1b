"""From the event contract (schemas/*.proto, as Protobuf's JSON, an event a line) to what the oracle is given."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator

from .jobs import job_of
from .model import MINUTE, Cluster, Hold, Job, Lost, Node, Reservation, Span, Step
from .samples import add_batch


def read(lines: Iterable[str], cluster: str | None = None) -> Iterator[tuple[str, str, dict]]:
    """(cluster, schema, event) of each line; a fact that is told twice, once."""
    known = set()
    for line in lines:
        if not line.strip():
            continue
        [(schema, event)] = json.loads(line).items()
        envelope = event["envelope"]
        name = envelope.get("cluster") or cluster
        body = {key: value for key, value in event.items() if key != "envelope"}
        fact = (name, schema, envelope["event_time_ms"], json.dumps(body, sort_keys=True))
        if fact not in known:
            known.add(fact)
            yield name, schema, event


def clusters(lines: Iterable[str], cluster: str | None = None) -> dict[str, Cluster]:
    """The clusters that the events tell of."""
    told: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for name, schema, event in read(lines, cluster):
        told[name][schema].append(event)
    return {name: fold(name, by_schema) for name, by_schema in sorted(told.items())}


def time(event: dict) -> int:
    return int(event["envelope"]["event_time_ms"])


def reaches(schema: str, event: dict) -> int:
    """Up to when the event shows that the cluster was observed."""
    if schema == "step_report":
        return time(event) + int(event.get("duration_us", 0)) // 1000
    if schema == "pool_sample":
        return time(event) + int(event.get("interval_ms", 0))
    if schema == "gpu_sample_batch":
        return int(event["first_tick_ms"]) + sum(map(int, event.get("tick_delta_ms", [])))
    if event.get("kind") == "PRICE_SET":
        # What a price says of the future says nothing about the future having been observed.
        return min(time(event), int(event.get("entered_ms", time(event))))
    return time(event)


def fold(name: str, told: dict[str, list]) -> Cluster:
    is_watched = any(event["kind"] == "COLLECTOR_STARTED" for event in told["node_event"])
    silent = {"pool_sample"} if is_watched else {"gpu_sample_batch", "step_report"}
    ends = [reaches(schema, event) for schema, events in told.items() if schema not in silent for event in events]
    starts = [min(time(event), reaches(schema, event)) for schema, events in told.items() for event in events]
    cluster = Cluster(name, min(starts), max(ends))
    add_nodes(cluster, told["node_event"])
    add_reservations(cluster, told["capacity_event"])
    for event in told["gpu_sample_batch"]:
        add_batch(cluster, event)
    by_job = defaultdict(list)
    for event in told["job_event"]:
        if event.get("job_id"):
            by_job[event["job_id"]].append(event)
    for job_id, events in by_job.items():
        cluster.jobs[job_id], runs = job_of(job_id, events)
        add_holds(cluster, cluster.jobs[job_id], runs, events)
    for event in told["step_report"]:
        cluster.steps.append(step_of(event))
    return cluster


def add_nodes(cluster: Cluster, events: list[dict]) -> None:
    for event in sorted(events, key=time):
        node = cluster.nodes.setdefault(event["node"], Node(event["node"]))
        at, kind = time(event), event["kind"]
        if kind in ("NODE_REGISTERED", "NODE_REMOVED") and node.spans and node.spans[-1].end is None:
            node.spans[-1].end = at
        if kind == "NODE_REGISTERED":
            # What a registration does not say stays as it was.
            before = node.spans[-1] if node.spans else Span(at, at, 0)
            pools = tuple(p for p in event.get("pool", "").split(",") if p) or before.pools
            node.spans.append(Span(at, None, int(event.get("gpus_milli", before.gpus_milli)), pools))
        elif kind == "STATE_CHANGED":
            node.states.append((at, event.get("state")))
        elif kind == "COLLECTOR_STARTED":
            minute = at // MINUTE * MINUTE
            cluster.watched_from = min(minute, cluster.watched_from or minute)
        elif kind == "DEVICE_LOST":
            node.lost.append(Lost(event["gpu_uuid"], at, None))
        elif kind == "DEVICE_FOUND":
            for lost in node.lost:
                if lost.device == event["gpu_uuid"] and lost.end is None:
                    lost.end = at


def names(text: str | None) -> frozenset[str]:
    return frozenset(part for part in (text or "").split(",") if part)


def add_reservations(cluster: Cluster, events: list[dict]) -> None:
    """A reservation is known by its owner and name, or else by owner, pool and model. It is in force from when it is
    told of, but not before it begins, to its end, its removal or its replacement."""
    in_force: dict[tuple, Reservation] = {}
    for event in sorted(events, key=time):
        if event["kind"] not in ("RESERVATION_SET", "RESERVATION_REMOVED"):
            continue
        at = time(event)
        key = (event.get("owner"), event["name"]) if event.get("name") else (
            event.get("owner"), event.get("pool"), event.get("gpu_model"))
        before = in_force.pop(key, None)
        if before is not None:
            before.end = at if before.end is None else min(at, before.end)
        if event["kind"] == "RESERVATION_SET":
            end = event.get("end_ms")
            in_force[key] = Reservation(
                max(at, int(event.get("start_ms", at))),
                None if end is None else int(end),
                names(event.get("nodes")),
                event.get("pool") or None,
                int(event.get("gpus_milli", 0)),
                names(event.get("accounts")),
                names(event.get("users")),
                "MAINT" in names(event.get("flags")),
            )
            cluster.reservations.append(in_force[key])


def add_holds(cluster: Cluster, job: Job, runs: list, events: list[dict]) -> None:
    """DEVICE_HELD to DEVICE_RELEASED; where no release came, to the end of its attempt."""
    released = {e["hold_id"]: time(e) for e in events if e["kind"] == "DEVICE_RELEASED"}
    for event in events:
        if event["kind"] != "DEVICE_HELD":
            continue
        index = event.get("gpu_index")
        quality = event.get("hold_quality")
        share = 1000 if quality == "EXACT" else int(event.get("share_milli", 1000))
        end = released.get(event["hold_id"])
        if end is None:
            end = end_of_run(runs, event, time(event))
        cluster.holds.append(Hold(
            job.job_id, event["node"], event.get("gpu_uuid") or f"#{index}", event.get("mig_uuid") or None,
            time(event), end, share, quality == "UNKNOWN", event.get("step_id"),
            None if index is None else int(index),
        ))


def end_of_run(runs: list, event: dict, at: int) -> int | None:
    """The end of the run that a hold without an end belongs to; a resize is no end. A hold that names no
    attempt is of the first run that ends after it begins."""
    attempt_id = event.get("attempt_id")
    if attempt_id is not None:
        return next((run.end for run in runs if str(attempt_id) in run.attempt_ids), None)
    return next((run.end for run in runs if run.end is None or at < run.end), None)


def step_of(event: dict) -> Step:
    def number(name: str) -> int:
        return int(event.get(name, 0))

    return Step(
        event["job_id"], event.get("node"), number("rank"), number("step"), time(event), number("duration_us"),
        number("compute_us"), number("communication_us"), number("data_wait_us"), number("checkpoint_us"),
        number("restore_us"),
    )
