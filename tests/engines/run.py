#!/usr/bin/env python3
"""Other engines read the tables of a demo: DuckDB, and delta-rs with Arrow.

    tests/engines/run.py --tidegate target/debug/tidegate

While the demo is written, both read the same versions of its busiest tables and must see the same
numbers in them. Once it has ended, every table on disk must have the rows that `tidegate sql` shows.
install.sh installs the engines, and this script runs itself by the Python that has them.
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
    parser.add_argument("--tidegate", type=Path, required=True, help="the program that writes")
    options = parser.parse_args()
    python = subprocess.run([HERE / "install.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    # Not the file behind it, which many environments share.
    if Path(sys.executable) != Path(python):
        os.execv(python, [python, *sys.argv])
    from checks import at_rest, while_written
    from writer import Writer

    failed = 0
    with tempfile.TemporaryDirectory(prefix="tidegate-engines-") as scratch:
        writer = Writer(options.tidegate.resolve(), Path(scratch))
        try:
            for check in (while_written, at_rest):
                since = time.monotonic()
                try:
                    outcome, said = "passed", check(writer)
                except Exception as error:
                    traceback.print_exc()
                    outcome, said, failed = "failed", str(error).partition("\n")[0], failed + 1
                print(f"{outcome} {check.__name__:14} {time.monotonic() - since:5.1f} s  {said}", flush=True)
                note(outcome, f"other engines: {check.__name__}", said)
        finally:
            writer.end()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
