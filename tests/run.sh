#!/usr/bin/env bash
# Runs every check of the repository: what README.md says, format, lints, tests, and the answers
# against another engine.
#
#   tests/run.sh            everything; its last line says how many checks passed, failed and were skipped
#   tests/run.sh --quick    while you work: format, lints, and the unit tests of what differs from the main branch
#
# Needs git, Rust (rustup), a C toolchain and make. Installs Python's venv module, ssh-keygen,
# openssl, curl, psql, Prometheus, VictoriaMetrics, Chromium, a JDK, Maven, kcat, strace and Slurm if
# they are missing (Debian: as root or with sudo), and cargo-deb, and fetches the jars of a Kafka
# broker (tests/kafka) and what the requirements.txt files of tests/ name. With CI=true a check whose
# server is missing fails; otherwise it is skipped.
#
# What runs is a copy of the tree in a cache, so that nothing is left in the clone and cargo builds
# what changed, not what is newly cloned. Build folder: TIDEGATE_TARGET_DIR, by default in that
# cache. Further traces: TIDEGATE_SHARED_DATA. TIDEGATE_LONG=1 runs proofs in their long form, for
# hours. To add a check, add a line with `section` below.
set -euo pipefail
# Bash reads a script while it runs it; a block it reads whole, so that an edit does no harm.
{
clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$clone"

cache="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate"
export CARGO_TARGET_DIR="${TIDEGATE_TARGET_DIR:-$cache/target}"
# rustup puts its programs here; a login shell that has not been started anew does not know.
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
# Bytecode would be files in the tree that nobody cloned.
export PYTHONDONTWRITEBYTECODE=1

quick=false
case "${1:-}" in
    "") ;;
    --quick) quick=true ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

# Tests of imports take the public traces that lie beside the clone; the answers only those asked for.
traces="${TIDEGATE_SHARED_DATA:-}"
if [ -n "$traces" ]; then
    traces=$(realpath --canonicalize-existing "$traces") || exit 2
    export TIDEGATE_SHARED_DATA="$traces"
elif [ -d "$clone/../shared/data" ]; then
    export TIDEGATE_SHARED_DATA="$clone/../shared/data"
fi

mkdir -p "$cache"
scratch=$(mktemp -d)
tidegate="$scratch/tidegate"
in_memory=
trap 'end_besides; rm -rf "$scratch" "${in_memory:-$scratch}"' EXIT
# A line for each check: passed, failed or skipped, its name, and why, between tabs.
export TIDEGATE_RESULTS="$scratch/results"
: >"$TIDEGATE_RESULTS"
begun=$SECONDS

# Sets `processor_s` to the processor time, in seconds, of all commands that have ended.
read_processor_s() {
    # A pipe or `$(times)` would run in a subshell, whose children have taken no time.
    times >"$scratch/times"
    processor_s=$(awk 'NR == 2 { gsub(/[ms]/, " "); print int($1 * 60 + $2 + $3 * 60 + $4) }' "$scratch/times")
}

# section NAME COMMAND...: runs the command and goes on after a failure, so that one run shows
# everything that is wrong. A command that notes its own checks is counted by those, any other one
# is a check itself.
section() {
    local name=$1 since=$SECONDS processor_s used noted status=0
    shift
    read_processor_s
    used=$processor_s
    noted=$(wc -l <"$TIDEGATE_RESULTS")
    printf '\n=== %s\n' "$name"
    # Without the lock of the copy: what a check leaves running must not hold up the next run.
    "$@" 9>&- || status=$?
    read_processor_s
    if [ "$status" -eq 0 ]; then
        printf '=== %s: passed in %s s, %s s of processors\n' "$name" $((SECONDS - since)) $((processor_s - used))
        [ "$(wc -l <"$TIDEGATE_RESULTS")" -gt "$noted" ] || printf 'passed\t%s\t\n' "$name" >>"$TIDEGATE_RESULTS"
    else
        printf '=== %s: FAILED after %s s\n' "$name" $((SECONDS - since))
        # Not `grep -q`: it ends early, and a broken pipe would count as nothing found.
        tail -n +$((noted + 1)) "$TIDEGATE_RESULTS" | grep '^failed' >/dev/null \
            || printf 'failed\t%s\tstatus %s\n' "$name" "$status" >>"$TIDEGATE_RESULTS"
    fi
}

