#!/usr/bin/env bash
# What the programs are built from: licences, sources, and one copy of each large library, as
# deny.toml says. Installs cargo-deny if it is missing, which takes some minutes once.
set -euo pipefail
cd "$(dirname "$0")/.."

tools="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/tools"
export PATH="$tools/bin:$PATH"
# Its own build folder would be removed; the cache's holds other features of the same crates.
command -v cargo-deny >/dev/null \
    || CARGO_TARGET_DIR="$tools/build" cargo install --locked --quiet --version "^0.20" --root "$tools" cargo-deny
cargo deny --locked --log-level warn check --hide-inclusion-graph bans licenses sources
