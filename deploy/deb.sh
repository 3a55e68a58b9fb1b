#!/usr/bin/env bash
# Builds Debian packages with cargo-deb, which it installs if it is missing. Beside each it says what
# that is built from (PACKAGE.cdx.json, CycloneDX).
#
#   deploy/deb.sh [--profile PROFILE] [--output DIR] [--built] [PACKAGE...]
#
# PACKAGE: tidegate-node (default). PROFILE: release (default); dev is for trying the package out.
# --built packs existing binaries, whatever their features.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release output=target/debian built=false packages=()
while [ $# -gt 0 ]; do
    case "$1" in
        --profile) profile=$2; shift 2 ;;
        --output) output=$2; shift 2 ;;
        --built) built=true; shift ;;
        -*) echo "unknown option $1; see the head of this file" >&2; exit 2 ;;
        *) packages+=("$1"); shift ;;
    esac
done
[ ${#packages[@]} -gt 0 ] || packages=(tidegate-node)

command -v dpkg-shlibdeps >/dev/null || tests/install.sh dpkg-dev
tools="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/tools"
export PATH="$tools/bin:$PATH"
command -v cargo-deb >/dev/null || cargo install --locked --quiet --version "^3" --root "$tools" cargo-deb
mkdir -p "$output"
for package in "${packages[@]}"; do
    $built || cargo build --locked --profile "$profile" --package "$package"
    cargo deb --locked --no-build --profile "$profile" --package "$package" --output "$output/"
    deploy/sbom.py "$package" > "$output/$package.cdx.json"
done
