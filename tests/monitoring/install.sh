#!/usr/bin/env bash
# Installs Prometheus (Debian) if it is missing, and what tests/clients needs. Prints the Python that
# has psycopg.
set -euo pipefail
cd "$(dirname "$0")"

command -v promtool >/dev/null || ../install.sh prometheus >&2
../clients/install.sh | sed -n 1p
