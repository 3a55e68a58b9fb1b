"""The list of checks that tests/run.sh counts."""

import os


def note(outcome: str, check: str, said: str = "") -> None:
    """Adds a check that passed, failed or was skipped, where tests/run.sh runs the caller. `said` is
    kept unless it passed."""
    if results := os.environ.get("TIDEGATE_RESULTS"):
        why = "" if outcome == "passed" else " ".join(said.split())[:400]
        with open(results, "a", encoding="utf-8") as file:
            file.write(f"{outcome}\t{check}\t{why}\n")
