#!/usr/bin/env python3
"""Lets real clients in by the doors of a site, and shows what each one saw.

    tests/clients/run.py --tidegate target/debug/tidegate [--only NAME...]

psql, psycopg, SQLAlchemy, pgjdbc, ADBC and Flight's JDBC ask over TLS with a token, as people do, a
client of MCP asks `tidegate mcp`, and the cases of cases/*.slt go through every door, `tidegate sql`
included. install.sh installs the clients, and this script runs itself by
the Python that has them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results import note  # noqa: E402

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True, help="the program to ask")
    parser.add_argument("--only", nargs="*", default=[], help="names of checks; all by default")
    options = parser.parse_args()
    python, jars = subprocess.run([HERE / "install.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    # Not the file behind it, which many environments share.
    if Path(sys.executable) != Path(python):
        os.execv(python, [python, *sys.argv])
    import flight
    import postgres
    from assistant import assistant_asks
    from doors import doors_agree
    from server import Site

    every = [*postgres.CHECKS, *flight.CHECKS, assistant_asks, doors_agree]
    checks = [check for check in every if not options.only or check.__name__ in options.only]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tidegate-clients-") as scratch:
        site = Site(Path(scratch), options.tidegate.resolve())
        site.jars = Path(jars)
        try:
            for check in checks:
                since = time.monotonic()
                try:
                    outcome, said = "passed", check(site)
                except Exception as error:
                    traceback.print_exc()
                    outcome, said, failed = "failed", str(error).partition("\n")[0], failed + 1
                print(f"{outcome} {check.__name__:24} {time.monotonic() - since:5.1f} s  {said}", flush=True)
                note(outcome, f"clients: {check.__name__}", said)
        finally:
            site.close()
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
