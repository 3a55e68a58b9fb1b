#!/usr/bin/env bash
# Makes a Python that has the engines `tidegate bench query --beside` compares with, and prints its path.
set -euo pipefail
cd "$(dirname "$0")"

home="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/peers-$(sha256sum requirements.txt | cut -c1-12)"
if [ ! -e "$home/complete" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || ../install.sh python3 python3-venv >&2
    python3 -m venv --clear "$home"
    "$home/bin/pip" install --quiet --requirement requirements.txt >&2
    touch "$home/complete"
fi
echo "$home/bin/python"
