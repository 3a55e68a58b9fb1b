#!/usr/bin/env bash
# Builds the stand-in driver: build.sh OUT.so
set -euo pipefail
cd "$(dirname "$0")"
[ $# = 1 ] || { echo "usage: build.sh OUT.so" >&2; exit 2; }
"${CC:-cc}" -std=gnu11 -O1 -Wall -Wextra -Werror -fPIC -shared -pthread -o "$1" scenario.c standin.c -lm -ldl
