"""What a data folder holds: its ledger, and the events that it recorded, as the oracle reads them."""

import csv
import io
import json
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from .model import Row
from .tables import CannotRun

# Columns of samples that the ledger is made of, and of pool samples those that say how far they reach.
SAMPLED = ("interval_us", "gpu_util_ppm", "sm_active_ppm", "process_count", "framebuffer_used_bytes", "mig_slice_count")
TIMES = {"start_time": "start_ms", "end_time": "end_ms", "entered_time": "entered_ms"}
TABLES = {"job_event": "job_events", "node_event": "node_events", "capacity_event": "capacity_events",
          "step_report": "steps", "pool_sample": "pool_samples"}


class Folder:
    """A data folder, read through SQL beside its writer or after it."""

    def __init__(self, tidegate: Path, data: Path):
        self.tidegate, self.data = tidegate, data

    def sql(self, query: str, form: str) -> str:
        done = subprocess.run(
            [self.tidegate, "sql", "--data", self.data, "--format", form, "--max-rows", "100000000", query],
            capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotRun(f"tidegate sql --data {self.data}: {done.stderr.strip()}")
        return done.stdout

    def ledger(self) -> Iterator[Row]:
        for row in csv.DictReader(io.StringIO(self.sql("SELECT * FROM ledger_1m", "csv"))):
            known = {name: value or None for name, value in row.items()}
            yield Row(ms(row["window_start"]), row["cluster"], known["pool"], known["node"], known["gpu_uuid"],
                      known["mig_uuid"], known["team"], known["user_name"], known["job_id"], row["class"],
                      row["formula"], int(row["gpu_ms"]))

    def events(self) -> Iterator[str]:
        """The raw tables, an event a line, as Protobuf's JSON."""
        for schema, table in TABLES.items():
            for line in self.sql(f"SELECT * FROM {table}", "jsonl").split("\n")[:-1]:
                row = {name: value for name, value in json.loads(line).items() if value is not None}
                yield json.dumps({schema: with_envelope(row)})
        yield from self.samples()

    def samples(self) -> Iterator[str]:
        wanted = ", ".join(SAMPLED)
        query = f"SELECT cluster, node, gpu_uuid, gpu_index, mig_uuid, event_time, {wanted} FROM gpu_samples"
        for line in self.sql(query, "jsonl").split("\n")[:-1]:
            row = json.loads(line)
            at = ms(row["event_time"])
            device = {"uuid": row["gpu_uuid"], "index": row.get("gpu_index") or 0, "mig_uuid": row.get("mig_uuid")}
            columns = [{"name": name, "value_delta": [row[name]]} for name in SAMPLED if row.get(name) is not None]
            yield json.dumps({"gpu_sample_batch": {
                "envelope": {"cluster": row["cluster"], "event_time_ms": at}, "node": row["node"], "first_tick_ms": at,
                "devices": [device], "columns": columns}})


def with_envelope(row: dict) -> dict:
    envelope = {"cluster": row.pop("cluster"), "event_time_ms": ms(row.pop("event_time"))}
    body = {TIMES.get(name, name): ms(value) if name in TIMES else value for name, value in row.items()
            if name not in ("source", "epoch", "seq")}
    return {"envelope": envelope, **body}


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
