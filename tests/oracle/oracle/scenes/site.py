"""What a scene's cluster is made of: nodes, their states, reservations, agents and what they sample."""

from .builder import MINUTE, NodePlan, Scene

USABLE = ["IDLE", "MIXED", "ALLOCATED", "IDLE+CLOUD", "MIXED+PLANNED", "ALLOCATED+COMPLETING"]
OTHERS = ["DOWN", "DOWN*", "IDLE+DRAIN", "MIXED+DRAIN", "IDLE*", "IDLE+NO_RESPOND", "DOWN+DRAIN", "IDLE+MAINT",
          "IDLE+POWERED_DOWN", "DOWN+POWERED_DOWN", "UNKNOWN", "FAIL", "IDLE+RESERVED"]
TEAMS = ["ml", "nlp", "vision"]
USERS = ["ann", "bob", "eve"]
# Sevenths of the slices of a GPU: all of it, or with something left.
CUTS = [(4, 3), (3, 3), (3, 2, 2), (2, 1), (1, 1, 1, 1, 1, 1, 1), (3,)]


def build_site(scene: Scene) -> None:
    for name in scene.rng.sample(["n1", "n10", "n2", "n3", "b7", "z"], scene.rng.randint(1, 5)):
        add_node(scene, name)
    for node in scene.nodes:
        add_states(scene, node)
    for number in range(scene.rng.choice([0, 0, 0, 1, 1, 2, 3])):
        add_reservation(scene, f"r{number}")
    for number in range(scene.rng.choice([0, 0, 0, 1, 2])):
        add_commitment(scene, number)
    if scene.chance(0.7):
        scene.watched = True
        add_agents(scene)
    if scene.chance(0.2):
        scene.tell("capacity_event", scene.end + 86_400_000 * 365, "price", ("price",), kind="PRICE_SET",
                   owner="total", contract="OWNED", price_micros_per_gpu_hour="3600000", currency="USD",
                   entered_ms=scene.time())
    if scene.chance(0.5):
        scene.tell("job_event", scene.end, "watch/slurm", ("heartbeat",), kind="OBSERVED")


def some_pools(scene: Scene) -> str | None:
    return scene.rng.choice(["p", "p", "p", "q", "p,q", None])


def register(scene: Scene, at: int, node: str, gpus: int, pools: str | None) -> int:
    return scene.node(at, "NODE_REGISTERED", node, pool=pools, gpu_model="H100", gpus_milli=str(gpus * 1000))


def add_node(scene: Scene, name: str) -> None:
    gpus, pools = scene.rng.choice([1, 2, 2, 4, 4, 8]), some_pools(scene)
    begin = scene.start if scene.chance(0.8) else scene.time()
    begin = register(scene, begin, name, gpus, pools)
    node = NodePlan(name, gpus, pools, begin, scene.end)
    if scene.chance(0.12):
        for device in scene.rng.sample(range(gpus), scene.rng.randint(1, min(2, gpus))):
            node.cut[device] = list(scene.rng.choice(CUTS))
    scene.nodes.append(node)
    if scene.chance(0.12):
        # Registered anew, in another pool or of another size.
        again = scene.time(begin, scene.end)
        larger = gpus * scene.rng.choice([1, 2])
        register(scene, again, name, larger, some_pools(scene))
    elif scene.chance(0.12):
        node.end = scene.node(scene.time(begin, scene.end), "NODE_REMOVED", name)
        if scene.chance(0.5):
            register(scene, scene.time(node.end, scene.end), name, gpus, pools)


def add_states(scene: Scene, node: NodePlan) -> None:
    if scene.chance(0.8):
        scene.node(node.begin, "STATE_CHANGED", node.name, state=scene.rng.choice(USABLE))
    while scene.chance(0.3):
        at = scene.node(scene.time(node.begin, scene.end), "STATE_CHANGED", node.name,
                        state=scene.rng.choice(OTHERS), reason="looked at")
        if scene.chance(0.6):
            scene.node(scene.time(at, scene.end), "STATE_CHANGED", node.name, state=scene.rng.choice(USABLE))


