"""What is seen of a running job: its devices, told in full, in part, by processes only or late; its steps."""

from .builder import MINUTE, NodePlan, Scene


def tell_holds(scene: Scene, job, start: int, end: int | None, attempt: int, named: bool) -> None:
    manner = scene.rng.choice(["none", "none", "full", "full", "part", "processes", "mixed"])
    if manner == "none":
        return
    part = job.gpus_milli if job.gpus_milli < 1000 else None
    for node in [n for n in scene.nodes if n.name in job.placed]:
        if not named and manner in ("processes", "mixed"):
            continue
        devices = job.placed[node.name]
        if manner == "part":
            # One node may be told and the other not; or some devices of it.
            devices = devices[: scene.rng.randint(0, len(devices))]
        for device in devices:
            is_process = manner == "processes" or (manner == "mixed" and scene.chance(0.5))
            tell_hold(scene, job, node, device, start, end, attempt, is_process, part)


def tell_hold(scene: Scene, job, node: NodePlan, device: int, start: int, end: int | None, attempt: int,
              is_process: bool, part: int | None) -> None:
    rng = scene.rng
    agent = is_process or (node.agent_from is not None and scene.chance(0.3))
    begin = start
    if scene.chance(0.15) or is_process:
        # Told late: the agent saw it later than the scheduler gave it.
        begin = scene.time(start, min(end or scene.end, start + MINUTE))
    quality = "UNKNOWN" if is_process else "SHARED_ESTIMATED" if part else "EXACT"
    known = {"gpu_uuid": node.uuid(device)} if agent else {"gpu_index": device}
    if agent and scene.chance(0.6):
        # An agent knows the driver's number too, and no attempts.
        known |= {"gpu_index": device}
        attempt = None
    place = len(node.booked(device, start, end or scene.end)) - 1
    hold = {
        "hold_id": f"{'pid' if is_process else 'slurm'}/{job.job_id}/{start}/{node.name}/{device}",
        "hold_quality": quality, "hold_evidence": "pid" if is_process else rng.choice(["slurm", "cgroup"]),
        "share_milli": part if part and not is_process else None, "node": node.name,
        "attempt_id": attempt, "mig_uuid": node.slice_uuid(device, place), **known,
    }
    source = f"agent/{node.name}" if agent else "watch/slurm"
    begin = scene.job(begin, "DEVICE_HELD", job.job_id, source=source, **hold)
    if end is not None and scene.chance(0.7):
        scene.job(max(end, begin + scene.quantum), "DEVICE_RELEASED", job.job_id, source=source, **hold)


def tell_steps(scene: Scene, job, start: int, end: int) -> None:
    """Each rank has one GPU and tells its steps, one after the other."""
    rng, rank = scene.rng, 0
    length = rng.choice([2_000, 5_000, 7_008, 10_000, 90_000])
    first = scene.time(start, min(start + 3 * length, end))
    number = rng.randrange(3)
    world = sum(map(len, job.placed.values()))
    parts = [rng.randrange(0, length // 4, 500) for _ in range(4)]
    for node, devices in sorted(job.placed.items()):
        for _ in devices:
            for place, at in enumerate(range(first, end - length + 1, length)):
                scene.tell(
                    "step_report", at, "python", ("step", job.job_id, rank), job_id=job.job_id, rank=rank,
                    world_size=world, node=node, step=str(number + place), duration_us=str(length * 1000),
                    compute_us=str(parts[0] * 2000), communication_us=str(parts[1] * 1000),
                    data_wait_us=str(parts[2] * 1000), checkpoint_us=str(parts[3] * 1000))
            rank += 1
