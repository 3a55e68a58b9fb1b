#!/usr/bin/env python3
"""Imports real traces with the tidegate binary and checks its SQL answers against DuckDB reading the source files.

    tests/verify/verify.py --tidegate target/debug/tidegate [--data-dir FOLDER]... [--case NAME]... [--quick]

Every trace of the given folders that a shipped mapping is named after is checked, and a generated year of Slurm
accounting. Why jobs waited is checked against a replay of those traces that tell it, and of a generated queue, each with
declared nodes (`--case waits`). Ends with status 1 if any answer differs. Needs Python 3.11; installs DuckDB and PyArrow beside the repository.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results import note  # noqa: E402

HERE = Path(__file__).resolve().parent


def enter_environment() -> None:
    """Goes on in a virtual environment that has what requirements.txt names, made at the first run."""
    requirements = HERE / "requirements.txt"
    wanted = requirements.read_text() + sys.version
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
    home = cache / f"verify-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if Path(sys.prefix) == home:
        return
    complete = home / "complete"
    if not complete.exists():
        print(f"verify: installing DuckDB and PyArrow into {home}", flush=True)
        venv.create(home, clear=True, with_pip=True)
        install = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--requirement", requirements], check=True)
        complete.touch()
    os.execv(home / "bin/python", [str(home / "bin/python"), *sys.argv])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tidegate", type=Path, required=True, help="the binary to check")
    parser.add_argument("--data-dir", type=Path, action="append", default=[], help="folder with traces; may be repeated")
    parser.add_argument("--case", action="append", default=[], help="only this case; may be repeated")
    parser.add_argument("--quick", action="store_true", help="only questions, without importing again in other ways")
    parser.add_argument("--sacct-jobs", type=int, default=4000, help="records in the generated year of accounting")
    parser.add_argument("--queue-jobs", type=int, default=400, help="jobs of the generated queue")
    parser.add_argument("--samples", type=int, default=300, help="stretches of waits to replay of each trace")
    parser.add_argument("--parallel", type=int, default=2, help="cases at a time")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="tidegate-verify-") as scratch:
        histories, scenes = find(args, Path(scratch)), find_waits(args, Path(scratch))
        if not histories and not scenes:
            print("verify: no trace found; --data-dir must name a folder with e.g. philly_multigpu_attempts.parquet")
            return 1
        with ThreadPoolExecutor(args.parallel) as pool:
            running = [pool.submit(check, args, label, history, Path(scratch)) for label, history in histories]
            running += [pool.submit(check_waits, args, label, scene, Path(scratch)) for label, scene in scenes]
            answers = [answer for future in running for answer in show(future.result())]
    wrong = sum(not answer.equal for answer in answers)
    rows = sum(answer.rows for answer in answers)
    print(f"\nverify: {len(answers) - wrong} of {len(answers)} answers equal, {rows:,} rows compared, {wrong} differ")
    return 1 if wrong else 0


def find(args: argparse.Namespace, scratch: Path) -> list:
    """The histories to check, each file once, under the name of its folder and case."""
    from cases import SACCT, TRACES
    from sacct import END_S, Year
    from variants import SEED, History

    histories, seen = [], set()
    for folder in args.data_dir:
        for case in TRACES:
            file = folder / f"{case.name}.parquet"
            if not file.exists() or (args.case and case.name not in args.case):
                continue
            contents = hashlib.sha256(file.read_bytes()).digest()
            if contents not in seen:
                seen.add(contents)
                histories.append((f"{folder.name}/{case.name}", History(case, file)))
    if not args.case or SACCT.name in args.case:
        year = Year(SEED, args.sacct_jobs)
        file = scratch / "accounting.txt"
        year.write(file, END_S)
        histories.append(("generated/sacct", History(SACCT, file, year)))
    return histories


def find_waits(args: argparse.Namespace, scratch: Path) -> list:
    """Histories of which is told who waited, each with the nodes to declare for it, and once under its name."""
    from waits import TRACES, scheduler

    if args.case and "waits" not in args.case:
        return []
    scenes = {"generated/queue waits": scheduler(scratch, args.queue_jobs)}
    for folder in reversed(args.data_dir):
        for name, load in TRACES.items():
            if (folder / f"{name}.parquet").exists():
                scenes[f"{name} waits"] = load(folder / f"{name}.parquet", scratch)
    return list(scenes.items())


def check_waits(args: argparse.Namespace, label: str, scene, scratch: Path) -> list:
    """Imports one history with its nodes, and asks why its jobs waited."""
    from compare import Answer
    from program import CommandFailed, Data
    from waits import replayed

    fresh = Data(args.tidegate.resolve(), scratch / label.replace("/", "-").replace(" ", "-"))
    try:
        return replayed(label, scene, fresh, args.samples)
    except CommandFailed as failure:
        return [Answer(label, "why jobs waited", 0, False, "failed", str(failure))]


def check(args: argparse.Namespace, label: str, history, scratch: Path) -> list:
    """Imports one history, asks all questions about it, and brings it in again in other ways."""
    import duckdb

    import variants
    from compare import Answer, answer
    from program import CommandFailed, Data

    folder = label.replace("/", "-")
    data = Data(args.tidegate.resolve(), scratch / folder)
    answers = []

    def attempt(what: str, ask) -> bool:
        """Notes the answer; a command that fails is a wrong one, and the next question is asked."""
        try:
            answers.append(ask())
            return True
        except CommandFailed as failure:
            answers.append(Answer(label, what, 0, False, "failed", str(failure)))
            return False

    def bring_in() -> Answer:
        counts = data.bring_in(history.case.import_arguments, history.file)
        rows = counts["rows accepted"]
        complete = rows == counts["rows read"] == len(variants.rows_of(history.file))
        return Answer(label, "every row is read and accepted", rows, complete, "0" if complete else "rows", str(counts))

    if not attempt("every row is read and accepted", bring_in):
        return answers
    with duckdb.connect() as db:
        db.execute(f"SET threads TO 2; CREATE VIEW source AS SELECT * FROM {reader(history.file)}")
        db.execute(history.case.views)
        for question in history.case.questions:
            attempt(question.name, lambda question=question: answer(label, question, data, db))
    if not args.quick:
        attempt("imported again", lambda: variants.again(label, data, history))
        for way in [variants.overlapping, variants.shuffled] + ([variants.grown] if history.year else []):
            fresh = Data(data.binary, scratch / f"{folder}-{way.__name__}")
            attempt(way.__name__, lambda way=way, fresh=fresh: way(label, data, history, fresh))
    return answers


def reader(file: Path) -> str:
    if file.suffix == ".parquet":
        return f"read_parquet('{file}')"
    return f"read_csv('{file}', delim = '|', header = true, all_varchar = true, quote = '', nullstr = '~')"


def show(answers: list) -> list:
    for answer in answers:
        verdict = "equal" if answer.equal else "DIFFERS"
        print(f"{answer.case:38} {answer.question:62.62} {answer.rows:>8,} rows  {verdict:8} {answer.difference}", flush=True)
        if not answer.equal:
            print(f"    {answer.note}", flush=True)
        note("passed" if answer.equal else "failed", f"{answer.case}: {answer.question}", answer.note)
    return answers


if __name__ == "__main__":
    enter_environment()
    sys.exit(main())
