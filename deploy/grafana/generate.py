#!/usr/bin/env python3
"""Writes Grafana's dashboards, dashboards/*.json, from what boards/ says.

    deploy/grafana/generate.py            writes them
    deploy/grafana/generate.py --check    fails if a file is not as it would be written

Needs Python 3.11 and nothing else.
"""

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from boards import autopilot, cluster, health, job, money  # noqa: E402

BOARDS = [money.BOARD, cluster.BOARD, job.BOARD, health.BOARD, autopilot.BOARD]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a file differs")
    options = parser.parse_args()
    written = {HERE / "dashboards" / f"{board['uid']}.json": json.dumps(board, indent=1) + "\n" for board in BOARDS}
    there = set((HERE / "dashboards").glob("*.json"))
    stale = [file for file in there - written.keys()]
    stale += [file for file, text in written.items() if file not in there or file.read_text() != text]
    if options.check:
        for file in stale:
            print(f"{file.relative_to(HERE)} is not what boards/ says: run deploy/grafana/generate.py")
        return 1 if stale else 0
    for file in stale:
        file.unlink() if file not in written else file.write_text(written[file])
    return 0


if __name__ == "__main__":
    sys.exit(main())
