"""GPU samples: what a batch says of each device and minute."""

from .model import MINUTE, Cluster, Sampled

# From this share of time on, of kernels or of multiprocessors, a sample is active: 1 %.
ACTIVE_PPM = 10_000
# Where the number of processes is not known, this much memory in use shows that there is one.
USED_BYTES = 100 * 1024 * 1024


def values(column: dict, devices: int, ticks: int) -> list[list[int | None]]:
    """By device and tick. Differences start anew with each device; what could not be read is None."""
    deltas = [int(delta) for delta in column.get("value_delta", [])]
    missing = set()
    for run in column.get("missing", []):
        first = int(run.get("first", 0))
        missing |= set(range(first, first + int(run.get("count", 0))))
    found = []
    for device in range(devices):
        value, row = 0, []
        for tick in range(ticks):
            place = device * ticks + tick
            value += deltas[place]
            row.append(None if place in missing else value)
        found.append(row)
    return found


def kind_of(read: dict[str, int | None]) -> str | None:
    """active if utilisation or SM activity is at least 1 %; otherwise idle if a process is on it (or, where
    the number of processes is not known, more than 100 MiB of its memory are used), else empty; None where
    neither of the first two is known, or neither of the last two."""
    shares = [read.get("gpu_util_ppm"), read.get("sm_active_ppm")]
    if any(share is not None and share >= ACTIVE_PPM for share in shares):
        return "active"
    if all(share is None for share in shares):
        return None
    if read.get("process_count") is not None:
        return "idle" if read["process_count"] > 0 else "empty"
    if read.get("framebuffer_used_bytes") is not None:
        return "idle" if read["framebuffer_used_bytes"] > USED_BYTES else "empty"
    return None


def add_batch(cluster: Cluster, event: dict) -> None:
    """A sample counts wholly in the minute of its time, with its interval."""
    times = [int(event["first_tick_ms"])]
    for delta in event.get("tick_delta_ms", []):
        times.append(times[-1] + int(delta))
    devices = event["devices"]
    columns = {c["name"]: values(c, len(devices), len(times)) for c in event.get("columns", [])
               if c.get("value_delta")}
    for place, device in enumerate(devices):
        uuid, mig = device["uuid"], device.get("mig_uuid") or None
        for tick, at in enumerate(times):
            read = {name: column[place][tick] for name, column in columns.items()}
            key = (event["node"], uuid, mig, at // MINUTE * MINUTE)
            if mig is None:
                cluster.numbers[event["node"], int(device.get("index", 0)), key[3]] = uuid
            sampled = cluster.samples.setdefault(key, Sampled())
            if mig and read.get("mig_slice_count") is not None:
                cluster.sevenths[uuid, mig, key[3]] = read["mig_slice_count"]
            kind, interval = kind_of(read), read.get("interval_us") or 0
            sampled.sampled += interval
            if kind:
                setattr(sampled, kind, getattr(sampled, kind) + interval)
