#!/usr/bin/env bash
# A real Slurm on one machine for tests: slurmctld, several slurmd with made-up GPUs, and slurmdbd with MariaDB if asked for.
# All of them are ordinary processes with their files in one folder and an authentication of their own; nothing needs root.
#
#   cluster.sh install             Slurm, MariaDB and munge from Debian if they are missing
#   cluster.sh check               whether all of that is there
#   cluster.sh run DIR [OPTION...] a cluster in DIR until standard input ends, so that it outlives no test; says "ready"
#   cluster.sh up DIR [OPTION...]  the same for people: comes back when it is ready
#   cluster.sh down DIR            stops what `up` started
#   cluster.sh stop|start DIR NAME...   one process and again: slurmctld, slurmdbd, n1, ...
#
# Options: --dbd with accounting, --topology=tree with a leaf switch for each partition below a spine, --nodes=TRAIN+INFER
# numbers of nodes of the two partitions (4+1). Those of `train` have eight GPUs of type h200 each, those of `infer` four of
# type a100; they are named n1, n2, ... throughout. Use it with SLURM_CONF=DIR/slurm.conf. SLURM_CONF_LINES adds lines to
# slurm.conf.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH="$PATH:/usr/sbin:/sbin"
train=() infer=() nodes=()
# slurmd takes distinct character devices for GPUs; these are on every Linux, and nobody opens them.
devices=(null zero full random urandom tty ptmx tty0)

check() {
    local program
    for program in slurmctld slurmd slurmdbd munged mariadbd squeue sacct; do
        command -v "$program" >/dev/null || return 1
    done
}

install() {
    check || "$here/../install.sh" slurm-wlm slurmdbd mariadb-server munge >&2
}

# Ports that nobody listens on now, COUNT in a row; says the first.
free_ports() {
    local count=$1 base at
    for _ in $(seq 100); do
        base=$((20000 + RANDOM % 1200 * 10))
        for at in $(seq "$base" $((base + count - 1))); do
            (: <"/dev/tcp/127.0.0.1/$at") 2>/dev/null && continue 2
        done
        echo "$base"
        return
    done
    echo "no $count free ports in a row between 20000 and 32000" >&2
    return 1
}

