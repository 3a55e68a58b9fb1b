"""A webhook on this machine, which fails first: each finding comes once, and not again after a restart."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from demo import Demo

# Longest wait for the findings of the demo.
PATIENCE_S = 120
# So long nothing may come after a restart: a round is after ten seconds.
QUIET_S = 14


class Receiver:
    """Answers its first message with 500, the second with a redirect, and takes the others."""

    def __init__(self):
        self.refused: list[str] = []
        self.taken: list[str] = []
        self.astray: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert list(body) == ["text"], body
                status = {0: 500, 1: 307}.get(len(receiver.refused), 200)
                if self.path != "/secret":
                    receiver.astray.append(self.path)
                (receiver.taken if status == 200 else receiver.refused).append(body["text"])
                self.send_response(status)
                if status == 307:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret"

    @property
    def lines(self) -> list[str]:
        return [line for text in self.taken for line in text.splitlines()]


def notified_of(demo: Demo, receiver: Receiver) -> list:
    return [
        ("a finding is sent once", lambda: sent_once(demo, receiver)),
        ("a restart repeats no finding", lambda: quiet(demo, receiver)),
    ]


def sent_once(demo: Demo, receiver: Receiver) -> str:
    wanted = demo.rows(
        "SELECT (SELECT count(*) FROM stragglers WHERE state = 'CONFIRMED') + "
        "(SELECT count(*) FROM node_health WHERE state IN ('BAD', 'FAILED')) AS n"
    )[0]["n"]
    until = time.monotonic() + PATIENCE_S
    while len(receiver.lines) < wanted:
        assert time.monotonic() < until, f"{len(receiver.lines)} of {wanted} findings: {receiver.taken}"
        time.sleep(0.5)
    lines = receiver.lines
    assert len(set(lines)) == len(lines), f"sent twice: {lines}"
    assert any("job 4711 is slowed down by its rank" in line and "`tidegate explain job 4711`" in line for line in lines), lines
    assert any("node gpu-11 is FAILED" in line for line in lines), lines
    assert len(receiver.refused) == 2 and not receiver.astray, f"{receiver.refused} {receiver.astray}"
    page = demo.page("/metrics")
    counts = {line.split()[0]: float(line.split()[1]) for line in page.splitlines() if line.startswith("tidegate_webhook_")}
    assert counts["tidegate_webhook_failed_total"] == 2, counts
    assert counts["tidegate_webhook_findings_total"] == len(lines), counts
    return f"{len(lines)} findings in {len(receiver.taken)} messages, after {len(receiver.refused)} refusals"


def quiet(demo: Demo, receiver: Receiver) -> str:
    before = set(receiver.lines)
    demo.again()
    time.sleep(QUIET_S)
    again = [line for line in receiver.lines if receiver.lines.count(line) > 1]
    assert not again, f"sent again: {again}"
    return f"{len(receiver.lines) - len(before)} new findings"