# Says why checks were skipped and which failed; the last line stands alone.
conclude() {
    local passed failed skipped
    passed=$(grep -c '^passed' "$TIDEGATE_RESULTS" || true)
    failed=$(grep -c '^failed' "$TIDEGATE_RESULTS" || true)
    skipped=$(grep -c '^skipped' "$TIDEGATE_RESULTS" || true)
    printf '\n%s s in all\n' $((SECONDS - begun))
    awk -F '\t' '$1 != "passed" { print $1 ": " $2 ($3 == "" ? "" : " (" $3 ")") }' "$TIDEGATE_RESULTS" | sort -r
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" -eq 0 ]
}

# Puts temporary files into memory if there is room and programs may run there. Tests make and
# delete thousands of files, which takes a quarter of an import's processor time on a disk.
use_memory() {
    local free available
    free=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
    available=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    # KiB. Twelve suites together held 0.65 GiB at most.
    [ "${free:-0}" -ge $((8 << 20)) ] && [ "${available:-0}" -ge $((12 << 20)) ] || return 0
    in_memory=$(mktemp -d /dev/shm/tidegate.XXXXXX)
    # As /tmp: some tests run programs as other users.
    chmod 1777 "$in_memory"
    printf '#!/bin/sh\n' >"$in_memory/program"
    chmod +x "$in_memory/program"
    ! "$in_memory/program" 2>/dev/null || export TMPDIR="$in_memory"
    rm "$in_memory/program"
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

# Certificates of people are made by openssl, and shown by curl.
install_openssl() {
    command -v openssl >/dev/null && command -v curl >/dev/null || tests/install.sh openssl curl
}

# go_to_copy NAME: makes the copy of this tree in the cache and goes there. One run at a time uses
# it.
go_to_copy() {
    exec 9>"$cache/$1.lock"
    flock --nonblock 9 || { echo "waiting for another run that uses $cache/$1"; flock 9; }
    tests/mirror.py "$clone" "$cache/$1"
    cd "$cache/$1"
}

# Builds everything, and copies the program for the background sections, so that no later build
# replaces it under them.
build() {
    cargo test --locked --workspace --no-run || return
    cp "$CARGO_TARGET_DIR/debug/tidegate" "$tidegate"
}

# Every page is in the site and links to what exists; plots show their figures.
check_docs() {
    docs/site.py --check && docs/results/plot.py --check
}

answers() {
    local folders=(--data-dir crates/tidegate/demo)
    # Millions of rows in a debug build: half an hour, which is asked for, not taken.
    [ -z "$traces" ] || folders+=(--data-dir "$traces")
    python3 tests/verify/verify.py --tidegate "$tidegate" "${folders[@]}"
}

# The ledger beside a second one that shares nothing with it: tests/oracle.
oracle() {
    local scenes=200
    [ -z "${TIDEGATE_LONG:-}" ] || scenes=10000
    # Scenes that a fixed fault made differ. The long form's ten thousand include them.
    local known=(--also 997 2866 3250 3634 4742 5176 6478 7119 8992)
    [ -z "${TIDEGATE_LONG:-}" ] || known=()
    # `section` takes the status, which switches `set -e` off: each command says itself when to stop.
    python3 tests/oracle/run.py --tidegate "$tidegate" --scenes "$scenes" "${known[@]}" || return
    # A synthetic day with training steps, MIG slices and agents that fall silent.
    "$tidegate" bench ledger --hours 1 --nodes 3 --keep "$scratch/day" --json >/dev/null || return
    python3 tests/oracle/run.py --tidegate "$tidegate" --data "$scratch/day"
}

# A site on a real Slurm for a quarter of an hour: tests/slurm/ledger.
site() {
    local minutes=15
    [ -z "${TIDEGATE_LONG:-}" ] || minutes=60
    # It ends what it started when it is asked to end; whoever asks knows this process only.
    exec python3 tests/slurm/ledger/run.py --tidegate "$tidegate" --minutes "$minutes"
}

# Attacks on a site: tests/hostile.
attacks() {
    exec python3 tests/hostile/run.py --tidegate "$tidegate"
}

# The page in a real browser: tests/page.
page() {
    local python
    python=$(tests/page/install.sh) || return
    "$python" tests/page/run.py --tidegate "$tidegate"
}

slurm_is_missing() {
    echo "Slurm is missing: tests/slurm/cluster.sh install" >&2
    return 1
}

declare -A besides=()

# beside NAME COMMAND...: runs the command beside the sections that follow, until `joined NAME`. It
# is for what mostly waits, or leaves a processor idle.
beside() {
    local name=$1
    shift
    : >"$scratch/$name.results"
    (
        trap - EXIT
        export TIDEGATE_RESULTS="$scratch/$name.results"
        "$@"
    ) >"$scratch/$name.output" 2>&1 9>&- &
    besides[$name]=$!
}

# joined NAME: waits for what runs beside, and shows what it printed.
joined() {
    local status=0
    wait "${besides[$1]}" || status=$?
    unset "besides[$1]"
    cat "$scratch/$1.output"
    cat "$scratch/$1.results" >>"$TIDEGATE_RESULTS"
    return "$status"
}

end_besides() {
    local name
    for name in "${!besides[@]}"; do
        kill "${besides[$name]}" 2>/dev/null || true
    done
}

need git "on Debian: apt-get install git"
need cargo "install Rust from https://rustup.rs"
need cc "install a C toolchain, on Debian: apt-get install build-essential"
need make "install a C toolchain, on Debian: apt-get install build-essential"

[ -n "${TMPDIR:-}" ] || use_memory
section "python" install_python
# In a folder beside the builds, so that builds of several targets do not take each other's copy for
# theirs.
go_to_copy tree
section "format" cargo fmt --all --check
if $quick; then
    section "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
    section "tests" tests/suites/run.py --unit --changed "$clone"
    conclude
    exit
fi
section "docs" check_docs
section "dependencies" tests/dependencies.sh
section "ssh-keygen" install_ssh_keygen
section "openssl" install_openssl
section "kafka" tests/kafka/broker.sh install
section "slurm" tests/slurm/cluster.sh install
section "clients" tests/clients/install.sh
section "prometheus" tests/prometheus/install.sh
section "superset" tests/superset/install.sh
section "engines" tests/engines/install.sh
section "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
section "build" build
# The site and README's commands mostly wait, so the answers and the oracle run beside them.
has_slurm=false
if tests/slurm/cluster.sh check; then
    has_slurm=true
    beside site site
    beside attacks attacks
fi
beside answers answers
beside oracle oracle
section "README and guides" tests/docs/run.py
section "page" page
section "clients at the doors" tests/clients/run.py --tidegate "$tidegate"
section "Superset at the Postgres door" tests/superset/run.py --tidegate "$tidegate"
section "other engines" tests/engines/run.py --tidegate "$tidegate"
section "monitoring" tests/monitoring/run.py --tidegate "$tidegate"
section "OTLP" tests/otlp/run.py --tidegate "$tidegate"
section "history of servers" tests/prometheus/run.py --tidegate "$tidegate"
section "python client" python3 -m unittest discover -s deploy/clients/python
# Before the suites, whose clusters must come up in time.
section "answers against DuckDB" joined answers
section "ledger against the oracle" joined oracle
section "tests" tests/suites/run.py
section "packages" tests/packaging.sh
if $has_slurm; then
    section "ledger on a real Slurm" joined site
    section "attacks on a site" joined attacks
elif [ "${CI:-}" = true ]; then
    section "ledger on a real Slurm" slurm_is_missing
else
    printf 'skipped\tledger on a real Slurm\tSlurm is missing\n' >>"$TIDEGATE_RESULTS"
fi
conclude
exit
}
