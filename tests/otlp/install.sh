#!/usr/bin/env bash
# Builds the receiver: the OpenTelemetry Collector's own, in a program of ours that is a page long.
# Prints where it is.
set -euo pipefail
cd "$(dirname "$0")"

tools="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/tools"
command -v go >/dev/null || ../install.sh golang-go >&2
built="$tools/otlp-receiver-$(cat receiver/main.go receiver/go.sum | sha256sum | cut -c1-16)"
if [ ! -x "$built" ]; then
    mkdir -p "$tools"
    (cd receiver && go build -o "$built.new" . >&2 && mv "$built.new" "$built")
fi
echo "$built"
