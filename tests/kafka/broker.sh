#!/usr/bin/env bash
# An Apache Kafka broker for tests: a few jars and java, nothing installed into the system but a JRE
# and kcat if they are missing.
#
#   broker.sh install              java, kcat, Maven and the jars of jars.txt; prints the folder with the jars
#   broker.sh node DIR ID NODES    node ID (broker and controller) of the cluster NODES, with its data in DIR;
#                                  killed as by kill -9 when its standard input ends, so that it outlives no test
#   broker.sh up [PORT]            one broker in a temporary folder, until Ctrl-C; to try things by hand
#   broker.sh tool CLASS ARGS...   a tool of Kafka that is installed, e.g. org.apache.kafka.tools.consumer.ConsoleConsumer
#
# NODES is a list ID:PORT:CONTROLLER_PORT, separated by commas; all on 127.0.0.1. KAFKA_PROPERTIES
# adds lines to server.properties. With KAFKA_REMOVE=1 a node takes DIR with it. Jars are fetched by
# Maven's own client, as pom.xml names them: a mirror in a site's settings.xml holds here too. They
# must have the checksums of jars.txt, and are kept in ${XDG_CACHE_HOME:-~/.cache}/tidegate.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's|.* kafka_2.13-\(.*\)\.jar$|\1|p' "$here/jars.txt")
jars="${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/kafka-$version"
cluster_id=dGlkZWdhdGUtdGVzdHMtMQ

install_tools() {
    command -v java >/dev/null || "$here/../install.sh" default-jre-headless >&2
}

# Another reader of topics, for the tests; the broker does without.
install_kcat() {
    command -v kcat >/dev/null || "$here/../install.sh" kcat >&2 || echo "kcat is missing" >&2
}

properties() {
    local dir=$1 id=$2 nodes=$3 port controller voters="" count=0 node other other_port other_controller
    for node in ${nodes//,/ }; do
        IFS=: read -r other other_port other_controller <<<"$node"
        voters+="${voters:+,}$other@127.0.0.1:$other_controller"
        count=$((count + 1))
        [ "$other" = "$id" ] && port=$other_port controller=$other_controller
    done
    local replicas=$((count < 3 ? 1 : 3))
    cat <<END
process.roles=broker,controller
node.id=$id
controller.quorum.voters=$voters
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$dir/data
num.network.threads=2
num.io.threads=4
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
offsets.topic.num.partitions=4
offsets.topic.replication.factor=$replicas
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=$replicas
transaction.state.log.min.isr=$((replicas - replicas / 2))
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
${KAFKA_PROPERTIES:-}
END
}

# The archive of classes for the Java that is installed; another one would not take it.
archive() {
    echo "$jars/classes-$(stat --dereference --format='%n %s %Y' "$(command -v java)" | cksum | cut -d " " -f 1).jsa"
}

# A broker of a test lives for seconds. Java's second compiler would cost more than it gains, and an
# archive of the classes halves the processor time of a start.
run() {
    local main=$1 classes flags=(-Xms128m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1)
    shift
    classes=$(archive)
    [ ! -f "$classes" ] || flags+=(-XX:SharedArchiveFile="$classes")
    exec java "${flags[@]}" ${JAVA_FLAGS:-} -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$jars/*" "$main" "$@"
}

# Java writes the archive when a broker ends that was asked to. Brokers start without one, too.
archive_classes() {
    local dir port broker= classes begun=$SECONDS
    classes=$(archive)
    [ ! -f "$classes" ] || return 0
    # Beside the archive, so that it gets its name in one step.
    dir=$(mktemp -d "$jars.XXXXXX")
    port=$((20000 + RANDOM % 5000 * 2))
    (
        trap 'kill "$broker" 2>/dev/null || true; rm -rf "$dir"' EXIT
        prepare "$dir" 1 "1:$port:$((port + 1))"
        JAVA_FLAGS="-XX:ArchiveClassesAtExit=$dir/classes" run kafka.Kafka "$dir/server.properties" &>"$dir/log" &
        broker=$!
        until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
            [ $((SECONDS - begun)) -lt 60 ] && kill -0 "$broker" 2>/dev/null || exit 1
            sleep 0.2
        done
        kill "$broker"
        wait "$broker" || true
        mv "$dir/classes" "$classes"
    ) || echo "no archive of Kafka's classes; brokers start more slowly" >&2
}

prepare() {
    mkdir -p "$1"
    properties "$@" >"$1/server.properties"
    [ -f "$1/data/meta.properties" ] \
        || (run kafka.tools.StorageTool format --cluster-id "$cluster_id" --config "$1/server.properties" >/dev/null)
}

# The shell becomes the broker, so that the one that watches standard input knows its process id.
node() {
    prepare "$@"
    exec 3<&0
    (
        cat <&3 >/dev/null
        kill -9 $$ 2>/dev/null
        [ -z "${KAFKA_REMOVE:-}" ] || { sleep 0.2; rm -rf "$1"; }
    ) &
    run kafka.Kafka "$1/server.properties" </dev/null 3<&-
}

up() {
    local port=${1:-9092} dir
    dir=$(mktemp -d)
    prepare "$dir" 1 "1:$port:$((port + 1))"
    echo "kafka://127.0.0.1:$port, data in $dir" >&2
    run kafka.Kafka "$dir/server.properties"
}

case "${1:-}" in
    install) install_tools && install_kcat && "$here/../jars.sh" "$here" "$jars" && archive_classes && echo "$jars" ;;
    node) node "${@:2}" ;;
    up) install_tools && "$here/../jars.sh" "$here" "$jars" && up "${@:2}" ;;
    tool) run "${@:2}" ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
