"""A seeded year of Slurm accounting, and how DuckDB reads such a file.

Made to hold every shape that accounting has: arrays, steps, requeues, heterogeneous jobs, jobs that wait, run, or were
cancelled before they started, typed and untyped GPUs, and jobs that got other devices than they asked for.
"""

import random
from datetime import UTC, datetime
from pathlib import Path

COLUMNS = (
    "JobID|JobName|User|Account|Partition|QOS|Submit|Eligible|Start|End|State|ExitCode|ReqTRES|AllocTRES|NodeList|Timelimit|"
    "Reason|Priority"
)
YEAR_START_S = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp())
YEAR_S = 366 * 86_400
ENDS = [
    ("COMPLETED", "0:0", 70),
    ("FAILED", "1:0", 12),
    ("CANCELLED by 1007", "0:15", 8),
    ("TIMEOUT", "0:0", 5),
    ("OUT_OF_MEMORY", "0:125", 3),
    ("DEADLINE", "0:0", 2),
]


class Record:
    """One accounting record: a job, an array task, or one of several attempts."""

    def __init__(self, dice: random.Random, job_id: str, submit_s: int, task: int | None = None):
        self.job_id, self.task, self.submit_s = job_id, task, submit_s
        self.account = f"team{dice.randrange(12):02}"
        self.user = f"user{dice.randrange(60):02}"
        self.partition = dice.choice(["a100", "h100", "cpu"])
        self.asked = 0 if self.partition == "cpu" else dice.choice([1, 1, 1, 2, 4, 8, 8, 16, 64])
        # A job may be given whole nodes.
        self.held = 8 if 0 < self.asked < 8 and dice.random() < 0.05 else self.asked
        self.start_s = submit_s + int(dice.lognormvariate(6, 2))
        self.end_s = self.start_s + int(dice.lognormvariate(8, 1.7))
        names, exits, weights = zip(*ENDS)
        self.state, self.exit = dice.choices(list(zip(names, exits)), weights)[0]
        self.never_started = self.state.startswith("CANCELLED") and dice.random() < 0.4
        self.typed = dice.randrange(3)
        self.steps = dice.random() < 0.5

    def again(self, dice: random.Random) -> "Record":
        """The job goes back to the queue; what follows is a record of its own under the same id."""
        self.state, self.exit, self.never_started = dice.choice(["REQUEUED", "NODE_FAIL", "PREEMPTED"]), "0:0", False
        follower = Record(dice, self.job_id, self.end_s, self.task)
        for name in ("account", "user", "partition", "asked", "held", "typed"):
            setattr(follower, name, getattr(self, name))
        return follower

    def lines(self, at_s: int) -> list[str]:
        """What accounting shows of the record at some time."""
        if self.never_started and self.end_s <= at_s:
            return [self._line(self.job_id, self.end_s, self.end_s, self.state, "")]
        if self.start_s > at_s or self.never_started:
            return [self._line(self.job_id, None, None, "PENDING", "")]
        end_s, state = (self.end_s, self.state) if self.end_s <= at_s else (None, "RUNNING")
        lines = [self._line(self.job_id, self.start_s, end_s, state, self._tres(self.held))]
        for step in ("batch", "extern", "0") if self.steps else ():
            lines.append(self._line(f"{self.job_id}.{step}", self.start_s, end_s, state, self._tres(self.held)))
        return lines

    def _tres(self, gpus: int) -> str:
        typed = f"gres/gpu:{self.partition}={gpus}"
        shapes = [f"gres/gpu={gpus}", typed, f"gres/gpu={gpus},{typed}"]
        devices = f"{shapes[self.typed]}," if gpus else ""
        return f"billing={gpus + 8},cpu=8,{devices}mem=64G,node=1"

    def _line(self, job_id: str, start_s: int | None, end_s: int | None, state: str, alloc: str) -> str:
        step = "." in job_id
        who = ["batch", "", self.account, "", ""] if step else ["train", self.user, self.account, self.partition, "normal"]
        submit_s = start_s if step else self.submit_s
        times = [sacct_time(submit_s), sacct_time(submit_s), sacct_time(start_s), sacct_time(end_s)]
        exit_code = self.exit if end_s else "0:0"
        nodes = "gpu[01-02]" if alloc and self.held > 8 else "gpu03" if alloc else "None assigned"
        reason = "Resources" if state == "PENDING" else "None"
        request = "" if step else self._tres(self.asked)
        limit = "" if step else "2-00:00:00"
        return "|".join([job_id, *who, *times, state, exit_code, request, alloc, nodes, limit, reason, "" if step else "4711"])


