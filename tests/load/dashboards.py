#!/usr/bin/env python3
"""200 dashboards beside ingestion.

    tests/load/dashboards.py --tidegate target/release/tidegate [--minutes 10] [--refresh-s 60] [--events-per-s 2000]

Two agents send so many events a second (0: as fast as they are acknowledged): until the tables
reach the present, then a minute alone, then beside 200 dashboards. Each dashboard asks ten
questions, the examples of ten tables, spread over its refresh time. The loop is open: a question is
asked when it is time to, and has taken as long as from then until its answer is there, also where
it had to wait for an earlier one of its dashboard. Prints the times of the answers, what failed,
and how much slower events were acknowledged; then counts every acknowledged event in the tables.
Ends with 1 if a question failed or events were slower by 10 %.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "hostile"))

from load import BATCH, SLOWER_MAX, Flood, fingerprint, flood, stored  # noqa: E402
from victim import wait_until  # noqa: E402

DASHBOARDS = 200
# As `tidegate bench year` asks them.
TABLES = [
    "allocations", "attempts", "queue_delay_1d", "usage_1h", "usage_1d", "ledger_1h", "ledger_1d", "gpu_1m", "gpu_1h", "nodes",
]
# Longest wait for one answer, s.
PATIENCE_S = 60
# The recorded hour is of last year: each day since is computed once events of the present come.
CATCHES_UP_S = 900


class Site:
    """`tidegate up` on an hour of three nodes with GPUs, prices and training jobs."""

    def __init__(self, tidegate: Path, folder: Path):
        self.data = folder / "data"
        made = [tidegate, "bench", "ledger", "--hours", "1", "--nodes", "3", "--keep", self.data, "--json"]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        command = [tidegate, "up", "--ingest", "--data", self.data, "--listen", "127.0.0.1:0", "--no-insight"]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=(folder / "log").open("w"), text=True)
        for line in self.server.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise RuntimeError(f"it did not start: {(folder / 'log').read_text()[-2000:]}")
        threading.Thread(target=self.server.stdout.read, daemon=True).start()

    def close(self) -> None:
        self.server.terminate()
        self.server.wait(60)

    def get(self, path: str) -> bytes:
        door = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        door.request("GET", path, headers={"Accept": "application/json"})
        return door.getresponse().read()

    def rows(self, sql: str) -> list[dict]:
        status, said = asked(http.client.HTTPConnection("127.0.0.1", self.port, timeout=300), sql)
        if status != 200:
            raise RuntimeError(f"{sql}: {status} {said[:300]!r}")
        return json.loads(said)

    def questions(self) -> dict[str, str]:
        """The examples of the tables, as if now were within what is recorded, while jobs run."""
        [newest] = self.rows("SELECT CAST(max(window_start) AS TEXT) AS time FROM gpu_1m")
        now = f"(TIMESTAMPTZ '{newest['time']}' - INTERVAL '20 minutes')"
        described = {table["name"]: table for table in json.loads(self.get("/v1/tables"))["tables"]}
        found = {name: described[name]["example"].replace("now()", now) for name in TABLES}
        for name, sql in found.items():
            if not self.rows(sql):
                raise RuntimeError(f"{name} has no rows: {sql}")
        return found

    def has_caught_up(self) -> bool:
        """Whether the tables reach the present and no earlier window waits to be computed."""
        lag = "count(*) FILTER (WHERE pending_windows > 0) AS behind, max(live_to) > now() - INTERVAL '10 minutes' AS live"
        return self.rows(f"SELECT {lag} FROM table_lag") == [{"behind": 0, "live": True}]


def asked(door: http.client.HTTPConnection, sql: str) -> tuple[int, bytes]:
    door.request("POST", "/v1/sql", sql, {"Accept": "application/json"})
    answer = door.getresponse()
    return answer.status, answer.read()


class Dashboard(threading.Thread):
    """One that asks its questions in turn, each when it is time to."""

    def __init__(self, site: Site, number: int, questions: dict[str, str], refresh_s: float, begin: float, end: float):
        super().__init__()
        self.site, self.questions, self.end = site, list(questions.items()), end
        self.every_s = refresh_s / len(questions)
        # No two begin at the same time.
        self.begin = begin + self.every_s * number / DASHBOARDS
        self.number, self.took, self.failed = number, [], Counter()

    def run(self) -> None:
        door = http.client.HTTPConnection("127.0.0.1", self.site.port, timeout=PATIENCE_S)
        due, turn = self.begin, self.number
        while due < self.end:
            time.sleep(max(0, due - time.monotonic()))
            name, sql = self.questions[turn % len(self.questions)]
            try:
                status, said = asked(door, sql)
            except (OSError, http.client.HTTPException) as error:
                status, said = type(error).__name__, b""
                door.close()
            if status == 200:
                self.took.append((name, time.monotonic() - due))
            else:
                self.failed[f"{name}: {status} {said[:120].decode(errors='replace')}"] += 1
            due, turn = due + self.every_s, turn + 1


def shown(name: str, took: list[float]) -> str:
    took = sorted(took)
    at = lambda share: took[min(len(took) - 1, int(share * len(took)))] * 1000
    return f"{name:16} {len(took):8,} times   p50 {at(0.5):8,.0f} ms   p99 {at(0.99):8,.0f} ms   longest {took[-1] * 1000:8,.0f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True, help="the program to ask")
    parser.add_argument("--minutes", type=float, default=10, help="how long the dashboards ask")
    parser.add_argument("--events-per-s", type=float, default=2000, help="events that arrive; 0 for a flood")
    parser.add_argument("--refresh-s", type=float, default=60, help="how often a dashboard asks all its questions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-dashboards-") as folder:
        site = Site(options.tidegate.resolve(), Path(folder))
        try:
            return play(site, options.minutes * 60, options.refresh_s, options.events_per_s / 2)
        finally:
            site.close()


def play(site: Site, seconds: float, refresh_s: float, events_per_s: float) -> int:
    questions = site.questions()
    floods = [Flood(site, node, events_per_s) for node in ("n1-flood", "n2-flood")]
    for agent in floods:
        for process in agent.threads:
            process.start()
    dashboards: list[Dashboard] = []
    try:
        since = time.monotonic()
        wait_until("the tables reach the present", site.has_caught_up, CATCHES_UP_S)
        caught_up_s = time.monotonic() - since
        first = [agent.acknowledged // BATCH for agent in floods]
        alone, peak_alone, processors_alone = flood(site, floods, min(60, seconds))
        begin, appends = time.monotonic(), [agent.acknowledged // BATCH for agent in floods]
        dashboards = [Dashboard(site, number, questions, refresh_s, begin, begin + seconds) for number in range(DASHBOARDS)]
        for dashboard in dashboards:
            dashboard.start()
        beside, peak_beside, processors_beside = flood(site, floods, seconds)
    finally:
        for agent in floods:
            agent.ends.set()
        for running in (*[process for agent in floods for process in agent.threads], *dashboards):
            running.join()
    promised = sum(agent.acknowledged for agent in floods)
    expected = sorted((agent.node, *fingerprint(agent.acknowledged)) for agent in floods)
    wait_until("each acknowledged event is in the tables once", lambda: stored(site) == expected, 300)
    print(f"the tables reached the present after {caught_up_s:,.0f} s")
    took = [one for dashboard in dashboards for one in dashboard.took]
    failed = sum((dashboard.failed for dashboard in dashboards), Counter())
    for what, times in [
        ("appends, alone", [one for agent, start, place in zip(floods, first, appends) for one in agent.took[start:place]]),
        ("appends, beside", [one for agent, place in zip(floods, appends) for one in agent.took[place : agent.acknowledged // BATCH]]),
    ]:
        print(shown(what, times))
    for name in TABLES:
        if of := [seconds for asked, seconds in took if asked == name]:
            print(shown(name, of))
    if took:
        print(shown("all", [seconds for _, seconds in took]))
    print(f"questions asked a second       {len(took) / seconds:12,.1f}   by {DASHBOARDS} dashboards, each every {refresh_s:g} s")
    print(f"questions that failed          {failed.total():12,}")
    for what, count in failed.most_common(5):
        print(f"    {count:,} times {what}")
    slower = 1 - beside / alone
    print(f"events a second, alone         {alone:12,.0f}   memory {peak_alone:6,.0f} MiB")
    print(f"events a second, beside        {beside:12,.0f}   memory {peak_beside:6,.0f} MiB")
    print(f"slower by                      {slower:12.1%}")
    print(f"alone, {processors_alone}")
    print(f"beside, {processors_beside}")
    print(f"acknowledged and in the tables {promised:12,}")
    return 0 if took and not failed and slower < SLOWER_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
