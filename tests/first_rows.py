#!/usr/bin/env python3
"""Times the way from a clean clone to the first rows on the page: the build and the demo, apart.

    tests/first_rows.py [--program BIN] [--release]

Clones the commit at hand into a temporary folder and builds it there from nothing, as README says,
then starts `up --demo` and asks the first question of the page until it has rows. On a bare machine
it takes what README takes. With `--program` nothing is built. Prints JSON: seconds, the commit, and
the machine.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Where does the money go?
FIRST_QUESTION = "SELECT class, CAST(sum(gpu_ms) AS DOUBLE) / 3600000.0 AS hours FROM ledger_1h GROUP BY class HAVING sum(gpu_ms) > 0"
ROWS_WITHIN_S = 900


def built(folder: Path, release: bool) -> tuple[Path, float]:
    """The program, built from a clone of the commit at hand, and the seconds that it took."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder / "clone"], check=True)
    command = ["cargo", "build", "--locked", *(["--release"] if release else [])]
    begun = time.monotonic()
    subprocess.run(command, check=True, cwd=folder / "clone", env=os.environ | {"CARGO_TARGET_DIR": str(folder / "target")})
    return folder / "target" / ("release" if release else "debug") / "tidegate", time.monotonic() - begun


def answer(address: str) -> list:
    """Rows of the first question; none while there is no answer."""
    request = urllib.request.Request(f"{address}/v1/sql", FIRST_QUESTION.encode(), {"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answered:
            return json.load(answered)
    except urllib.error.URLError:
        return []


def first_rows(program: Path, data: Path) -> dict[str, float]:
    """Seconds from the start of the demo until it listens, and until the first question has rows."""
    begun = time.monotonic()
    command = [program, "up", "--demo", "--data", data, "--listen", "127.0.0.1:0"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for line in demo.stdout:
            if found := re.search(r"http://[\d.]+:\d+", line):
                break
        else:
            raise SystemExit(f"the demo ended with status {demo.wait()} before it listened")
        listens = time.monotonic() - begun
        while not answer(found.group()):
            if demo.poll() is not None or time.monotonic() - begun > ROWS_WITHIN_S:
                raise SystemExit(f"no rows within {ROWS_WITHIN_S} s")
            time.sleep(0.2)
        return {"listens_s": round(listens, 1), "first_rows_s": round(time.monotonic() - begun, 1)}
    finally:
        demo.terminate()
        try:
            demo.wait(30)
        except subprocess.TimeoutExpired:
            demo.kill()
            demo.wait()
        demo.stdout.close()


def main() -> int:
    """Builds, runs and reports."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--program", type=Path, help="build nothing, and run this")
    parser.add_argument("--release", action="store_true", help="build with optimisation")
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    result = {"commit": commit, "processors": os.cpu_count(), "memory_gib": round(memory_gib, 1), "machine": platform.machine()}
    with tempfile.TemporaryDirectory(prefix="tidegate-first-rows-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        program = args.program and args.program.resolve()
        if not program:
            program, build_s = built(folder, args.release)
            result |= {"build_s": round(build_s, 1), "profile": "release" if args.release else "dev"}
        result |= first_rows(program, folder / "data")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
