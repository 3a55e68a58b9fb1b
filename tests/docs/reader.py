"""A reader who types what the pages say: runs commands, keeps those that stay, ends them with their
section.
"""

import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from commands import Command, pictures
from rules import How, Rule

PORT = 8433
# The first command builds everything, on a bare machine for half an hour.
BUILD_S = 5_400
PATIENCE_S = 600
LONG_S = 7_200
# Numbers, which follow the time of day.
VARIES = r"\d[\d.,:-]*|\s+"
# A decision's name, which is another one each time.
LOAN = r"\blend-[0-9a-f]{16}\b"
NEWEST_LOAN = "SELECT action FROM decisions WHERE decision_kind = 'lend' ORDER BY decided_time DESC LIMIT 1"
DEMO_ENDS = "It is now;"
# Folders of a service are not a test's to write to.
ELSEWHERE = {"/var/lib/tidegate": "var/lib/tidegate"}
# What the text's example in Python takes for known.
PYTHON_SETUP = "import time\ni, began, took, n, f, e = 1, time.time(), 0.5, 4096, 1e12, 0\n"
POLICIES = ["site.toml", "today.toml", "candidate.toml"]


class Failed(Exception):
    """A command did not do what the text says."""


def free_port() -> int:
    """The text's port, or another where somebody has that one."""
    for port in (PORT, 0):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("127.0.0.1", port))
                return taken.getsockname()[1]
            except OSError:
                continue
    raise Failed("no port is free")