# size TRAIN+INFER: how many nodes each partition has.
size() {
    local train_count=${1%+*} infer_count=${1#*+} number
    train=() infer=()
    for number in $(seq "$train_count"); do train+=("n$number"); done
    for number in $(seq $((train_count + 1)) $((train_count + infer_count))); do infer+=("n$number"); done
    nodes=("${train[@]}" "${infer[@]}")
}

is_infer() {
    [[ " ${infer[*]} " == *" $1 "* ]]
}

joined() {
    local IFS=,
    echo "$*"
}

configure() {
    local dir=$1 dbd=$2 topology=$3 base me node port
    mkdir -p "$dir"/{munge,state,spool,log,pids}
    chmod 755 "$dir" "$dir/munge"
    base=$(free_ports $((3 + ${#nodes[@]})))
    me=$(id -un)
    echo "$base" >"$dir/ports"
    {
        cat <<END
ClusterName=tidegate
SlurmctldHost=localhost
SlurmctldPort=$base
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/pids/slurmctld.slurm
SlurmdPidFile=$dir/pids/%n.slurm
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/jobcomp.txt
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_min_interval=200000,batch_sched_delay=0,default_queue_depth=1000,requeue_setup_env_fail
ReturnToService=2
MinJobAge=${TIDEGATE_MIN_JOB_AGE:-300}
KillWait=2
SlurmdTimeout=30
InactiveLimit=0
MaxArraySize=1001
# An agent finds a job's processes by its number among all of the machine: no two clusters share any.
FirstJobId=$((base * 100 + 1))
DefMemPerCPU=100
END
        if [ "$dbd" = yes ]; then
            cat <<END
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageTRES=gres/gpu,gres/gpu:h200,gres/gpu:a100
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((base + 1))
AccountingStoragePass=$dir/munge/socket
AccountingStorageEnforce=associations,limits,qos,safe
PreemptType=preempt/qos
PreemptMode=REQUEUE
END
        else
            echo "AccountingStorageType=accounting_storage/none"
        fi
        port=$((base + 3))
        for node in "${nodes[@]}"; do
            local gres=gpu:h200:8
            is_infer "$node" && gres=gpu:a100:4
            echo "NodeName=$node NodeHostname=localhost NodeAddr=127.0.0.1 Port=$port CPUs=64 RealMemory=500000 Gres=$gres State=UNKNOWN"
            port=$((port + 1))
        done
        echo "PartitionName=train Nodes=$(joined "${train[@]}") Default=YES MaxTime=1-00:00:00 State=UP OverSubscribe=NO"
        echo "PartitionName=infer Nodes=$(joined "${infer[@]}") MaxTime=INFINITE State=UP"
        [ "$topology" = none ] || echo "TopologyPlugin=topology/$topology"
        echo "${SLURM_CONF_LINES:-}"
    } >"$dir/slurm.conf"
    [ "$topology" = none ] || {
        echo "SwitchName=leaf-train Nodes=$(joined "${train[@]}")"
        echo "SwitchName=leaf-infer Nodes=$(joined "${infer[@]}")"
        echo "SwitchName=spine Switches=leaf-train,leaf-infer"
    } >"$dir/topology.conf"
    {
        for node in "${nodes[@]}"; do
            local type=h200 count=8 device
            is_infer "$node" && type=a100 count=4
            for device in "${devices[@]:0:$count}"; do
                echo "NodeName=$node Name=gpu Type=$type File=/dev/$device"
            done
        done
    } >"$dir/gres.conf"
    # The file holds a password, and slurmdbd insists.
    (
        umask 077
        cat >"$dir/slurmdbd.conf" <<END
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((base + 1))
SlurmUser=$me
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((base + 2))
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile=$dir/log/slurmdbd.log
PidFile=$dir/pids/slurmdbd.slurm
END
    )
}

# Starts a program of the cluster and notes its process id. It belongs to a session of its own: a Ctrl-C is for the supervisor.
begin() {
    local dir=$1 name=$2
    shift 2
    SLURM_CONF="$dir/slurm.conf" setsid "$@" </dev/null >>"$dir/log/$name.out" 2>&1 &
    echo $! >"$dir/pids/$name"
    disown
}

begin_named() {
    local dir=$1 name=$2
    case "$name" in
        slurmctld) begin "$dir" slurmctld slurmctld -D ;;
        slurmdbd) begin "$dir" slurmdbd env SLURM_CONF="$dir/slurmdbd.conf" slurmdbd -D ;;
        n*) begin "$dir" "$name" slurmd -D -N "$name" ;;
        *) echo "no process named $name" >&2; return 1 ;;
    esac
}

# wait_for WHAT COMMAND...: until it succeeds, at most two minutes: other tests may keep the machine busy.
wait_for() {
    local what=$1 begun=$SECONDS
    shift
    until "$@" >/dev/null 2>&1; do
        if [ $((SECONDS - begun)) -gt 120 ]; then
            echo "$what: not within two minutes" >&2
            return 1
        fi
        sleep 0.1
    done
}

start_database() {
    local dir=$1 port
    # A database that starts deletes what others keep in a folder for temporary tables, /tmp by default.
    local -x TMPDIR="$dir/tmp"
    mkdir -p "$TMPDIR"
    port=$(($(cat "$dir/ports") + 2))
    mariadb-install-db --no-defaults --datadir="$dir/db" --user="$(id -un)" --skip-test-db \
        --auth-root-authentication-method=normal --innodb-log-file-size=8M >"$dir/log/install-db.out" 2>&1 \
        || { head -n 4 "$dir/log/install-db.out" >&2; return 1; }
    begin "$dir" mariadb mariadbd --no-defaults --user="$(id -un)" --datadir="$dir/db" --socket="$dir/db.sock" \
        --port="$port" --bind-address=127.0.0.1 --pid-file="$dir/pids/mariadb.db" --innodb-log-file-size=8M \
        --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 --skip-log-bin
    wait_for MariaDB mariadb --no-defaults --socket="$dir/db.sock" --user=root --execute="select 1"
    mariadb --no-defaults --socket="$dir/db.sock" --user=root --execute="
        create user 'slurm'@'127.0.0.1' identified by 'slurm';
        create user 'slurm'@'localhost' identified by 'slurm';
        grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1';
        grant all on slurm_acct_db.* to 'slurm'@'localhost';"
    begin_named "$dir" slurmdbd
    wait_for slurmdbd timeout 5 sacctmgr --noheader --parsable2 show cluster
    # One account, and QOSes of which one preempts the other; before slurmctld, which reads them when it starts.
    sacctmgr --immediate add cluster tidegate >>"$dir/log/sacctmgr.out" 2>&1
    sacctmgr --immediate add account ai cluster=tidegate >>"$dir/log/sacctmgr.out" 2>&1
    sacctmgr --immediate add qos loan preemptmode=requeue >>"$dir/log/sacctmgr.out" 2>&1
    sacctmgr --immediate add qos urgent preempt=loan priority=1000 >>"$dir/log/sacctmgr.out" 2>&1
    sacctmgr --immediate add user "$(id -un)" account=ai cluster=tidegate qos=normal,loan,urgent adminlevel=Admin \
        >>"$dir/log/sacctmgr.out" 2>&1
    sacctmgr --immediate modify user "$(id -un)" set qos=normal,loan,urgent defaultaccount=ai >>"$dir/log/sacctmgr.out" 2>&1 || true
}

all_idle() {
    [ "$(timeout 5 sinfo --noheader --Node --format=%N:%t | sort -u | grep -c ':idle$')" -eq "${#nodes[@]}" ]
}

up() {
    local dir dbd=no topology=none shape=4+1 node option
    dir=$(mkdir -p "$1" && cd "$1" && pwd)
    shift
    for option in "$@"; do
        case "$option" in
            --dbd) dbd=yes ;;
            --topology=tree) topology=tree ;;
            --nodes=[1-9]*+[1-9]*) shape=${option#--nodes=} ;;
            *) echo "no option $option; --dbd, --topology=tree and --nodes=TRAIN+INFER are" >&2; return 2 ;;
        esac
    done
    size "$shape"
    configure "$dir" "$dbd" "$topology"
    export SLURM_CONF="$dir/slurm.conf"
    (umask 077 && head --bytes=128 /dev/urandom >"$dir/munge/key")
    begin "$dir" munged munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
        --pid-file="$dir/munge/pid" --seed-file="$dir/munge/seed" --log-file="$dir/log/munged.log" --num-threads=4
    wait_for munged test -S "$dir/munge/socket"
    [ "$dbd" = no ] || start_database "$dir"
    begin_named "$dir" slurmctld
    for node in "${nodes[@]}"; do
        begin_named "$dir" "$node"
    done
    wait_for "the cluster (see $dir/log)" all_idle
    # Of slurmctld slurmdbd learns that there are GPUs.
    [ "$dbd" = no ] || sacctmgr --immediate modify qos loan set GrpTRES=gres/gpu=32 >>"$dir/log/sacctmgr.out" 2>&1
}

