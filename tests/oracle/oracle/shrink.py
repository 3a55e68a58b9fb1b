"""Makes a scene that differs as small as it gets, by leaving out events."""

from collections.abc import Callable

Differences = Callable[[list[list[dict]]], list[list]]


def shrink(events: list[dict], differences_of: Differences) -> tuple[list[dict], list]:
    """The fewest events found that still differ, and how. Candidates of one round go through one run:
    a run costs much more than a scene."""
    size = max(1, len(events) // 4)
    [found] = differences_of([events])
    while found:
        cuts = [events[:at] + events[at + size:] for at in range(0, len(events), size)]
        cuts = [cut for cut in cuts if cut]
        results = differences_of(cuts) if cuts else []
        smaller = next(((cut, left) for cut, left in zip(cuts, results, strict=True) if left), None)
        if smaller:
            events, found = smaller
        elif size == 1:
            return events, found
        size = max(1, min(size if smaller else size // 2, len(events) // 2))
    return events, found
