#!/usr/bin/env bash
# Installs Chromium (Debian) if it is missing, makes a Python with what the page is checked by, and
# prints that Python's path.
set -euo pipefail
cd "$(dirname "$0")"

found=$(command -v chromium chromium-browser google-chrome | head -1) || true
[ -n "$found" ] || ../install.sh chromium fonts-dejavu-core >&2
home="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/page-$(sha256sum requirements.txt | cut -c1-12)"
if [ ! -e "$home/complete" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || ../install.sh python3 python3-venv >&2
    python3 -m venv --clear "$home"
    # Without what they depend on: of one package a script is used, of the other one module.
    "$home/bin/pip" install --quiet --no-deps --requirement requirements.txt >&2
    touch "$home/complete"
fi
echo "$home/bin/python"