# Processes of this cluster by what their environment says: its daemons, and what jobs left.
members() {
    local dir=$1 process
    for process in /proc/[0-9]*; do
        if { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep --quiet --line-regexp --fixed-strings \
            --regexp="SLURM_CONF=$dir/slurm.conf" --regexp="SLURM_CONF=$dir/slurmdbd.conf"; then
            echo "${process#/proc/}"
        fi
    done
}

down() {
    local dir file pid
    dir=$(cd "$1" && pwd)
    for pid in $(members "$dir"); do
        [ "$pid" = "$$" ] || [ "$pid" = "$BASHPID" ] || kill -9 "$pid" 2>/dev/null || true
    done
    for file in "$dir"/pids/*; do
        case "$file" in *.slurm | *.db) continue ;; esac
        kill -9 "$(cat "$file")" 2>/dev/null || true
    done
}

stop() {
    local dir=$1 name pid
    shift
    # Killed as by kill -9 slurmctld forgets jobs of the last seconds; asked to end, it saves them.
    for name in "$@"; do
        pid=$(cat "$dir/pids/$name")
        kill "$pid"
        wait_for "the end of $name" ended "$pid"
    done
}

ended() {
    ! kill -0 "$1" 2>/dev/null || grep --quiet '^State:.*Z' "/proc/$1/status"
}

start() {
    local dir=$1 name
    shift
    for name in "$@"; do
        begin_named "$dir" "$name"
    done
}

command=${1:-}
[ $# -eq 0 ] || shift
case "$command" in
    check) check ;;
    install) install ;;
    up) up "$@" ;;
    run)
        # Not "$1" in the trap: where `up` fails, that is an argument of `up`.
        folder=$1
        trap 'unset SLURM_CONF; down "$folder"' EXIT
        trap 'exit 1' TERM INT HUP
        up "$@"
        echo ready
        cat >/dev/null
        ;;
    down) down "$@" ;;
    stop) stop "$@" ;;
    start) start "$@" ;;
    *)
        sed -n '2,15s/^# \?//p' "$0" >&2
        exit 2
        ;;
esac
