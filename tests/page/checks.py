"""What must hold of every page, and of what people do on it."""

import json
import time
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from browser import Tab

SHOWN = "document.querySelector('.page')?.dataset.state === 'shown' && !document.querySelector('.skeleton')"
# Chromium notes an answer of 404 itself; the page asks there whether the server takes approvals.
EXPECTED = ("/v1/autopilot",)


class Wrong(Exception):
    """Something on the page is not as it must be."""


def must(holds: bool, what: str):
    """Fails with `what` unless it holds."""
    if not holds:
        raise Wrong(what)


def opened(tab: Tab, address: str, seconds: float = 40):
    """Opens a page and waits until its queries are answered."""
    tab.open(address)
    tab.wait_for(SHOWN, seconds)


def quiet(tab: Tab):
    """No error in the console: no exception, no violation of the policy, nothing that did not load."""
    errors = [error for error in tab.errors if not any(path in error for path in EXPECTED)]
    tab.errors.clear()
    must(not errors, "console: " + "; ".join(errors))


def accessible(tab: Tab, axe: str):
    """axe-core finds nothing, contrast included."""
    tab.evaluate(axe + "\n;0")
    found = json.loads(tab.evaluate(
        "axe.run(document, { resultTypes: ['violations'] }).then(found => JSON.stringify(found.violations.map("
        "one => `${one.id}: ${one.nodes.map(node => node.html.slice(0, 120)).slice(0, 3).join(' ')}`)))"))
    must(not found, "axe: " + "; ".join(found))


def fits(tab: Tab):
    """Nothing sticks out at the side."""
    wide, there = tab.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    must(wide <= there, f"it is {wide} px wide on {there} px")


def no_failure(tab: Tab):
    """No panel shows an error."""
    said = tab.evaluate("[...document.querySelectorAll('.state.error, .state.denied')].map(one => one.textContent).join('; ')")
    must(not said, f"a panel says: {said}")


def interactive_ms(tab: Tab) -> float:
    """From the start of the navigation until the page's own script has drawn and answers, ms."""
    return tab.evaluate("performance.getEntriesByName('interactive')[0].startTime")


def downloaded(tab: Tab, folder: Path, press: str, suffix: str, seconds: float = 30) -> Path:
    """The file that a click brings."""
    tab.browser.call("Browser.setDownloadBehavior", {
        "behavior": "allow", "browserContextId": tab.context, "downloadPath": str(folder)})
    before = set(folder.iterdir())
    tab.evaluate(press)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if new := [file for file in set(folder.iterdir()) - before if file.suffix == suffix]:
            return new[0]
        tab.browser.wait(0.1)
    raise Wrong(f"no file came of {press}")


def is_trace(file: Path) -> int:
    """Checks a trace against Perfetto's own descriptor of Chrome's events; returns how many it has."""
    trace = json.loads(file.read_text())
    fields = perfetto_trace_pb2.ChromeTraceEvent.DESCRIPTOR.fields_by_name
    names = {"name": "name", "ts": "timestamp", "dur": "duration", "tid": "thread_id", "pid": "process_id", "cat": "category_group_name"}
    slices = 0
    for event in trace["traceEvents"]:
        must(event["ph"] in ("X", "M"), f"phase {event['ph']}")
        made = perfetto_trace_pb2.ChromeTraceEvent(phase=ord(event["ph"]))
        for key, value in event.items():
            if key in ("ph", "args"):
                continue
            field = fields[names[key]]
            must(isinstance(value, str) == (field.type == FieldDescriptor.TYPE_STRING), f"{key} is {value!r}")
            setattr(made, field.name, value)  # Refuses what the type cannot hold.
        for name, value in event.get("args", {}).items():
            kind = {str: "string_value", int: "int_value", float: "double_value"}[type(value)]
            made.args.add(name=name, **{kind: value})
        must(made.ParseFromString(made.SerializeToString()) > 0, "an event is empty")
        if event["ph"] == "X":
            slices += 1
            must(event["ts"] > 0 and event["dur"] >= 0, f"{event}")
    lanes = {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["ph"] == "X"}
    named = {(event["pid"], event.get("tid")) for event in trace["traceEvents"] if event["ph"] == "M"}
    must(lanes <= named, f"lanes without a name: {lanes - named}")
    return slices
