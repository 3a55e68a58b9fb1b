#!/usr/bin/env bash
# Fuzzes everything that reads bytes from outside, each parser for an hour, from another seed each
# time. The tests do the same for a second each. TIDEGATE_FUZZ_SECONDS says how long instead.
#
#   tests/fuzz.sh [TARGET]
#
# An input that ends a fuzzer is kept; put it into tests/corpus/TARGET with what mends it.
set -euo pipefail
cd "$(dirname "$0")/.."

export TIDEGATE_FUZZ_SECONDS=${TIDEGATE_FUZZ_SECONDS:-3600}
export TIDEGATE_FUZZ_SEED=${TIDEGATE_FUZZ_SEED:-$RANDOM$RANDOM}
[ $# -eq 0 ] || export TIDEGATE_FUZZ_TARGET=$1
echo "seed $TIDEGATE_FUZZ_SEED"
cargo test --locked -p tidegate-collect --test fuzz -- --nocapture
