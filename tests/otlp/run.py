#!/usr/bin/env python3
"""What Tidegate exports over OTLP, as the OpenTelemetry Collector's own receiver takes it.

    tests/otlp/run.py --tidegate target/debug/tidegate

A server with queries by two doors, an agent that delivers to it and the demo's autopilot export to a
receiver that install.sh builds. Without Go the checks are skipped. What arrives is compared with what
was asked, and with GET /metrics.
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results import note  # noqa: E402

HERE = Path(__file__).resolve().parent
PATIENCE_S = 120
SECRET = "s3cret-of-the-collector"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Wrong(Exception):
    """Something was not exported as it must be."""


def must(holds: bool, what: str) -> None:
    """Fails with `what` unless it holds."""
    if not holds:
        raise Wrong(what)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Receiver:
    """The collector's receiver, and what it took."""

    def __init__(self, program: str, folder: Path):
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.file = folder / f"taken-{self.endpoint.rpartition(':')[2]}.jsonl"
        self.process = subprocess.Popen([program, self.endpoint, self.file], stdout=subprocess.PIPE, text=True)
        must(self.process.stdout.readline() == "ready\n", "the receiver does not start")

    def taken(self) -> list[dict]:
        """Requests so far."""
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def spans(self) -> list[dict]:
        """Spans so far, each with its attributes as a dictionary, and those of its resource."""
        found = []
        for request in self.taken():
            for of in request.get("resourceSpans", []):
                resource = attributes(of["resource"])
                found += [span | {"attributes": attributes(span), "resource": resource}
                          for scope in of["scopeSpans"] for span in scope["spans"]]
        return found

    def metrics(self) -> dict[tuple, float]:
        """The newest figures by name and labels; sums by the name that Prometheus gives them."""
        found = {}
        for request in self.taken():
            for of in request.get("resourceMetrics", []):
                for metric in (metric for scope in of["scopeMetrics"] for metric in scope["metrics"]):
                    kind = "sum" if "sum" in metric else "gauge"
                    name = metric["name"] + ("_total" if kind == "sum" else "")
                    must(kind == "gauge" or metric["sum"].get("isMonotonic") and metric["sum"]["aggregationTemporality"] == 2,
                         f"{name} is no cumulative sum that only grows")
                    for point in metric[kind]["dataPoints"]:
                        value = float(point["asInt"] if "asInt" in point else point["asDouble"])
                        found[name, tuple(sorted(attributes(point).items()))] = value
        return found

    def wait_for(self, what: str, found):
        """What `found` returns, once it is something."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if result := found():
                return result
            time.sleep(0.2)
        names = sorted({span["name"] for span in self.spans()})
        raise Wrong(f"no {what} in {PATIENCE_S} s; there are spans {names}")

    def close(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()


def attributes(of: dict) -> dict:
    """Attributes by name, numbers as numbers."""
    def value(one: dict):
        kind, inside = next(iter(one.items()), ("", None))
        return int(inside) if kind == "intValue" else inside
    return {one["key"]: value(one["value"]) for one in of.get("attributes", [])}


class Program:
    """A process of tidegate that exports."""

    def __init__(self, tidegate: Path, folder: Path, name: str, endpoint: str, *arguments, **more: str):
        environment = {key: text for key, text in os.environ.items() if not key.startswith(("TIDEGATE_", "OTEL_"))}
        environment |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{endpoint}", "OTEL_SERVICE_NAME": name,
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test%2Csite",
            "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={SECRET}", "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_METRIC_EXPORT_INTERVAL": "500", **more,
        }
        self.errors = folder / f"{name}.log"
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen([tidegate, *map(str, arguments)], env=environment, stdout=subprocess.PIPE,
                                            stderr=errors, text=True)
        self.said = ""

    def address(self) -> str:
        """Where it listens."""
        return self.saying(r"http://127[\d.]+:\d+")

    def saying(self, pattern: str) -> str:
        """The first text like this that it prints."""
        for line in self.process.stdout:
            self.said += line
            if found := re.search(pattern, line):
                return found.group()
        raise Wrong(f"it ended with status {self.process.wait()}: {self.said}{self.errors.read_text()}")

    def end(self) -> str:
        """Ends it as Ctrl-C does; all that it said."""
        if self.process.poll() is None:
            self.process.terminate()
        rest, _ = self.process.communicate(timeout=60)
        return self.said + rest + self.errors.read_text()


def ask(address: str, sql: str, **headers: str) -> None:
    """A query over HTTP, whatever comes of it."""
    request = urllib.request.Request(f"{address}/v1/sql", sql.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
    except urllib.error.HTTPError as refused:
        refused.read()


def server_and_agent(tidegate: Path, program: str, folder: Path) -> str:
    """Queries and appends as spans, one trace from an agent to the server, and the figures."""
    receiver = Receiver(program, folder)
    up = Program(tidegate, folder, "tide", receiver.endpoint, "up", "--data", folder / "data", "--listen", "127.0.0.1:0",
                 "--ingest", "--no-insight")
    try:
        address = up.address()
        ask(address, "SELECT 'text of a person' AS x UNION ALL SELECT 'y'", traceparent=f"00-{TRACE}-{PARENT}-01")
        ask(address, "SELECT nonsense FROM jobs")
        ask(address, "SELECT 'unsampled'", traceparent=f"00-{TRACE}-{PARENT}-00")
        agent = Program(tidegate, folder, "node", receiver.endpoint, "agent", "--source", "demo", "--cluster", "c", "--node", "n1",
                        "--log", address, "--spool", folder / "spool", "--flush", "1s")
        try:
            delivered = receiver.wait_for("delivery that the server took", lambda: [
                (sent, taken) for sent in receiver.spans() if sent["name"] == "deliver" and sent["attributes"]["tidegate.topic"] == "gpu-samples"
                for taken in receiver.spans() if taken.get("parentSpanId") == sent["spanId"]])
        finally:
            said_by_agent = agent.end()
        receiver.wait_for("flush", lambda: [span for span in receiver.spans() if span["name"] == "flush"])
        agent_counts = receiver.wait_for("figures of the agent", lambda: {
            key: value for key, value in receiver.metrics().items() if key[0] == "tidegate_agent_delivered_total" and value > 0})
        # What changes no more is the same at both doors.
        steady = ("tidegate_pipeline_partitions", "tidegate_http_refused_total", "tidegate_pipeline_undecodable_total",
                  "tidegate_signals_limit_bytes", "tidegate_webhook_messages_total", "tidegate_otlp_dropped_spans_total")
        with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        scraped = {line.split(" ")[0]: float(line.split(" ")[1]) for line in page.splitlines() if not line.startswith("#")}
        exported = receiver.metrics()
        names = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}
        lacking = names - {name for name, _ in exported}
        must(not lacking, f"GET /metrics has {lacking}, and the collector has not")
        for name in steady:
            if name in scraped:
                must(exported[name, ()] == scraped[name], f"{name}: {exported[name, ()]}, not {scraped[name]}")
    finally:
        said = up.end()
    spans = receiver.spans()
    receiver.close()
    queries = {span["attributes"]["tidegate.outcome"]: span for span in spans if span["name"] == "query"}
    must(sorted(queries) == ["ok", "unknown_column"], f"queries {sorted(queries)}")
    one = queries["ok"]
    must(one["traceId"] == TRACE and one["parentSpanId"] == PARENT, f"it does not continue the caller's trace: {one}")
    told = {key.removeprefix("tidegate."): value for key, value in one["attributes"].items()}
    must(told["door"] == "/v1/sql" and told["role"] == "local" and told["rows"] == 2, f"{told}")
    must(one["kind"] == 2 and "code" not in one.get("status", {}), f"{one}")
    failed = queries["unknown_column"]
    must(failed["status"]["code"] == 2 and failed["attributes"]["error.type"] == "unknown_column", f"{failed}")
    must(failed["traceId"] != TRACE and not failed.get("parentSpanId"), f"{failed}")
    resource = one["resource"]
    must(resource["service.name"] == "tide" and resource["deployment.environment.name"] == "test,site", f"{resource}")
    sent, taken = delivered[0]
    must(sent["resource"]["service.name"] == "node" and taken["resource"]["service.name"] == "tide", "they are not two services")
    must(taken["traceId"] == sent["traceId"] and taken["name"] == "append" and taken["kind"] == 2 and sent["kind"] == 3, f"{taken}")
    must(taken["attributes"]["tidegate.records"] == sent["attributes"]["tidegate.records"], f"{sent} {taken}")
    flushes = {span["spanId"]: span for span in spans if span["name"] == "flush"}
    commits = [span for span in spans if span["name"] == "commit" and span.get("parentSpanId") in flushes]
    for flush in flushes.values():
        children = [commit for commit in commits if commit["parentSpanId"] == flush["spanId"]]
        must(len(children) == flush["attributes"]["tidegate.commits"], f"{flush} has {len(children)} commits")
        must(all(int(flush["startTimeUnixNano"]) <= int(commit["startTimeUnixNano"]) <= int(commit["endTimeUnixNano"])
                 <= int(flush["endTimeUnixNano"]) for commit in children), f"commits outside of {flush}")
    must(any(commit["attributes"]["tidegate.table"] == "gpu_samples" for commit in commits), "no commit to gpu_samples")
    whole = json.dumps(spans)
    must("text of a person" not in whole and "nonsense" not in whole, "the text of a query was exported")
    for text, where in ((whole, "a span"), (said + said_by_agent, "what the programs said")):
        must(SECRET not in text, f"the secret header is in {where}")
    return f"{len(spans)} spans, {len(exported)} figures, {int(next(iter(agent_counts.values())))} records delivered"


def autopilot(tidegate: Path, program: str, folder: Path) -> str:
    """Plans of the demo's autopilot, with what each did below it; texts of queries where they are wanted; gzip and JSON."""
    receiver = Receiver(program, folder)
    up = Program(tidegate, folder, "demo", receiver.endpoint, "up", "--demo", "--demo-speed", "max", "--otlp-query-text",
                 "--data", folder / "data", "--listen", "127.0.0.1:0", OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
                 OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/json", OTEL_BSP_MAX_QUEUE_SIZE="65536")
    try:
        ask(up.address(), "SELECT 'text of a person'")
        receiver.wait_for("act of a plan", lambda: [span for span in receiver.spans() if span["name"] == "act"])
    finally:
        up.end()
    spans = receiver.spans()
    receiver.close()
    by_id = {span["spanId"]: span for span in spans}
    plans = [span for span in spans if span["name"] == "plan"]
    must(plans and all(plan["attributes"]["tidegate.plan"] for plan in plans), "no plan has its id")
    acts = [span for span in spans if span["name"] == "act"]
    for act in acts:
        above = by_id[act["parentSpanId"]]
        must(above["name"] in ("plan", "step") and act["attributes"]["tidegate.action"] in above["attributes"]["tidegate.transitions"],
             f"{act} below {above}")
    texts = [span["attributes"].get("db.query.text") for span in spans if span["name"] == "query"]
    must(texts == ["SELECT 'text of a person'"], f"texts {texts}")
    return f"{len(plans)} plans, {len(acts)} actions"


def away(tidegate: Path, program: str, folder: Path) -> str:
    """A collector that is away: one warning, answers as fast, a prompt end. One that is misnamed: refused."""
    endpoint = f"127.0.0.1:{free_port()}"
    up = Program(tidegate, folder, "tide", endpoint, "up", "--data", folder / "data", "--listen", "127.0.0.1:0", "--ingest",
                 "--no-insight", OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
    address = up.address()
    longest = 0.0
    for _ in range(40):
        begun = time.monotonic()
        ask(address, "SELECT 1")
        longest = max(longest, time.monotonic() - begun)
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    dropped = int(re.search(r"tidegate_otlp_dropped_spans_total (\d+)", page).group(1))
    must(dropped > 0, "no span was dropped")
    begun = time.monotonic()
    said = up.end()
    took = time.monotonic() - begun
    must(took < 15, f"it takes {took:.0f} s to end")
    warned = [line for line in said.splitlines() if "cannot be exported" in line]
    must(len([line for line in warned if "traces" in line]) == 1 and len(warned) <= 2, f"warnings: {warned}")
    must(SECRET not in said, "the secret header is in a warning")
    for value, says in (("grpc", "most often 4318"), ("carrier pigeon", "http/protobuf or http/json")):
        wrong = Program(tidegate, folder, "wrong", endpoint, "up", "--data", folder / "none", OTEL_EXPORTER_OTLP_PROTOCOL=value)
        said = wrong.process.communicate(timeout=60)[0] + wrong.errors.read_text()
        must(wrong.process.returncode == 1 and says in said, f"{value}: {said}")
        must(not (folder / "none").exists(), "a refused start leaves a folder behind")
    disabled = Program(tidegate, folder, "off", endpoint, "pipeline", "run", "--data", folder / "data", OTEL_SDK_DISABLED="true")
    must("otlp" not in disabled.end(), "it exports although it is disabled")
    return f"slowest answer {longest:.2f} s, {dropped} spans dropped"


def main() -> int:
    """Runs every check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True)
    tidegate = parser.parse_args().tidegate.resolve()
    checks = (away, server_and_agent, autopilot)
    if not shutil.which("go"):
        for check in checks:
            note("skipped", f"OTLP: {check.__name__}", "Go is missing")
        return 0
    program = subprocess.run([HERE / "install.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tidegate-otlp-", ignore_cleanup_errors=True) as scratch:
        for check in checks:
            folder = Path(scratch) / check.__name__
            folder.mkdir()
            since = time.monotonic()
            try:
                outcome, said = "passed", check(tidegate, program, folder)
            except Exception as error:
                if not isinstance(error, Wrong):
                    traceback.print_exc()
                outcome, said, failed = "failed", str(error).replace("\n", " "), failed + 1
            print(f"{outcome} {check.__name__:18} {time.monotonic() - since:5.1f} s  {said[:1500]}", flush=True)
            note(outcome, f"OTLP: {check.__name__}", said)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
