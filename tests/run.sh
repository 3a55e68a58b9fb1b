#!/usr/bin/env bash
# Runs every check of the repository: format, lints, tests, and the answers against another engine.
#
# Needs Rust (rustup), a C toolchain and make. Installs Python's venv module, ssh-keygen, a Java runtime, kcat, strace and Slurm if they are missing
# (Debian: as root or with sudo), and cargo-deb, and fetches the jars of a Kafka broker (tests/kafka/broker.sh) and Python packages from PyPI
# (tests/kafka/read_topic.py) for the tests of the log.
# Build folder: TIDEGATE_TARGET_DIR, by default a cache outside the clone. Further traces: TIDEGATE_SHARED_DATA.
set -euo pipefail
cd "$(dirname "$0")/.."

export CARGO_TARGET_DIR="${TIDEGATE_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/target}"
# rustup puts its programs here; a login shell that has not been started anew does not know.
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

passed=0
failed=()

# section NAME COMMAND...: runs the command and goes on after a failure, so that one run shows everything that is wrong.
section() {
    local name=$1 begun=$SECONDS
    shift
    printf '\n=== %s\n' "$name"
    if "$@"; then
        passed=$((passed + 1))
        printf '=== %s: passed in %s s\n' "$name" $((SECONDS - begun))
    else
        failed+=("$name")
        printf '=== %s: FAILED after %s s\n' "$name" $((SECONDS - begun))
    fi
}

need() {
    command -v "$1" >/dev/null || { echo "$1 is missing: $2" >&2; exit 1; }
}

has_python() {
    python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

install_python() {
    has_python || tests/install.sh python3 python3-venv
    has_python || { echo "Python 3.11 or newer with the venv module is needed" >&2; return 1; }
}

# Signatures of policies and approvals are checked with OpenSSH itself.
install_ssh_keygen() {
    command -v ssh-keygen >/dev/null || tests/install.sh openssh-client
}

answers() {
    local binary="$CARGO_TARGET_DIR/debug/tidegate"
    local folders=(--data-dir crates/tidegate/demo)
    # Millions of rows in a debug build: half an hour, which is asked for, not taken.
    if [ -n "${TIDEGATE_SHARED_DATA:-}" ]; then
        [ -d "$TIDEGATE_SHARED_DATA" ] || { echo "TIDEGATE_SHARED_DATA names no folder: $TIDEGATE_SHARED_DATA" >&2; return 1; }
        folders+=(--data-dir "$TIDEGATE_SHARED_DATA")
    fi
    # As the tests built it: built alone it would have other features, and all below it be built once more.
    cargo test --locked --workspace --no-run && python3 tests/verify/verify.py --tidegate "$binary" "${folders[@]}"
}

need cargo "install Rust from https://rustup.rs"
need cc "install a C toolchain, on Debian: apt-get install build-essential"
need make "install a C toolchain, on Debian: apt-get install build-essential"

section "python" install_python
section "ssh-keygen" install_ssh_keygen
section "format" cargo fmt --all --check
section "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
section "kafka" tests/kafka/broker.sh install
section "slurm" tests/slurm/cluster.sh install
section "python client" python3 -m unittest discover -s deploy/clients/python
section "packages" tests/packaging.sh
section "tests" cargo test --locked --workspace --no-fail-fast
section "answers against DuckDB" answers

printf '\n%s sections passed, %s failed%s\n' "$passed" "${#failed[@]}" "${failed[*]:+: ${failed[*]}}"
[ "${#failed[@]}" -eq 0 ]