def add_reservation(scene: Scene, name: str) -> None:
    """Of nodes that are there: maintenance now or later, a team's, our own loan; some overlap."""
    told = scene.time()
    start = told if scene.chance(0.5) else told + scene.rng.randrange(0, 5 * MINUTE, scene.quantum)
    end = start + scene.rng.randrange(scene.quantum, 6 * MINUTE, scene.quantum) if scene.chance(0.8) else None
    members = scene.rng.sample(scene.nodes, scene.rng.randint(1, len(scene.nodes)))
    kind = scene.rng.choice(["maintenance", "team", "users", "loan"])
    fields = {
        "name": name, "start_ms": start, "end_ms": end, "nodes": ",".join(sorted(n.name for n in members)),
        "gpus_milli": str(sum(n.gpus for n in members) * 1000),
        "pool": members[0].pools.split(",")[0] if members[0].pools and scene.chance(0.4) else None,
    }
    if kind == "maintenance":
        fields |= {"flags": "MAINT,IGNORE_JOBS,SPEC_NODES", "users": "root"}
    elif kind == "users":
        fields |= {"users": ",".join(scene.rng.sample(USERS, 2)), "flags": "SPEC_NODES"}
    else:
        fields |= {"accounts": scene.rng.choice(TEAMS), "flags": "SPEC_NODES"}
        if kind == "loan":
            fields["name"] = f"tidegate_{name}"
    owner = fields.get("accounts") or fields["users"]
    told = scene.capacity(told, "RESERVATION_SET", owner, **fields)
    if scene.chance(0.25):
        later = scene.time(told, scene.end)
        if scene.chance(0.4):
            # Its users become others: the watcher takes it from its owner first.
            scene.capacity(later, "RESERVATION_REMOVED", owner, name=fields["name"])
            owner = scene.rng.choice([name for name in (*TEAMS, *USERS) if name != owner])
            fields["accounts" if owner in TEAMS else "users"] = owner
        scene.capacity(later, "RESERVATION_SET", owner, **{**fields, "nodes": members[0].name})
    if scene.chance(0.3):
        scene.capacity(scene.time(told, scene.end), "RESERVATION_REMOVED", owner, name=fields["name"])


def add_commitment(scene: Scene, number: int) -> None:
    told = scene.capacity(
        scene.time(), "RESERVATION_SET", "total", name=f"c{number}" if scene.chance(0.7) else None,
        pool=scene.rng.choice(["p", "q", None]), gpus_milli=str(scene.rng.randint(1, 24) * 1000),
        end_ms=scene.time() if scene.chance(0.3) else None)
    if scene.chance(0.3):
        scene.capacity(scene.time(told, scene.end), "RESERVATION_SET", "total", name=f"c{number}", pool="p",
                       gpus_milli=str(scene.rng.randint(0, 24) * 1000))


def add_agents(scene: Scene) -> None:
    """Agents start late, fall silent, have wrong clocks; some nodes have none."""
    late = scene.time() if scene.chance(0.4) else scene.start
    for node in scene.nodes:
        if scene.chance(0.15):
            continue
        node.skew = scene.rng.randrange(-70_000, 70_000, scene.quantum) if scene.chance(0.1) else 0
        node.agent_from = max(node.begin, late if scene.chance(0.7) else scene.time())
        if scene.chance(0.2):
            silent = scene.time(node.agent_from, scene.end)
            node.silent = (silent, scene.time(silent, scene.end))
        scene.node(node.agent_from + node.skew, "COLLECTOR_STARTED", node.name, source=f"agent/{node.name}")
        if scene.chance(0.12):
            device = node.uuid(scene.rng.randrange(node.gpus))
            at = scene.node(scene.time(node.agent_from, scene.end) + max(0, node.skew), "DEVICE_LOST", node.name,
                            gpu_uuid=device)
            if scene.chance(0.5):
                scene.node(scene.time(at, scene.end), "DEVICE_FOUND", node.name, gpu_uuid=device)
        if scene.chance(0.85):
            add_samples(scene, node)


