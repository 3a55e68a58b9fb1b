"""Prometheus on a demo: rules and pages checked by promtool, and a real server that scrapes and alerts."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from demo import Demo

HERE = Path(__file__).resolve().parent
DEPLOYED = HERE.parent.parent / "deploy/prometheus"
PAGES = ["/metrics", "/metrics/cluster", "/metrics/gpus"]
# promtool's advice about names that dcgm-exporter has.
ADVICE_NOT_TAKEN = re.compile(r"DCGM_\w+ label names should be written in 'snake_case'|DCGM_\w+ metric names should")
# What rules read that the demo's pages lack, and why.
NOT_IN_DEMO = {
    "tidegate_cluster_decisions_waiting": "the demo's policy asks for nothing",
    "tidegate_autopilot_acts": "the demo's autopilot is simulated, and has no service in this process",
    "tidegate_autopilot_last_step_seconds": "as tidegate_autopilot_acts",
    "tidegate_autopilot_slo_alerts": "as tidegate_autopilot_acts",
    "tidegate_http_refused_total": "there is one series for each status that was refused",
}
# Longest wait for the server and its first scrapes, s.
PATIENCE_S = 60


def files() -> list:
    return [("rules", rules)]


def asked_of(demo: Demo, folder: Path) -> list:
    return [("pages for promtool", lambda: pages(demo)), ("a real Prometheus", lambda: scraped(demo, folder))]


def rules() -> str:
    """The rules are of the form, do what they say, and each alert has been seen to fire."""
    shipped = [DEPLOYED / "health.yml", DEPLOYED / "leaks.yml"]
    promtool("check", "rules", *shipped)
    tests = sorted((HERE / "rules").glob("*.yml"))
    promtool("test", "rules", *tests)
    alerts = {name for file in shipped for name in re.findall(r"- alert: (\w+)", file.read_text())}
    fired = {name for file in tests for name in re.findall(r'alertname="(\w+)"}\', value: 1', file.read_text())}
    assert alerts == fired, f"no test lets these fire: {sorted(alerts - fired)}"
    return f"{len(alerts)} alerts"


def pages(demo: Demo) -> str:
    """promtool takes every page, and each series that a rule reads is there."""
    text = "".join(file.read_text() for file in DEPLOYED.glob("*.yml"))
    read = set(re.findall(r"tidegate_(?:\w+)", text))
    until = time.monotonic() + PATIENCE_S
    # The ledger's last whole hour may be computed anew just now.
    while (missing := read - (series := names(demo))) != set(NOT_IN_DEMO):
        wrong = sorted(missing ^ set(NOT_IN_DEMO))
        assert time.monotonic() < until, f"rules read what the demo has not, or has now: {wrong}"
        time.sleep(2)
    gpus = demo.rows("SELECT count(DISTINCT gpu_uuid) AS n FROM gpu_1m WHERE mig_uuid IS NULL")[0]["n"]
    shown = demo.page("/metrics/gpus").count("\nDCGM_FI_DEV_GPU_TEMP{")
    assert 0 < shown <= gpus, f"{shown} GPUs of {gpus}"
    return f"{len(series)} names, {shown} GPUs"


def names(demo: Demo) -> set[str]:
    """Names of the series of all pages, each of which promtool takes."""
    series = set()
    for path in PAGES:
        page = demo.page(path)
        checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
        advice = [line for line in checked.stderr.splitlines() if line and not ADVICE_NOT_TAKEN.match(line)]
        assert not advice, f"{path}: {advice}"
        assert demo.page(path, "application/openmetrics-text").endswith("# EOF\n"), path
        named = {line.split("{")[0].split()[0] for line in page.splitlines() if not line.startswith("#")}
        assert named, f"{path} has no series"
        series |= named
    return series


def scraped(demo: Demo, folder: Path) -> str:
    """A Prometheus with our configuration reads all three pages, and an alert is pending."""
    host = demo.address.removeprefix("http://")
    config = (DEPLOYED / "prometheus.yml").read_text()
    token = folder / "token"
    token.write_text("none\n")
    config = config.replace("/etc/prometheus/tidegate.token", str(token)).replace("tide.example:8433", host)
    config = config.replace("scheme: https", "scheme: http").replace("scrape_interval: 1m", "scrape_interval: 2s")
    config = config.replace("- health.yml", f"- {DEPLOYED}/health.yml").replace("- leaks.yml", f"- {DEPLOYED}/leaks.yml")
    file = folder / "prometheus.yml"
    file.write_text("global: {scrape_interval: 2s, evaluation_interval: 2s}\n" + config)
    promtool("check", "config", file)
    server = subprocess.Popen(
        ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder}/tsdb", "--web.listen-address=127.0.0.1:0",
         "--log.format=json"],
        stderr=subprocess.PIPE, text=True,
    )
    try:
        address = None
        for line in server.stderr:
            if found := re.search(r'"address":"([\d.]+:\d+)".*"msg":"Listening on"|"msg":"Listening on","address":"([\d.]+:\d+)"', line):
                address = found[1] or found[2]
                break
        assert address, "it ended before it listened"
        up = waited(address, 'count(up{job=~"tidegate.*"} == 1)', lambda value: value == 3)
        gpus = waited(address, "sum(tidegate_cluster_gpus)", lambda value: value > 0)
        rows = demo.rows("SELECT sum(gpus_milli) / 1000.0 AS n FROM node_capacity WHERE to_time IS NULL")
        assert gpus == rows[0]["n"], f"{gpus} GPUs, not {rows[0]['n']}"
        waited(address, 'count(ALERTS{alertname="StragglerSlowsJob"})', lambda value: value == 1)
        waited(address, "count(DCGM_FI_DEV_GPU_TEMP)", lambda value: value > 0)
        samples = waited(address, 'sum(scrape_samples_scraped{job=~"tidegate.*"})', lambda value: value > 0)
    finally:
        server.terminate()
        server.communicate(timeout=30)
    return f"{up:.0f} pages, {samples:.0f} samples a scrape, {gpus:.0f} GPUs, an alert"


def waited(address: str, query: str, is_right) -> float:
    """The value of a query of one number, once it is right."""
    until = time.monotonic() + PATIENCE_S
    answer = None
    while time.monotonic() < until:
        asked = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(asked, timeout=10) as response:
                answer = json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            # It reads its folder first.
            answer = []
            if error.code != 503:
                raise
        if answer and is_right(float(answer[0]["value"][1])):
            return float(answer[0]["value"][1])
        time.sleep(0.5)
    raise AssertionError(f"{query} is {answer} after {PATIENCE_S} s")


def promtool(*arguments) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"promtool {arguments[0]}: {done.stdout} {done.stderr}"
