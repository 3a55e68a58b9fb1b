#!/usr/bin/env bash
# Installs Prometheus and VictoriaMetrics of Debian, as far as they are missing.
set -euo pipefail
cd "$(dirname "$0")"

missing=()
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing+=(prometheus)
command -v victoria-metrics >/dev/null || missing+=(victoria-metrics)
[ "${#missing[@]}" -eq 0 ] || ../install.sh "${missing[@]}" >&2
