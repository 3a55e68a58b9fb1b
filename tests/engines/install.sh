#!/usr/bin/env bash
# Makes a Python that has the engines run.py reads with, and prints its path. DuckDB is there twice:
# the newest, and beside it the last one whose Delta extension is on PyPI.
set -euo pipefail
cd "$(dirname "$0")"

home="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/engines-$(cat requirements.txt newer.txt | sha256sum | cut -c1-12)"
if [ ! -e "$home/complete" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || ../install.sh python3 python3-venv >&2
    python3 -m venv --clear "$home"
    "$home/bin/pip" install --quiet --requirement requirements.txt >&2
    "$home/bin/pip" install --quiet --no-deps --target "$home/newer" --requirement newer.txt >&2
    touch "$home/complete"
fi
echo "$home/bin/python"
