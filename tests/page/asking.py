"""A site whose autopilot asks a person before it drains a node: a real Slurm, tokens, and a service
that says which nodes are bad."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "hostile"), str(TESTS / "slurm/ledger")]

import wire  # noqa: E402
from processes import Slurm, now_ms, wait_until  # noqa: E402
from sites import Site  # noqa: E402

POLICY = """
name = "asks"
[modes]
drain_node = "approve"
return_node = "approve"
[worth]
least_net_gpu_hours = 0.0
[stability]
dwell_s = 0
[floors]
in_service_share = 0.1
[blast]
racks = 8
"""
BAD = 2  # NODE_HEALTH_STATE_BAD
SOURCE = "insight/test"


def slurm_is_there() -> bool:
    return subprocess.run([TESTS / "slurm/cluster.sh", "check"], capture_output=True).returncode == 0


class Asking:
    """The programs, and the tokens of those who come in."""

    def __init__(self, tidegate: Path, folder: Path):
        folder.mkdir()
        self.slurm = Slurm(folder / "slurm", "5+1")
        self.tokens, self.told = {}, 0
        file = folder / "tokens.toml"
        for who, role in [("anna", "operator"), ("vera", "viewer"), ("sam", "service")]:
            new = [tidegate, "token", "new", "--tokens", file, "--id", who, "--role", role]
            self.tokens[who] = subprocess.run(new, check=True, capture_output=True, text=True).stdout.strip()
        (folder / "asks.toml").write_text(POLICY)
        (folder / "autopilot.toml").write_text(
            'cluster = "tidegate"\npolicy = "asks.toml"\nlook_every_s = 1\nplan_every_s = 1\nlease_s = 5\n'
            f"[slurm]\nconf = {json.dumps(str(folder / 'slurm/slurm.conf'))}\n")
        os.environ.update(self.slurm.env)
        self.site = Site(
            tidegate, folder / "data", "--ingest", "--no-insight", "--tokens", str(file), "--autopilot", str(folder / "autopilot.toml"))
        self.address = self.site.address
        wait_until("the autopilot acts", lambda: self.standing()["leads"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.site.close()
        self.slurm.end()

    def _ask(self, who: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        headers = {"Authorization": f"Bearer {self.tokens[who]}", "Content-Type": kind, "Accept": "application/json"}
        request = urllib.request.Request(self.address + path, body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def standing(self) -> dict:
        return json.loads(self._ask("anna", "/v1/autopilot"))

    def rows(self, sql: str) -> list[dict]:
        return json.loads(self._ask("anna", "/v1/sql", json.dumps({"sql": sql}).encode()))

    def is_bad(self, node: str) -> str:
        """Says that a node is bad; returns the action on it once that waits for a person."""
        fields = {2: BAD, 3: node, 4: 990_000, 7: ["xid value=63", "ecc value=2"]}
        record = wire.record("node_signal", f"tidegate/{node}", now_ms(), fields, SOURCE, self.told)
        self._ask("sam", "/v1/events", wire.append("node_signal", SOURCE, self.told, [record]), "application/x-protobuf")
        self.told += 1

        def asks():
            waiting = [one for one in self.standing()["waiting"] if one["object"] == f"node {node}" and one["needs_approval"]]
            return waiting[0]["action"] if waiting else None

        action = wait_until(f"a proposal about {node}", asks)
        wait_until("the proposal is in the tables", lambda: self.rows(f"SELECT action FROM decisions WHERE action = '{action}'"))
        return action

    def is_drained(self, node: str) -> bool:
        return "DRAIN" in self.slurm.run("scontrol", "--oneliner", "show", "node", node)
