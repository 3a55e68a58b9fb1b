#!/usr/bin/env bash
# What the programs are built from: licences, sources, and one copy of each large library, as
# deny.toml says. Installs cargo-deny if it is missing, which takes some minutes once. Run by hand.
set -euo pipefail
cd "$(dirname "$0")/.."

tools="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/tools"
export PATH="$tools/bin:$PATH"
# Without optimising across crates: that takes longer than all the rest, to save a second.
command -v cargo-deny >/dev/null \
    || CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        cargo install --locked --quiet --version "^0.20" --root "$tools" cargo-deny
cargo deny --locked --log-level warn check --hide-inclusion-graph bans licenses sources
