#!/usr/bin/env python3
"""Makes a folder what a clone of this tree would hold, and touches only what differs.

    tests/mirror.py FROM TO

Cargo builds anew what has a new time, and a fresh clone has nothing but new times. In a copy whose
unchanged files keep theirs, only what changed is built. Everything else in TO is removed, also what
tests left there.
"""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path


def files(source: Path) -> set[str]:
    """What a clone of this state would hold; all files where this is no clone."""
    listed = subprocess.run(
        ["git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True
    )
    if listed.returncode == 0:
        # A file that was removed and not yet committed is still listed.
        return {name for name in listed.stdout.split("\0") if name and (source / name).is_file()}
    found = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    return {str(path) for path in found if path.parts[0] not in (".git", "target")}


def is_same(one: Path, other: Path) -> bool:
    if not other.is_file() or other.is_symlink() or one.stat().st_size != other.stat().st_size:
        return False
    return stat.S_IMODE(one.stat().st_mode) == stat.S_IMODE(other.stat().st_mode) and one.read_bytes() == other.read_bytes()


def mirror(source: Path, target: Path) -> tuple[int, int]:
    """Returns how many files there are, and how many of them were copied."""
    target.mkdir(parents=True, exist_ok=True)
    wanted = files(source)
    folders = {str(parent) for name in wanted for parent in Path(name).parents}
    # From below, so that a folder is empty when its turn comes.
    for root, inner, names in os.walk(target, topdown=False):
        here = Path(root)
        for name in names + [name for name in inner if (here / name).is_symlink()]:
            if str((here / name).relative_to(target)) not in wanted:
                (here / name).unlink()
        if str(here.relative_to(target)) not in folders:
            here.rmdir()
    copied = 0
    for name in sorted(wanted):
        one, other = source / name, target / name
        if not is_same(one, other):
            if other.is_dir():
                shutil.rmtree(other)
            other.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(one, other)
            copied += 1
    return len(wanted), copied


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    count, changed = mirror(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{count} files in {sys.argv[2]}, {changed} of them new or changed")
