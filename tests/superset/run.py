#!/usr/bin/env python3
"""Connects Apache Superset by the Postgres door, and draws charts through its API.

    tests/superset/run.py --tidegate target/debug/tidegate

install.sh installs Superset. The site is that of tests/clients: four jobs, TLS, a token.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "clients")]

from bi import Superset
from checks import CHECKS, Seen
from results import note
from server import Site


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True, help="the program to ask")
    options = parser.parse_args()
    home = Path(subprocess.run([HERE / "install.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tidegate-superset-") as scratch:
        site = Site(Path(scratch), options.tidegate.resolve())
        try:
            with Superset(home, Path(scratch)) as superset:
                seen = Seen(superset, site)
                for check in CHECKS:
                    since = time.monotonic()
                    try:
                        outcome, said = "passed", check(seen)
                    except Exception as error:
                        traceback.print_exc()
                        outcome, said, failed = "failed", str(error).partition("\n")[0], failed + 1
                    print(f"{outcome} {check.__name__:26} {time.monotonic() - since:5.1f} s  {said}", flush=True)
                    note(outcome, f"superset: {check.__name__}", said)
        finally:
            site.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