def sacct_time(time_s: int | None) -> str:
    return "Unknown" if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Year:
    """The records of a year, from a seed."""

    def __init__(self, seed: int, jobs: int):
        dice = random.Random(seed)
        self.records: list[Record] = []
        number = 1000
        while len(self.records) < jobs:
            number += 1
            submit_s = YEAR_START_S + int(dice.random() * YEAR_S)
            shape = dice.random()
            if shape < 0.03:
                array = [Record(dice, f"{number}_{task}", submit_s, task) for task in range(1, dice.randrange(3, 12))]
                # Tasks of an array ask for the same, and wait together.
                for task in array[1:]:
                    for name in ("account", "user", "partition", "asked", "held", "typed"):
                        setattr(task, name, getattr(array[0], name))
                self.records += array
            elif shape < 0.04:
                self.records += [Record(dice, f"{number}+{part}", submit_s) for part in range(2)]
            else:
                record = Record(dice, str(number), submit_s)
                self.records.append(record)
                while dice.random() < 0.06 and not record.never_started:
                    record = record.again(dice)
                    self.records.append(record)

    def write(self, file: Path, at_s: int) -> None:
        """`sacct --allusers --duplicates --parsable2` at some time."""
        lines = [COLUMNS]
        waiting: dict[str, list[Record]] = {}
        for record in self.records:
            if record.submit_s > at_s:
                continue
            array = record.job_id.partition("_")[0] if record.task is not None else None
            if array and record.lines(at_s)[0].split("|")[10] == "PENDING":
                waiting.setdefault(array, []).append(record)
            else:
                lines += record.lines(at_s)
        for array, tasks in waiting.items():
            # Slurm shows the tasks that still wait as one record.
            first = tasks[0].lines(at_s)[0].partition("|")[2]
            numbers = ",".join(str(task.task) for task in tasks)
            listed = f"{tasks[0].task}-{tasks[-1].task}" if len(tasks) > tasks[-1].task - tasks[0].task else numbers
            lines.append(f"{array}_[{listed}%2]|{first}")
        file.write_text("\n".join(lines) + "\n")


END_S = YEAR_START_S + YEAR_S
MIDDLE_S = YEAR_START_S + YEAR_S // 2

ATTEMPTS = r"""
WITH records AS (
    SELECT *, regexp_extract(JobID, '^(\d+)_\[([^\]%]*)', ['array', 'tasks']) AS pending FROM source WHERE JobID NOT LIKE '%.%'
), parts AS (
    SELECT *, string_split(unnest(CASE WHEN pending.tasks = '' THEN ['0'] ELSE string_split(pending.tasks, ',') END), '-') AS part
    FROM records
), tasks AS (
    SELECT *, unnest(generate_series(part[1]::BIGINT, part[-1]::BIGINT)) AS task FROM parts
), counted AS (
    SELECT *,
           coalesce(nullif(regexp_extract(ReqTRES, '(?:^|,)gres/gpu=(\d+)', 1), '')::BIGINT,
                    list_sum(regexp_extract_all(ReqTRES, 'gres/gpu:\w+=(\d+)', 1)::BIGINT[]), 0) AS asked,
           coalesce(nullif(regexp_extract(AllocTRES, '(?:^|,)gres/gpu=(\d+)', 1), '')::BIGINT,
                    list_sum(regexp_extract_all(AllocTRES, 'gres/gpu:\w+=(\d+)', 1)::BIGINT[]), 0) AS held,
           epoch_ms(Submit::TIMESTAMP) AS submit_ms,
           epoch_ms(nullif("Start", 'Unknown')::TIMESTAMP) AS start_all_ms,
           epoch_ms(nullif("End", 'Unknown')::TIMESTAMP) AS end_ms
    FROM tasks
)
SELECT 'prod' AS cluster, CASE WHEN pending.tasks = '' THEN JobID ELSE pending.array || '_' || task END AS job_id,
       "Account" AS team, "User" AS user_name, "Partition" AS pool, asked * 1000 AS asked_milli, held * 1000 AS held_milli,
       submit_ms, CASE WHEN AllocTRES <> '' THEN start_all_ms END AS start_ms, end_ms,
       CASE WHEN end_ms IS NULL THEN NULL WHEN State LIKE 'CANCELLED%' THEN 'CANCELLED' WHEN State = 'DEADLINE' THEN 'TIMEOUT'
            ELSE State END AS final_state
FROM counted
"""
