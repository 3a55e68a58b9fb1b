#!/usr/bin/env bash
# Fetches the jars that FOLDER/pom.xml names into TARGET, unless those of FOLDER/jars.txt are there.
#
#   tests/jars.sh FOLDER TARGET
#
# They are fetched aside and moved one by one once all checksums are right, so that processes may do
# this at the same time. Installs Maven if it is missing.
set -euo pipefail
tests=$(cd "$(dirname "$0")" && pwd)
from=$(cd "$1" && pwd) to=$2

(cd "$to" 2>/dev/null && sha256sum --check --status "$from/jars.txt" 2>/dev/null) && exit
command -v mvn >/dev/null || "$tests/install.sh" maven >&2
mkdir -p "$to"
fetched=$(mktemp -d "$to.fetched.XXXX")
trap 'rm -rf "$fetched"' EXIT
if ! mvn --batch-mode --quiet --file "$from/pom.xml" dependency:copy-dependencies -DoutputDirectory="$fetched" >&2; then
    echo "Maven cannot fetch what $from/pom.xml names; a mirror that can be reached goes into ~/.m2/settings.xml" >&2
    exit 1
fi
if ! (cd "$fetched" && sha256sum --check --quiet "$from/jars.txt") >&2; then
    echo "what Maven fetched is not what $from/jars.txt lists" >&2
    exit 1
fi
while read -r _ name; do
    mv "$fetched/$name" "$to/$name"
done <"$from/jars.txt"