class Reader:
    def __init__(self):
        self.place = ("", "")
        self.staying: list[tuple[Command, subprocess.Popen, Path]] = []
        self.failures: list[tuple[Command, str]] = []
        self.port = free_port()
        self.scratch = tempfile.TemporaryDirectory(prefix="tidegate-readme-")
        programs = Path(os.environ["CARGO_TARGET_DIR"]) / "debug"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "RUST_LOG"))}
        self.environment["PATH"] = f"{programs}:{self.environment['PATH']}"
        self.environment["PYTHONPATH"] = str(Path("deploy/clients/python").resolve())
        if self.port != PORT:
            print(f"port {PORT} is taken; {self.port} stands for it", flush=True)
            self.environment["TIDEGATE_LISTEN"] = f"127.0.0.1:{self.port}"

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_) -> None:
        for _, process, _ in self.staying:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.scratch.cleanup()

    def enter(self, command: Command) -> None:
        """Ends what stayed from the section before."""
        place = (command.page, command.section)
        if place != self.place:
            self.end_staying()
            self.place = place

    def leave(self) -> list[tuple[Command, str]]:
        """Ends what still runs; returns what of all that stayed did not end well."""
        self.end_staying()
        return self.failures

    def do(self, command: Command, rule: Rule) -> None:
        """Does what the rule says with the command; fails with what went wrong."""
        if rule.before:
            self.run(rule.before, rule)
        match rule.how:
            case How.DEMO:
                self.demo(command)
            case How.STAYS:
                self.stay(command)
            case How.UNTIL_ROWS:
                self.until_rows(command, rule)
            case _:
                ended = self.run(self.text(command), rule)
                self.judge(command, ended)

    def text(self, command: Command) -> str:
        """The command as it stands in the text, but for what a test must not take from the machine.
        """
        text = command.text
        if command.language == "python":
            return f"python3 - <<'END_OF_PYTHON'\n{PYTHON_SETUP}{text}\nEND_OF_PYTHON"
        for folder, other in ELSEWHERE.items():
            text = text.replace(folder, other)
        if re.search(LOAN, text):
            found = self.run(f'tidegate sql --format csv "{NEWEST_LOAN}"', Rule(""))
            text = re.sub(LOAN, lines(found.stdout)[-1], text)
        return text.replace(str(PORT), str(self.port))

    def run(self, text: str, rule: Rule) -> subprocess.CompletedProcess:
        environment = self.environment | ({"TIDEGATE_DATA": rule.data} if rule.data else {})
        try:
            return subprocess.run(
                ["bash", "-c", text], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                timeout=LONG_S if rule.long else PATIENCE_S,
            )
        except subprocess.TimeoutExpired as expired:
            raise Failed(f"it goes on after {expired.timeout:.0f} s") from expired

    def judge(self, command: Command, ended: subprocess.CompletedProcess) -> None:
        if ended.returncode != 0:
            raise Failed(f"status {ended.returncode}: {(ended.stderr or ended.stdout)[-2000:]}")
        if command.shown:
            # How long it took and how much it wrote follow, and differ from run to run.
            shown, came = lines(command.shown), lines(ended.stdout)
            if shown != came[: len(shown)]:
                raise Failed("the page shows\n" + "\n".join(shown) + "\nand this came out\n" + "\n".join(came))

    def demo(self, command: Command) -> None:
        """Waits until the demo is through, ends it as Ctrl-C would, and makes files of policies
        with the program it built.
        """
        said, process = self.start(command)
        wait(lambda: DEMO_ENDS in said.read_text(), process, said, BUILD_S)
        status = end(process, signal.SIGINT)
        if status != 0:
            raise Failed(f"status {status} after Ctrl-C: {said.read_text()[-2000:]}")
        self.compare_pictures(Path(command.page), lines(said.read_text()))
        for file in POLICIES:
            ended = self.run(f"tidegate policy show > {file}", Rule(""))
            self.judge(Command("", "", 0, file), ended)

    def compare_pictures(self, page: Path, drawn: list[str]) -> None:
        """Each line that the text shows of the demo was drawn, in whatever order and with other
        numbers, but the answers, which are indented and follow the time of day.
        """
        shown = [line for block in pictures(page) for line in lines("\n".join(block.lines)) if line[:1] != " "]
        skeletons = {skeleton(line) for line in drawn}
        missing = [line for line in shown if skeleton(line) not in skeletons]
        if missing or not shown:
            raise Failed("the page shows of the demo what it does not draw\n" + "\n".join(missing))

    def stay(self, command: Command) -> None:
        said, process = self.start(command)
        self.staying.append((command, process, said))
        if " up " in command.text:
            scheme = "https" if "--tls-cert" in command.text else "http"
            wait(lambda: self.answers(scheme), process, said, PATIENCE_S)

    def answers(self, scheme: str) -> bool:
        address = f"{scheme}://127.0.0.1:{self.port}/v1/sql"
        # Who it is does not matter here, only that it is there.
        anybody = ssl._create_unverified_context()
        try:
            return urllib.request.urlopen(address, data=b"SELECT 1", timeout=PATIENCE_S, context=anybody).status == 200
        except urllib.error.HTTPError as refused:
            return refused.code == 401
        except (urllib.error.URLError, ConnectionError):
            return False

    def until_rows(self, command: Command, rule: Rule) -> None:
        began = time.monotonic()
        while True:
            ended = self.run(self.text(command), rule)
            self.judge(command, ended)
            # A drawn table without rows has a head and three lines.
            if len(lines(ended.stdout)) > 4:
                return
            for other, process, said in self.staying:
                if process.poll() is not None:
                    raise Failed(f"no rows, and `{other}` ended: {said.read_text()[-2000:]}")
            if time.monotonic() - began > PATIENCE_S:
                raise Failed(f"no rows after {PATIENCE_S} s")
            time.sleep(0.2)

    def start(self, command: Command) -> tuple[Path, subprocess.Popen]:
        said = Path(self.scratch.name) / f"said-{Path(command.page).stem}-{command.line}"
        with said.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", self.text(command)], env=self.environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )
        return said, process

    def end_staying(self) -> None:
        """Ends what was started last first: senders before who takes in what they send."""
        while self.staying:
            command, process, said = self.staying.pop()
            status = end(process, signal.SIGTERM)
            if status != 0:
                self.failures.append((command, f"status {status} after SIGTERM: {said.read_text()[-2000:]}"))


def skeleton(line: str) -> str:
    return re.sub(VARIES, " ", line)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def wait(so, process: subprocess.Popen, said: Path, patience_s: int) -> None:
    """Waits until something is so; fails when the process ends first, or patience does."""
    began = time.monotonic()
    while not so():
        if process.poll() is not None:
            raise Failed(f"it ended with status {process.returncode}: {said.read_text()[-2000:]}")
        if time.monotonic() - began > patience_s:
            os.killpg(process.pid, signal.SIGKILL)
            raise Failed(f"nothing after {patience_s} s but {said.read_text()[-2000:]}")
        time.sleep(0.1)


def end(process: subprocess.Popen, how: signal.Signals) -> int:
    """Sends the signal to a process and all it started; returns its status."""
    if process.poll() is not None:
        return process.returncode
    os.killpg(process.pid, how)
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()
