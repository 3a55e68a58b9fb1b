"""Headless Chromium, driven over a pipe by the DevTools protocol: no port, no driver, no package."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS = 30


class BrowserError(Exception):
    """Chromium refused something, or did not do it in time."""


def find() -> str | None:
    """The command of an installed Chromium."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One Chromium with a profile of its own, which goes when it is closed."""

    def __init__(self, command: str):
        self.profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        options = [
            "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--disable-extensions",
            "--force-color-profile=srgb", "--font-render-hinting=none", f"--user-data-dir={self.profile.name}",
        ]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        # Chromium reads descriptor 3 and writes 4; the shell puts the pipes there.
        wired = f'exec "$0" "$@" 3<&{to_child} 4>&{from_child}'
        self.process = subprocess.Popen(
            ["bash", "-c", wired, command, *options, "about:blank"],
            pass_fds=(to_child, from_child), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer = b""
        self._number = 0
        self._tabs: dict[str, Tab] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the browser."""
        for end in (self._out, self._in):
            os.close(end)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.profile.cleanup()

    def call(self, method: str, parameters: dict | None = None, session: str | None = None) -> dict:
        """Sends a command and waits for its result; events that come meanwhile are kept by their tabs."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self._receive(until - time.monotonic())
            if answer is None:
                raise BrowserError(f"{method} was not answered in {ANSWER_SECONDS} s")
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def wait(self, seconds: float):
        """Takes what comes for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._receive(left)

    def _receive(self, seconds: float) -> dict | None:
        while b"\0" not in self._buffer:
            if seconds <= 0 or not select.select([self._in], [], [], seconds)[0]:
                return None
            block = os.read(self._in, 1 << 20)
            if not block:
                raise BrowserError("Chromium ended")
            self._buffer += block
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(raw)
        if (tab := self._tabs.get(message.get("sessionId"))) and "method" in message:
            tab.note(message["method"], message["params"])
        return message

    def tab(self, width: int = 1440, height: int = 900, dark: bool = False) -> "Tab":
        """A tab in a context of its own: with no storage of others."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, session, context)
        self._tabs[session] = tab
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.size(width, height)
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
        tab.call("Emulation.setEmulatedMedia", {"features": features})
        # Behind another tab nothing would be drawn.
        tab.call("Page.bringToFront")
        tab.call("Emulation.setFocusEmulationEnabled", {"enabled": True})
        return tab


    def forget(self, session: str) -> bool:
        """Whether the tab was open until now."""
        return self._tabs.pop(session, None) is not None

    def close_tabs(self):
        """Closes every tab that is still open."""
        for tab in list(self._tabs.values()):
            tab.close()


class Tab:
    """One tab, and what went wrong in it."""

    def __init__(self, browser: Browser, session: str, context: str):
        self.browser = browser
        self.session = session
        self.context = context
        self.errors: list[str] = []

    def call(self, method: str, parameters: dict | None = None) -> dict:
        """A command to this tab."""
        return self.browser.call(method, parameters, self.session)

    def note(self, method: str, parameters: dict):
        """Keeps what the console would show as an error: exceptions, violations of the policy, failed loads."""
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))

    def size(self, width: int, height: int):
        """Sets what the tab shows, CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, address: str):
        """Goes to an address as if anew, whatever is behind its `#`."""
        self.call("Page.navigate", {"url": "about:blank"})
        self.wait_for("location.href === 'about:blank'")
        self.call("Page.navigate", {"url": address})

    def evaluate(self, script: str):
        """The value of an expression; a promise is waited for."""
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", asked)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 20) -> float:
        """Waits until an expression is true; returns for how long, seconds."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            try:
                if self.evaluate(f"Boolean({condition})"):
                    return time.monotonic() - begun
            except BrowserError:
                pass  # A document that is just being replaced has no context.
            self.browser.wait(0.03)
        raise BrowserError(f"not in {seconds} s: {condition}")

    def press(self, key: str, text: str | None = None, control: bool = False):
        """Presses and lets go of a key."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowDown": 40}
        event = {"key": key, "modifiers": 2 if control else 0, "windowsVirtualKeyCode": codes.get(key, 0)}
        if text and not control:
            event["text"] = text
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def screenshot(self, file: Path, whole: bool = False):
        """Keeps what the tab shows as PNG, or WebP by the file's name; `whole` also what is below."""
        if whole:
            width = self.evaluate("innerWidth")
            self.size(width, min(int(self.evaluate("document.documentElement.scrollHeight")), 4000))
            self.browser.wait(0.4)
        kind = {".png": {"format": "png"}, ".webp": {"format": "webp", "quality": 70}}[file.suffix]
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", kind)["data"]))

    def close(self):
        """Closes the tab with its storage."""
        if self.browser.forget(self.session):
            self.browser.call("Target.disposeBrowserContext", {"browserContextId": self.context})
