//! The ACLs that `tidegate token kafka-acls` prints, on a broker that enforces them.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tidegate_events::SchemaId;
use tidegate_log::{
    Batch, EventLog, KafkaLog, KafkaOptions, LogError, Producer, Record, TopicConfig, TopicPartition,
};

use crate::broker::{self, Cluster};
use crate::program::{run, succeed, tidegate};

const WITH_ACLS: &str = "
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SASL_PLAINTEXT://127.0.0.1:{sasl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_n1=\"secret\" user_tidegate=\"secret\";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
";

/// Grants what the command prints, as the super user.
fn grant(servers: &str, log: &str, arguments: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kafka/broker.sh");
    let printed = succeed(tidegate().args(["token", "kafka-acls", "--log", log]).args(arguments));
    for line in printed.lines() {
        let mut tool = Command::new(&script);
        tool.args(["tool", "org.apache.kafka.tools.AclCommand", "--bootstrap-server", servers]);
        let granted = tool.args(line.split(' ')).output().unwrap();
        assert!(granted.status.success(), "{line}: {}", String::from_utf8_lossy(&granted.stderr));
    }
}

fn append(log: &KafkaLog, topic: &str, source: &str) -> Result<(), LogError> {
    let record = Record {
        key: "c/n1".into(),
        schema: SchemaId::NodeEvent.number(),
        event_time_ms: 1,
        payload: "not read".into(),
    };
    let producer = Producer { source: source.into(), epoch: 1 };
    let at = TopicPartition { topic: topic.into(), partition: 0 };
    log.append(&at, Batch { producer, first_seq: 0, records: vec![record] }).map(|_| ())
}

#[test]
fn an_agent_writes_its_topics_under_its_own_name_alone() {
    if !broker::installed() {
        return;
    }
    let sasl = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let cluster = Cluster::start(1, &WITH_ACLS.replace("{sasl}", &sasl.to_string()));
    let url = format!("kafka://127.0.0.1:{sasl}/acl");
    grant(&cluster.servers(), &url, &["--role", "service", "--user", "tidegate"]);
    grant(&cluster.servers(), &url, &["--role", "agent", "--user", "n1", "--cluster", "c", "--node", "n1"]);
    let open = |user: &str| {
        let mut options = KafkaOptions::new(url.parse().unwrap());
        (options.timeout, options.progress_partitions) = (Duration::from_secs(20), 3);
        for (key, value) in [
            ("security.protocol", "sasl_plaintext"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", user),
            ("sasl.password", "secret"),
        ] {
            options.properties.insert(key.into(), value.into());
        }
        KafkaLog::open(options).unwrap()
    };
    let service = open("tidegate");
    let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
    for schema in SchemaId::ALL {
        service.create_topic(schema.topic(), one).unwrap();
    }
    append(&service, "autopilot", "control").unwrap();

    let agent = open("n1");
    for topic in ["nodes", "gpu-samples", "steps", "jobs", "dead-letters"] {
        append(&agent, topic, "agent/n1@c").unwrap();
    }
    let end =
        |topic: &str| service.extent(&TopicPartition { topic: topic.into(), partition: 0 }).unwrap().end;
    for (topic, source) in [
        ("autopilot", "agent/n1@c"),
        ("signals", "agent/n1@c"),
        ("forecasts", "agent/n1@c"),
        ("audit", "agent/n1@c"),
        ("capacity", "agent/n1@c"),
        ("nodes", "agent/n2@c"),
    ] {
        let before = end(topic);
        let refused = append(&agent, topic, source).unwrap_err();
        println!("{topic} as {source}: {refused}");
        assert_eq!(end(topic), before, "{topic} as {source}: {refused}");
    }
}

#[test]
fn only_roles_that_use_kafka_have_acls() {
    for (arguments, word) in [
        (vec!["--role", "viewer", "--user", "ann"], "over HTTP"),
        (vec!["--role", "agent", "--user", "n1"], "needs --cluster"),
        (vec!["--role", "service", "--user", "a b"], "may read otherwise"),
    ] {
        run(tidegate().args(["token", "kafka-acls", "--log", "kafka://k:9092/gpu"]).args(arguments))
            .refused(&[word]);
    }
}
