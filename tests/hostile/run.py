#!/usr/bin/env python3
"""Attacks a site as anybody who reaches it may, and shows what of it is left.

    tests/hostile/run.py --tidegate target/debug/tidegate [--only NAME...]

The site is a real Slurm, `tidegate up` with an autopilot that acts, and an agent whose events must
all arrive. After each attack the server must live, hold each acknowledged event in its tables,
answer queries, renew the autopilot's lease, and have drained no node; and the same again after
kill -9 and a new start.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from attacks import ATTACKS  # noqa: E402
from results import note  # noqa: E402
from victim import Broken, Site  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True, help="the program to attack")
    parser.add_argument("--only", nargs="*", default=[], help="names of attacks; all by default")
    options = parser.parse_args()
    if unknown := set(options.only) - {function.__name__ for _, _, function in ATTACKS}:
        parser.error(f"no attack is called {', '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="tidegate-hostile-") as scratch:
        try:
            site = Site(Path(scratch), options.tidegate.resolve())
            try:
                site.check()
                return play(site, options.only)
            finally:
                site.close()
        except Exception as error:
            note("failed", "a site to attack", str(error))
            raise


def play(site: Site, only: list[str]) -> int:
    """Plays the attacks and prints a line for each; the number of those that broke something."""
    broken = 0
    print(f"{'':3} {'attack':52} {'seconds':>7}  what happened", flush=True)
    for number, sends, function in ATTACKS:
        if only and function.__name__ not in only:
            continue
        since = time.monotonic()
        try:
            said = function(site)
            site.check()
            site.restart()
            site.check()
        except (Broken, TimeoutError, RuntimeError) as error:
            broken += 1
            said = f"BROKEN: {error}"
            revive(site)
        print(f"{number:>3} {sends:52} {time.monotonic() - since:7.1f}  {said}", flush=True)
        note("failed" if said.startswith("BROKEN") else "passed", f"attack {number}: {sends}", said)
    print(f"{broken} attacks did harm" if broken else "no attack did harm")
    return 1 if broken else 0


def revive(site: Site) -> None:
    """A new data folder for the next attack."""
    site.end()
    site.data = site.folder / f"data-{time.monotonic_ns()}"
    site.promised = 0
    site._run("autopilot", "resume", "--data", site.data)
    site.start()


if __name__ == "__main__":
    sys.exit(main())
