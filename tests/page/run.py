#!/usr/bin/env python3
"""The page in a real browser: every page in both themes, what people do on it, and what it says when something is wrong.

    tests/page/run.py --tidegate BIN [--screenshots DIR] [--only NAME]... [--past DATA]

Makes two sites with the program, serves them, and drives headless Chromium. Notes its checks in
TIDEGATE_RESULTS like tests/suites. `--screenshots` keeps pictures of the pages, for docs/page.
`--past` looks at the pages of a site that exists, such as `tidegate bench year --data` leaves,
and says after how long each showed its answers.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import axe_playwright_python

import approvals
import browser
import deeds
from checks import accessible, fits, interactive_ms, must, no_failure, opened, quiet
from sites import Site, made

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results import note  # noqa: E402

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
INTERACTIVE_MS_MOST = 1000


class Run:
    """One run: its sites, its browser, and what passed."""

    def __init__(self, args: argparse.Namespace, chromium: browser.Browser, day: Site, demo: Site, folder: Path):
        self.args = args
        self.browser = chromium
        self.day = day
        self.demo = demo
        self.folder = folder
        self.failed = 0

    def check(self, name: str, work):
        """Runs one check, and notes how it ended."""
        if self.args.only and not any(part in name for part in self.args.only):
            return
        begun = time.monotonic()
        try:
            said = work() or ""
            outcome, why = "passed", ""
        except Exception as error:
            said, outcome, why = "", "failed", str(error).replace("\n", " ").replace("\t", " ")
            if not isinstance(error, (browser.BrowserError, AssertionError)) and type(error).__name__ != "Wrong":
                traceback.print_exc()
            self.failed += 1
        self.browser.close_tabs()
        print(f"{outcome}: {name}, {time.monotonic() - begun:.1f} s {said}{why}", flush=True)
        note(outcome, f"page: {name}", why)


def pages(run: Run) -> dict[str, str]:
    """Every page by name, with its address."""
    if run.args.past:
        job = run.day.rows("SELECT cluster, job_id FROM attempts WHERE from_time IS NOT NULL ORDER BY from_time DESC LIMIT 1")[0]
        parts = {"money": "money", "money of all time": "money?range=all", "now": "now", "jobs": "job",
                 "job": f"job/{job['cluster']}/{job['job_id']}", "autopilot": "autopilot", "ask": "ask"}
        return {name: f"{run.day.address}/#/{part}" for name, part in parts.items()}
    job = run.day.rows("SELECT job_id, count(*) AS steps FROM steps GROUP BY job_id ORDER BY max(rank) DESC, steps DESC LIMIT 1")[0]["job_id"]
    return {
        "money": f"{run.day.address}/#/money?range=all", "now": f"{run.day.address}/#/now", "jobs": f"{run.day.address}/#/job",
        "job": f"{run.day.address}/#/job/day/{job}", "autopilot": f"{run.demo.address}/#/autopilot", "ask": f"{run.day.address}/#/ask",
    }


def look(run: Run, name: str, address: str, dark: bool):
    """One page in one theme: quiet, accessible, whole, and soon there; on a small screen too."""
    tab = run.browser.tab(dark=dark)
    begun = time.monotonic()
    opened(tab, address)
    shown_s = time.monotonic() - begun
    no_failure(tab)
    accessible(tab, AXE)
    quiet(tab)
    # Other checks run beside; the best of three says what the page takes.
    took = interactive_ms(tab)
    for _ in range(2):
        if took >= INTERACTIVE_MS_MOST:
            opened(tab, address)
            took = min(took, interactive_ms(tab))
    must(took < INTERACTIVE_MS_MOST, f"interactive after {took:.0f} ms")
    if run.args.screenshots:
        tab.screenshot(run.args.screenshots / f"{name}-{'dark' if dark else 'light'}.webp", whole=name != "jobs")
    tab.size(390, 844)
    run.browser.wait(0.2)
    fits(tab)
    if run.args.screenshots and not dark and name == "money":
        tab.screenshot(run.args.screenshots / "money-small.webp")
    tab.close()
    return f"(interactive after {took:.0f} ms, answers shown after {shown_s:.1f} s)"


def all_checks(run: Run):
    """Every check, the cheap ones of every page first."""
    addresses = pages(run)
    for name, address in addresses.items():
        for dark in (False, True):
            run.check(f"{name}, {'dark' if dark else 'light'}", lambda: look(run, name, address, dark))
    if run.args.past:
        return
    for deed in deeds.ALL:
        run.check(deed.__name__.replace("_", " "), lambda: deed(run, addresses))
    run.check("somebody rejects and approves what waits", lambda: approvals.somebody_rejects_and_approves_what_waits(run, AXE))


def rehearsed(tidegate: Path, data: Path):
    """Lets the demo rehearse its past, as a person does beside a running server."""
    command = [tidegate, "autopilot", "rehearse", "--policy", "auto", "--serves", "serve", "--seeds", "0..2", "--data", data]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "owner" not in done.stdout:
        raise RuntimeError(f"the rehearsal ended with {done.returncode}: {done.stdout}{done.stderr}")


def main() -> int:
    """Makes the sites, then checks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True)
    parser.add_argument("--screenshots", type=Path)
    parser.add_argument("--only", action="append", default=[], help="checks with this in their name; may be repeated")
    parser.add_argument("--past", type=Path, metavar="DATA", help="look at the pages of a site that exists")
    args = parser.parse_args()
    args.tidegate = args.tidegate.resolve()
    if args.screenshots:
        args.screenshots.mkdir(parents=True, exist_ok=True)
    command = browser.find()
    if not command:
        print("Chromium is missing: tests/page/install.sh")
        return 1
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as made_here:
        folder = Path(made_here)
        if args.past:
            with Site(args.tidegate, args.past, "--no-insight") as past, browser.Browser(command) as chromium:
                run = Run(args, chromium, past, past, folder)
                all_checks(run)
            return 1 if run.failed else 0
        with Site(args.tidegate, folder / "demo", "--demo", "--demo-speed", "max") as demo:
            with Site(args.tidegate, made(args.tidegate, folder / "day"), "--no-insight") as day, browser.Browser(command) as chromium:
                demo.wait_for("SELECT count(*) FROM prediction_scores")
                rehearsed(args.tidegate, folder / "demo")
                run = Run(args, chromium, day, demo, folder)
                all_checks(run)
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
