#!/usr/bin/env python3
"""The copy of RustSec's advisories beside this file.

    tests/advisories/advisories.py gaps [LOCK]        what the copy cannot answer for, as warnings
    tests/advisories/advisories.py renew [CHECKOUT]   makes the copy anew

`gaps` reads Cargo.lock, or another file of its form. `renew` clones the database from GitHub, or
takes a checkout of it, and keeps the records of the crates in Cargo.lock and the index of all.
"""
import datetime
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
LOCK = HERE.parent.parent / "Cargo.lock"
URL = "https://github.com/RustSec/advisory-db"
# Days until a copy is called old.
OLD = 90


def locked(lock):
    """Names of the registry's crates in a lock file."""
    packages = tomllib.loads(lock.read_text())["package"]
    return {it["name"] for it in packages if it.get("source", "").startswith("registry+")}


def records(crate):
    """Files of a crate's advisories. A proposal that has no number yet is none."""
    return [it for it in crate.glob("RUSTSEC-*.md") if it.stem != "RUSTSEC-0000-0000"]


def index():
    """The copy's date, and the number of advisories of each crate that had any then."""
    head, *lines = (HERE / "index").read_text().splitlines()
    date = datetime.date.fromisoformat(head.split()[1])
    return date, {name: int(count) for name, count in map(str.split, lines)}


def gaps(lock=LOCK):
    date, counts = index()
    missing = [
        name
        for name in sorted(locked(pathlib.Path(lock)) & counts.keys())
        if len(records(HERE / "crates" / name)) < counts[name]
    ]
    for name in missing:
        print(f"warning: {name} is not checked for what was known on {date}; advisories not copied: {counts[name]}")
    age = (datetime.date.today() - date).days
    if age > OLD:
        print(f"warning: the copy of the advisories is {age} days old")
    if missing or age > OLD:
        print("Renew the copy where GitHub can be reached: tests/advisories/advisories.py renew")


def keep(source, target):
    """Copies a record's facts and its title."""
    text = source.read_text()
    facts = re.search(r"^```toml\n.*?^```\n", text, re.DOTALL | re.MULTILINE)
    title = re.search(r"^# .+\n", text[facts.end() :], re.MULTILINE)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{facts[0]}\n{title[0]}")


def renew(checkout=None):
    with tempfile.TemporaryDirectory() as scratch:
        if checkout is None:
            checkout = f"{scratch}/advisory-db"
            subprocess.run(["git", "clone", "--quiet", "--depth=1", URL, checkout], check=True)
        told = subprocess.run(
            ["git", "-C", checkout, "log", "-1", "--format=%cs %H"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        found = {it.name: records(it) for it in (pathlib.Path(checkout) / "crates").iterdir() if it.is_dir()}
        found = {name: files for name, files in sorted(found.items()) if files}
        shutil.rmtree(HERE / "crates", ignore_errors=True)
        for name in found.keys() & locked(LOCK):
            for file in found[name]:
                keep(file, HERE / "crates" / name / file.name)
    lines = "".join(f"{name} {len(files)}\n" for name, files in found.items())
    (HERE / "index").write_text(f"# {told}{lines}")


COMMANDS = {"gaps": gaps, "renew": renew}

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[sys.argv[1]](*sys.argv[2:])
