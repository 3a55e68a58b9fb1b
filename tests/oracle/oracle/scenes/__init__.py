"""Random scenes: what clusters do, from a seed. One scene is one cluster."""

import random

from .builder import Scene
from .site import build_site
from .work import build_work


def make(seed: int) -> list[dict]:
    """The events of scene `seed`, in order of arrival: the same in every run."""
    scene = Scene(f"s{seed:06}", random.Random(seed))
    build_site(scene)
    build_work(scene)
    return scene.arrived()
