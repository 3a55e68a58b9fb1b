#!/usr/bin/env python3
"""Imports GPU history from a real Prometheus and a real VictoriaMetrics, and compares the rows.

    tests/prometheus/run.py --tidegate target/debug/tidegate

What the rows must be is computed in history.py from what the servers were given. install.sh installs
the servers.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import history
import servers

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results import note  # noqa: E402

HERE = Path(__file__).resolve().parent
EXIT_REJECTS = 3


class Importer:
    """The program, with a data folder of its own."""

    def __init__(self, tidegate: Path, data: Path):
        self.tidegate, self.data = tidegate, data
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}

    def run(self, *arguments, status: int = 0) -> str:
        done = subprocess.run([self.tidegate, *arguments, "--data", self.data], env=self.environment, capture_output=True, text=True)
        if done.returncode != status:
            raise AssertionError(f"status {done.returncode}, not {status}: {done.stdout}{done.stderr}")
        return done.stdout

    def samples(self, url: str, first_hour: int, hours: int, status: int, *more) -> dict[str, str]:
        """Imports some hours, asked for from within the hours around them; returns the report."""
        at = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(history.BEGIN_S + hour * history.HOUR_S + past_s))
              for hour, past_s in ((first_hour, -900), (first_hour + hours, 900))]
        text = self.run("import", "samples", "--prometheus", url, "--from", at[0], "--to", at[1], "--cluster", "site", *more,
                        status=status)
        return {line[:17].strip(): line[17:].strip() for line in text.splitlines()}

    def sql(self, query: str) -> list[dict]:
        return [json.loads(line) for line in self.run("sql", "--format", "jsonl", query).splitlines()]

    def rows(self) -> list[dict]:
        """The samples, each with the growth of its minute, which no other sample shares."""
        columns = ", ".join(f"s.{column}" for column in history.COLUMNS)
        return self.sql(
            f"SELECT s.node, s.gpu_uuid, coalesce(s.mig_uuid, '') AS mig_uuid, s.gpu_index, s.interval_us, m.energy_mj AS growth, "
            f"CAST(to_unixtime(s.event_time) * 1000 AS BIGINT) AS time, {columns} FROM gpu_samples s JOIN gpu_1m m "
            "ON m.window_start = s.event_time AND m.node = s.node AND m.gpu_uuid = s.gpu_uuid AND "
            "coalesce(m.mig_uuid, '') = coalesce(s.mig_uuid, '') ORDER BY 1, 2, 3, time"
        )


def expect(seen, wanted, what: str) -> None:
    if seen == wanted:
        return
    if isinstance(seen, list):
        first = next((pair for pair in zip(seen, wanted) if pair[0] != pair[1]), "one is longer")
        raise AssertionError(f"{what}: {len(seen)} rows, {len(wanted)} expected; first difference: {first}")
    raise AssertionError(f"{what}: {seen!r}, not {wanted!r}")


def imports(tidegate: Path, folder: Path, server: servers.Server, devices: list[history.Device]) -> str:
    """The first hours, these and one more, and all again."""
    site = Importer(tidegate, folder)
    report = site.samples(server.url, 0, 3, EXIT_REJECTS)
    expect(report["series rejected"], "2", "series that name no GPU")
    expect(report["not used"], "DCGM_FI_DEV_VGPU_LICENSE_STATUS", "names without a metric")
    expect(site.rows(), history.expected(devices, 0, 3), "rows of three hours")
    # What is there is not doubled, and the hours after it go on.
    site.samples(server.url, 1, history.HOURS - 1, 0)
    wanted = history.expected(devices)
    expect(site.rows(), wanted, "rows after more hours")
    again = site.samples(server.url, 1, history.HOURS - 1, 0)
    expect(again["events written"], "0", "events written by a second import")
    expect(site.rows(), wanted, "rows after a second import")

    sampled = site.sql("SELECT count(*) AS samples, sum(us_sampled) AS us FROM gpu_1m")
    expect(sampled, [{"samples": len(wanted), "us": sum(row["interval_us"] for row in wanted)}], "gpu_1m")
    xids = site.sql("SELECT node, gpu_uuid, xid, CAST(to_unixtime(event_time) * 1000 AS BIGINT) AS time FROM xids")
    at = (history.BEGIN_S + 2 * history.HOUR_S) * 1_000
    expect(xids, [{"node": "n1", "gpu_uuid": "GPU-aaaa", "xid": 79, "time": at}], "xids")
    letters = site.sql("SELECT DISTINCT origin, code, reason FROM dead_letters ORDER BY reason")
    reasons = ["its label gpu is no number", "it has no label UUID"]
    expect(letters, [{"origin": server.url, "code": "BAD_SERIES", "reason": reason} for reason in sorted(reasons)], "dead letters")
    return f"{len(wanted)} rows as expected"


def reads(tidegate: Path, folder: Path, server: servers.Server, devices: list[history.Device]) -> str:
    """The same rows by remote read, where the server has it; a clear refusal where it has none."""
    site = Importer(tidegate, folder)
    if server.process.args[0] != "prometheus":
        at = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(history.BEGIN_S + hour * history.HOUR_S)) for hour in (0, 1)]
        command = [tidegate, "import", "samples", "--prometheus", server.url, "--remote-read", "--from", at[0], "--to", at[1],
                   "--cluster", "site", "--data", folder]
        done = subprocess.run(command, env=site.environment, capture_output=True, text=True)
        said = "leave out --remote-read"
        if done.returncode != 1 or said not in done.stderr:
            raise AssertionError(f"status {done.returncode}, without {said!r}: {done.stdout}{done.stderr}")
        return "refused with advice, as it has none"
    report = site.samples(server.url, 0, history.HOURS, EXIT_REJECTS, "--remote-read")
    expect(report["series rejected"], "2", "series that name no GPU")
    wanted = history.expected(devices)
    expect(site.rows(), wanted, "rows by remote read")
    # What queries give is there already, event for event.
    again = site.samples(server.url, 0, history.HOURS, EXIT_REJECTS)
    expect(again["events written"], "0", "events written by queries after a remote read")
    # Matchers are taken apart here, and by the server for queries.
    for matcher in ('{instance="n1:9400"}', '{instance=~"n[12]:.+", Hostname!~"n\\\\d", gpu!="7",}'):
        both = []
        for name, more in (("read", ["--remote-read"]), ("asked", [])):
            one = Importer(tidegate, folder.with_name(f"{folder.name}-{name}"))
            one.run("import", "samples", "--prometheus", server.url, "--cluster", "site", "--matcher", matcher, *more,
                    "--from", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(history.BEGIN_S)),
                    "--to", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(history.BEGIN_S + history.HOUR_S)), "--allow-rejects")
            both.append(one.rows())
            shutil.rmtree(one.data)
        expect(both[0], both[1], f"rows with {matcher}")
        if not both[0] or len(both[0]) == len(history.expected(devices, 0, 1)):
            raise AssertionError(f"{matcher} chooses nothing, or everything")
    return f"{len(wanted)} rows as expected"


def chooses(tidegate: Path, folder: Path, server: servers.Server, devices: list[history.Device]) -> str:
    """One node, by a matcher and another label for its name."""
    site = Importer(tidegate, folder)
    site.samples(server.url, 0, 1, 0, "--matcher", '{instance="n1:9400"}', "--node-label", "instance")
    wanted = [row | {"node": "n1:9400"} for row in history.expected(devices, 0, 1) if row["node"] == "n1"]
    expect(site.rows(), wanted, "rows of one node")
    return f"{len(wanted)} rows as expected"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True, help="the program to import with")
    options = parser.parse_args()
    subprocess.run([HERE / "install.sh"], check=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tidegate-prometheus-") as scratch:
        for start in (servers.prometheus, servers.victoria_metrics):
            devices = history.made(with_nan=start is servers.prometheus)
            folder = Path(scratch) / start.__name__
            server = start(folder, history.openmetrics(devices))
            try:
                for check in (imports, chooses, reads):
                    since = time.monotonic()
                    try:
                        outcome, said = "passed", check(options.tidegate.resolve(), folder / check.__name__, server, devices)
                    except Exception as error:
                        traceback.print_exc()
                        outcome, said, failed = "failed", str(error).partition("\n")[0], failed + 1
                    name = f"{start.__name__}: {check.__name__}"
                    print(f"{outcome} {name:28} {time.monotonic() - since:5.1f} s  {said}", flush=True)
                    note(outcome, f"import from {name}", said)
            finally:
                server.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
