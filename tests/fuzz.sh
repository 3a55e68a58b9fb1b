#!/usr/bin/env bash
# Fuzzes everything that reads bytes from outside, each parser for MINUTES (default 5), from another
# seed each time. The tests do the same for a second.
#
#   tests/fuzz.sh [MINUTES [TARGET]]
#
# An input that ends a fuzzer is kept; put it into tests/corpus/TARGET with what mends it.
set -euo pipefail
cd "$(dirname "$0")/.."

export TIDEGATE_FUZZ_SECONDS=$((${1:-5} * 60)) TIDEGATE_FUZZ_SEED=$RANDOM$RANDOM
[ $# -lt 2 ] || export TIDEGATE_FUZZ_TARGET=$2
echo "seed $TIDEGATE_FUZZ_SEED"
cargo test --locked --workspace --test cli -- --exact fuzz::no_input_from_outside_ends_a_process --nocapture