def add_samples(scene: Scene, node: NodePlan) -> None:
    """A batch a minute, a sample each ten seconds; what runs changes from minute to minute."""
    tick = scene.rng.choice([10_000, 20_000])
    first = -(-node.agent_from // tick) * tick
    for begin in range(first, scene.end, MINUTE):
        ticks = [t for t in range(begin, min(begin + MINUTE, scene.end), tick)
                 if t < node.end and not node.silent[0] <= t < node.silent[1]]
        if ticks:
            add_batch(scene, node, ticks, tick)


def sampled_devices(node: NodePlan) -> list[tuple[int, int | None]]:
    """What an agent samples: devices, and of a cut one its slices by place instead."""
    of = [range(len(node.cut[d])) if d in node.cut else [None] for d in range(node.gpus)]
    return [(device, place) for device, places in enumerate(of) for place in places]


def sampled_device(node: NodePlan, device: int, place: int | None) -> dict:
    whole = {"uuid": node.uuid(device), "index": device, "model": "H100"}
    return whole if place is None else {**whole, "mig_uuid": node.slice_uuid(device, place)}


def slice_sizes(sizes: list[int | None], ticks: int) -> dict:
    """The column of slices' sizes; a whole device has none."""
    whole = [{"first": place * ticks, "count": ticks, "reason": "NOT_SUPPORTED"}
             for place, size in enumerate(sizes) if size is None]
    column = {"name": "mig_slice_count", "value_delta": differences([[size or 0] * ticks for size in sizes])}
    return {**column, "missing": whole} if whole else column


def differences(rows: list[list[int]]) -> list[int]:
    return [value - (row[place - 1] if place else 0) for row in rows for place, value in enumerate(row)]


def add_batch(scene: Scene, node: NodePlan, ticks: list[int], tick: int) -> None:
    rng, count = scene.rng, len(ticks)
    # A clock never ticks to the µs.
    took = tick * 1000 - rng.choice([0, 0, rng.randrange(5000)])
    devices = sampled_devices(node)
    busy, processes = [], []
    for _ in devices:
        mood = rng.choice(["busy", "idle", "empty", "mixed", "mixed"])
        busy.append([rng.choice([0, 5_000, 10_000, 900_000]) if mood == "mixed" else 800_000 * (mood == "busy")
                     for _ in ticks])
        processes.append([rng.randrange(2) if mood == "mixed" else int(mood != "empty") for _ in ticks])
    columns = [{"name": "interval_us", "value_delta": differences([[took] * count] * len(devices))},
               {"name": rng.choice(["gpu_util_ppm", "sm_active_ppm"]), "value_delta": differences(busy)}]
    if rng.random() < 0.8:
        columns.append({"name": "process_count", "value_delta": differences(processes)})
    else:
        used = [[rng.choice([0, 100 << 20, (100 << 20) + 1, 8 << 30]) for _ in ticks] for _ in devices]
        columns.append({"name": "framebuffer_used_bytes", "value_delta": differences(used)})
    if rng.random() < 0.1:
        columns[1]["missing"] = [{"first": 0, "count": 1, "reason": "STALE"}]
        columns[1]["value_delta"] = differences([[0, *row[1:]] if place == 0 else row
                                                 for place, row in enumerate(busy)])
    if node.cut:
        columns.append(slice_sizes([node.cut[d][place] if place is not None else None for d, place in devices], count))
    at = ticks[0] + node.skew
    scene.tell("gpu_sample_batch", at, f"agent/{node.name}", ("samples", node.name), node=node.name,
               devices=[sampled_device(node, *device) for device in devices],
               first_tick_ms=at, tick_delta_ms=[b - a for a, b in zip(ticks, ticks[1:], strict=False)],
               columns=columns)
