"""What squeue and scontrol say of jobs, asked again and again beside the watcher and without its code."""

import re
import threading
from collections import defaultdict
from dataclasses import dataclass, field

from processes import Slurm, now_ms

EVERY_S = 0.5


@dataclass
class Seen:
    """What was seen of one job: why it waited, and which GPUs of which nodes it held while it ran."""

    # (when, reason, priority), whenever one of the two is another than before.
    waits: list[tuple[int, str, int]] = field(default_factory=list)
    # (nodes, GPUs on each in thousandths), where the job asks by the node.
    shape: tuple[int, int] | None = None
    # start of the attempt (s) -> node -> numbers of its GPUs there
    gpus: dict[int, dict[str, list[int]]] = field(default_factory=lambda: defaultdict(dict))


class Sampler(threading.Thread):
    def __init__(self, slurm: Slurm):
        super().__init__(daemon=True)
        self.slurm = slurm
        self.jobs: dict[str, Seen] = defaultdict(Seen)
        # node -> (last seen otherwise, first seen so, state), whenever its state is another than before.
        self.states: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        # reservation -> (accounts, users): accounting has only numbers of associations.
        self.admitted: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self.samples = 0
        # The longest time between two answers (ms).
        self.longest_ms = 0
        self.failed: Exception | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        last = now_ms()
        try:
            while not self.stopping.wait(EVERY_S):
                self.waiting()
                self.running()
                self.nodes(last)
                self.reservations()
                self.samples += 1
                at = now_ms()
                self.longest_ms, last = max(self.longest_ms, at - last), at
        except Exception as error:  # noqa: BLE001: whoever stops the thread raises it
            self.failed = error

    def stop(self) -> None:
        self.stopping.set()
        self.join()
        if self.failed:
            raise self.failed

    def waiting(self) -> None:
        text = self.slurm.run("squeue", "--noheader", "--all", "--array", "--states=PENDING",
                              "--format=%i|%r|%Q|%b|%D|%Y")
        at = now_ms()
        for line in text.splitlines():
            job_id, reason, priority, per_node, nodes, _ = line.split("|")
            seen = self.jobs[job_id]
            if not seen.waits or seen.waits[-1][1:] != (reason, int(priority)):
                seen.waits.append((at, reason, int(priority)))
            # gres:gpu:2, gres:gpu:h200:4; one without a number is one.
            asked = re.search(r"gpu(?::[a-z]\w*)?(?::(\d+))?$", per_node)
            if asked and nodes.isdigit():
                seen.shape = (int(nodes), int(asked[1] or 1) * 1000)

    def running(self) -> None:
        """Which GPUs of which nodes running jobs hold: accounting has only how many in all."""
        for line in self.slurm.run("scontrol", "--all", "--details", "--oneliner", "show", "job").splitlines():
            words = line.split()
            fields = dict(word.partition("=")[::2] for word in reversed(words))
            if fields.get("JobState") not in ("RUNNING", "SUSPENDED"):
                continue
            start = max(int(fields["StartTime"]), int(fields["ResizeTime"]) if "ResizeTime" in fields else 0)
            found = self.jobs[name_of(fields)].gpus[start]
            for place, word in enumerate(words):
                if word.startswith("Nodes=") and words[place + 1].startswith("CPU_IDs="):
                    gres = next(w for w in words[place:] if w.startswith("GRES="))
                    # gpu:h200:2(IDX:0,5)
                    devices = [n for inside in re.findall(r"gpu(?::\w+)?:\d+\(IDX:([\d,-]+)\)", gres)
                               for n in numbers(inside)]
                    for node in hosts(word[6:]):
                        found[node] = devices

    def nodes(self, before: int) -> None:
        text = self.slurm.run("scontrol", "--all", "--oneliner", "show", "node")
        at = now_ms()
        for name, state in re.findall(r"^NodeName=(\S+) .*? State=(\S+) ", text, re.MULTILINE):
            states = self.states[name]
            if not states or states[-1][2] != state:
                states.append((before, at, state))

    def reservations(self) -> None:
        def listed(value: str) -> frozenset[str]:
            return frozenset() if value == "(null)" else frozenset(value.split(","))

        text = self.slurm.run("scontrol", "--all", "--oneliner", "show", "reservation")
        for name, users, accounts in re.findall(
                r"^ReservationName=(\S+) .* Users=(\S+) .*Accounts=(\S+) ", text, re.MULTILINE):
            self.admitted[name] = listed(accounts), listed(users)


def name_of(fields: dict[str, str]) -> str:
    """A job as accounting spells it."""
    if "ArrayTaskId" in fields:
        return f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}"
    if "HetJobId" in fields:
        return f"{fields['HetJobId']}+{fields['HetJobOffset']}"
    return fields["JobId"]


def numbers(text: str) -> list[int]:
    """1-3,7 and 0-8:4 in full; what stands after a % is how many at once."""
    found = []
    for part in text.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def hosts(text: str) -> list[str]:
    """n[1-2,4] in full."""
    found = []
    for name, _, inside in re.findall(r"([^,\[]+)(\[([^\]]*)\])?", text):
        found += [f"{name}{number}" for number in numbers(inside)] if inside else [name]
    return found
