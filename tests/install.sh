#!/usr/bin/env bash
# Installs Debian packages, as root or with a sudo that asks for no password:   install.sh PACKAGE...
set -euo pipefail

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
    echo "cannot install $* from here: it takes apt-get, and root or a sudo that asks for no password" >&2
    exit 1
fi
"${as_root[@]}" apt-get update --quiet
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends "$@"
