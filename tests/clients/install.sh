#!/usr/bin/env bash
# Installs the clients that run.py comes in by: psql, a JDK, the packages of requirements.txt and the
# jars of jars.txt. Prints the Python that has the packages, and the folder of the jars.
set -euo pipefail
cd "$(dirname "$0")"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate"

missing=()
command -v psql >/dev/null || missing+=(postgresql-client)
command -v javac >/dev/null || missing+=(default-jdk-headless)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3 python3-venv)
[ "${#missing[@]}" -eq 0 ] || ../install.sh "${missing[@]}" >&2

home="$cache/clients-$(sha256sum requirements.txt | cut -c1-12)"
if [ ! -e "$home/complete" ]; then
    python3 -m venv --clear "$home"
    "$home/bin/pip" install --quiet --requirement requirements.txt >&2
    touch "$home/complete"
fi

jars="$cache/client-jars-$(sha256sum jars.txt | cut -c1-12)"
../jars.sh . "$jars"
printf '%s\n%s\n' "$home/bin/python" "$jars"
