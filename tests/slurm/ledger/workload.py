"""What happens at the site: jobs of many shapes, and what users and administrators do to them and to nodes.

All of it follows from a seed and the length of the run; Slurm decides what becomes of it.
"""

import random
import time
from collections.abc import Callable

from processes import Site

Step = tuple[float, str, Callable[[], None]]
# Runs for long enough to be requeued, and for a while when it runs again.
TO_BE_REQUEUED = '[ "$SLURM_RESTART_COUNT" ] && sleep 6 || sleep 90'


class Workload:
    def __init__(self, site: Site, seconds: float, seed: int):
        self.site, self.slurm, self.seconds = site, site.slurm, seconds
        self.random = random.Random(seed)
        self.submitted = 0
        # Jobs to which something is to be done, by the name of the deed.
        self.chosen: dict[str, str] = {}

    def submit(self, *options: str, script: str = "true") -> str:
        self.submitted += 1
        fixed = ("--parsable", "--output=/dev/null", "--error=/dev/null", "--chdir=/", "--time=3")
        return self.slurm.run("sbatch", *fixed, *options, f"--wrap={script}").strip().partition(";")[0]

    def scontrol(self, *words: str) -> None:
        self.slurm.run("scontrol", *words)

    def node(self, name: str, state: str) -> None:
        self.scontrol("update", f"NodeName={name}", f"State={state}", *(
            [] if state == "RESUME" else ["Reason=row remap failure = 1"]))

    def reserve(self, name: str, nodes: str, begin_s: int, last_s: int, *more: str) -> None:
        start = "now" if begin_s == 0 else f"now+{begin_s}seconds"
        # Slurm counts reservations in minutes unless it is given an end.
        end = f"now+{begin_s + last_s}seconds"
        self.scontrol("create", "reservation", f"ReservationName={name}", f"Nodes={nodes}", f"StartTime={start}",
                      f"EndTime={end}", f"Users={self.slurm.user}", *more)

    def run(self, collectors: list[Step]) -> None:
        """Does all that is due, in order, until the time is over."""
        steps = sorted([*self.jobs(), *self.deeds(), *collectors], key=lambda step: step[0])
        begun = time.monotonic()
        for due, what, step in steps:
            time.sleep(max(0.0, begun + due - time.monotonic()))
            try:
                step()
            except RuntimeError as error:
                # Slurm may refuse: the job that was chosen has ended, the node is no longer drained.
                print(f"{time.monotonic() - begun:6.0f} s  {what} was refused: {error}", flush=True)
        time.sleep(max(0.0, begun + self.seconds - time.monotonic()))

    def jobs(self) -> list[Step]:
        """A steady stream, one every eight seconds or so, of all shapes in turn."""
        shapes = [self.single, self.gang, self.array, self.uneven, self.single, self.heterogeneous, self.limited,
                  self.single, self.wide, self.no_gpu, self.held, self.single, self.inference, self.gang, self.begins_later]
        self.random.shuffle(shapes)
        due, steps = 1.0, []
        while due < self.seconds - 10:
            shape = shapes[len(steps) % len(shapes)]
            steps.append((due, shape.__name__, shape))
            due += self.random.uniform(4, 12)
        return steps

    def sleep(self, least: int, most: int) -> str:
        return f"sleep {self.random.randint(least, most)}"

    def single(self) -> None:
        gpus = self.random.choice([1, 1, 2, 3, 5, 8])
        self.submit(f"--gres=gpu:{gpus}", script=self.sleep(5, 45))

    def gang(self) -> None:
        nodes, gpus = self.random.choice([(2, 4), (3, 8), (4, 8), (2, 8), (3, 3)])
        self.submit(f"--nodes={nodes}", f"--gres=gpu:h200:{gpus}", script=self.sleep(10, 30))

    def wide(self) -> None:
        """As many nodes as there are, while something small runs on one of them: idle nodes beside it."""
        self.submit("--gres=gpu:3", script=self.sleep(30, 45))
        self.submit("--nodes=4", "--gres=gpu:8", script=self.sleep(5, 10))

    def array(self) -> None:
        self.submit("--array=0-5%2", "--gres=gpu:1", script=self.sleep(4, 9))

    def uneven(self) -> None:
        """Nine GPUs on two nodes, as Slurm sees fit."""
        self.submit("--gpus=9", "--nodes=2", script=self.sleep(10, 25))

    def heterogeneous(self) -> None:
        self.submit("--gres=gpu:1", ":", "--gres=gpu:2", script=self.sleep(5, 15))

    def limited(self) -> None:
        """Two of a QOS of which a user may run one."""
        for _ in range(2):
            self.submit("--qos=single", "--gres=gpu:2", script=self.sleep(15, 25))

    def no_gpu(self) -> None:
        self.submit(script="sleep 5")

    def held(self) -> None:
        job = self.submit("--hold", "--gres=gpu:4", script="sleep 5")
        if self.random.random() < 0.5:
            self.slurm.run("scancel", job)
        else:
            self.scontrol("release", job)

    def inference(self) -> None:
        self.submit("--partition=infer", "--gres=gpu:a100:2", script=self.sleep(10, 40))

    def begins_later(self) -> None:
        self.submit("--begin=now+15seconds", "--gres=gpu:2", script=self.sleep(5, 10))

    def deeds(self) -> list[Step]:
        """What is done to jobs and nodes, in parts of the run; a long run has each several times."""
        rounds = max(1, round(self.seconds / 450))
        length = self.seconds / rounds
        return [(length * (number + part), what, lambda deed=deed, number=number: deed(number))
                for number in range(rounds) for part, what, deed in self.round()]

    def round(self) -> list[tuple[float, str, Callable[[int], None]]]:
        span = self.seconds / max(1, round(self.seconds / 450))
        lasts = max(12, int(span * 0.1))
        return [
            (0.08, "submit what is requeued", lambda n: self.choose("requeue", "--requeue", "--gres=gpu:2")),
            (0.10, "reserve n5 for a user", lambda n: self.reserve(f"own-{n}", "n5", 0, lasts)),
            (0.15, "requeue", lambda n: self.requeue()),
            (0.20, "drain n3", lambda n: self.node("n3", "DRAIN")),
            (0.24, "maintenance of n2 now",
             lambda n: self.reserve(f"now-{n}", "n2", 0, lasts, "Flags=MAINT,IGNORE_JOBS")),
            (0.25, "maintenance of n4 later",
             lambda n: self.reserve(f"later-{n}", "n4", int(span * 0.2), lasts, "Flags=MAINT,IGNORE_JOBS")),
            (0.26, "maintenance beyond the end", lambda n: self.reserve(
                f"beyond-{n}", "n1,n2", int(self.seconds) + 7200, 3600, "Flags=MAINT,IGNORE_JOBS")),
            (0.33, "resume n3", lambda n: self.node("n3", "RESUME")),
            (0.38, "submit what is suspended", lambda n: self.choose("suspend", "--gres=gpu:2")),
            (0.44, "suspend", lambda n: self.scontrol("suspend", self.chosen["suspend"])),
            (0.50, "resume a job", lambda n: self.scontrol("resume", self.chosen["suspend"])),
            (0.52, "submit what is cancelled", lambda n: self.choose("cancel", "--gres=gpu:4")),
            (0.58, "cancel", lambda n: self.slurm.run("scancel", self.chosen["cancel"])),
            (0.60, "submit what shrinks", lambda n: self.choose("shrink", "--nodes=3", "--gres=gpu:1")),
            (0.66, "shrink", lambda n: self.shrink()),
            (0.70, "n4 down", lambda n: self.node("n4", "DOWN")),
            (0.78, "resume n4", lambda n: self.node("n4", "RESUME")),
            (0.80, "reserve n2 and release it early", lambda n: self.reserve(f"early-{n}", "n2", 0, 600)),
            (0.86, "release n2", lambda n: self.scontrol("delete", f"ReservationName=early-{n}")),
            (0.88, "drain n1 twice", lambda n: self.node("n1", "DRAIN")),
            (0.93, "resume n1", lambda n: self.node("n1", "RESUME")),
        ]

    def choose(self, deed: str, *options: str) -> None:
        self.chosen[deed] = self.submit(*options, "--nice=-100", script=TO_BE_REQUEUED)

    def requeue(self) -> None:
        job = self.chosen["requeue"]
        self.scontrol("requeue", job)
        time.sleep(3)
        # Slurm puts it off by two minutes.
        self.scontrol("update", f"JobId={job}", "StartTime=now")

    def shrink(self) -> None:
        job = self.chosen["shrink"]
        nodes = self.slurm.run("scontrol", "show", "hostnames", self.slurm.run(
            "squeue", "--noheader", "--format=%N", "--jobs", job).strip()).split()
        if not nodes:
            raise RuntimeError(f"job {job} holds no node")
        self.scontrol("update", f"JobId={job}", f"NodeList={nodes[0]}")

    def conclude(self) -> None:
        """Leaves the site as it is to stay: nodes drained and in maintenance, a job that runs and a gang that
        waits beside it, and one of a QOS that waits for another one to end."""
        for text in self.slurm.run("squeue", "--noheader", "--format=%A").split():
            self.slurm.run("scancel", text)
        self.node("n3", "DRAIN")
        self.reserve("stays", "n2", 0, 7200, "Flags=MAINT,IGNORE_JOBS")
        stay = ("--time=60", "sleep 3600")
        runs = [self.submit("--nodelist=n1", "--gres=gpu:3", stay[0], script=stay[1])]
        limited = [self.submit("--qos=single", "--partition=infer", "--gres=gpu:a100:1", stay[0], script=stay[1])
                   for _ in range(2)]
        self.settle([*runs, limited[0]], limited[1:])
        gang = self.submit("--nodes=2", "--gres=gpu:8", stay[0])
        self.settle([*runs, limited[0]], [*limited[1:], gang])

    def settle(self, runs: list[str], waits: list[str]) -> None:
        """Waits until these jobs run and those wait, and there are no others."""
        expected = {f"{job} R" for job in runs} | {f"{job} PD" for job in waits}
        until = time.monotonic() + 120
        while time.monotonic() < until:
            lines = self.slurm.run("squeue", "--noheader", "--format=%A %t").split("\n")
            if {line.strip() for line in lines if line.strip()} == expected:
                return
            time.sleep(0.5)
        raise TimeoutError(f"the queue did not settle:\n{self.slurm.run('squeue', '--long')}")
