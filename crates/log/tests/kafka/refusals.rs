//! Every refusal names the problem, the place and the remedy.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use tidegate_log::{EventLog, KafkaLog, KafkaOptions, LogError};
use tidegate_testing::conformance::{batch, read_all};

use crate::broker::{self, Cluster};
use crate::wire::{ONE_PARTITION, at};

#[test]
fn a_wrong_address_is_refused_soon() {
    if !broker::installed() {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for address in [format!("127.0.0.1:{port}"), "no-such-host.invalid:9092".into()] {
        let mut options = KafkaOptions::new(format!("kafka://{address}").parse().unwrap());
        options.timeout = Duration::from_secs(3);
        let began = Instant::now();
        let refused = KafkaLog::open(options).unwrap_err();
        assert!(matches!(refused, LogError::KafkaUnavailable { .. }), "{refused:?}");
        let said = refused.to_string();
        println!("{said}");
        assert!(said.contains(&address) && said.contains("check that the address is right"), "{said}");
        assert!(said.contains("refused") || said.contains("resolve"), "it does not say why: {said}");
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    }
}

#[test]
fn an_unknown_property_is_refused() {
    let mut options = KafkaOptions::new("kafka://127.0.0.1:9092".parse().unwrap());
    options.properties.insert("sasl.pasword".into(), "x".into());
    let refused = KafkaLog::open(options).unwrap_err().to_string();
    assert!(refused.contains("sasl.pasword") && refused.contains("property"), "{refused}");
}

/// What is not built in is named, with the feature that brings it.
#[test]
fn properties_this_build_lacks_are_refused() {
    let open = |properties: &[(&str, &str)]| {
        let mut options = KafkaOptions::new("kafka://127.0.0.1:1".parse().unwrap());
        options.timeout = Duration::from_millis(200);
        let pairs = properties.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        options.properties.extend(pairs);
        KafkaLog::open(options).unwrap_err().to_string()
    };
    let kerberos = open(&[("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "GSSAPI")]);
    assert!(kerberos.contains("instead of Kerberos"), "{kerberos}");
    let user = [("sasl.username", "me"), ("sasl.password", "secret")];
    let plain =
        open(&[("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "PLAIN"), user[0], user[1]]);
    assert!(plain.contains("check that the address is right"), "{plain}");
    for asked in [
        &[("security.protocol", "SSL")][..],
        &[("security.protocol", "sasl_ssl"), ("sasl.mechanism", "PLAIN"), user[0], user[1]],
        &[("security.protocol", "sasl_plaintext"), ("sasl.mechanisms", "SCRAM-SHA-512"), user[0], user[1]],
    ] {
        let said = open(asked);
        println!("{said}");
        let built_in = cfg!(feature = "kafka-tls");
        assert_eq!(said.contains("--features kafka-tls"), !built_in, "{said}");
        assert_eq!(said.contains("check that the address is right"), built_in, "{said}");
    }
}

/// Topics are not created by being asked for, even where the broker would do so.
#[test]
fn a_missing_topic_stays_missing() {
    let Some(servers) = broker::shared() else { return };
    let log = KafkaLog::open(broker::options(&servers)).unwrap();
    for _ in 0..2 {
        assert!(
            matches!(log.append(&at("nowhere"), batch("a", 0, 0, 1)), Err(LogError::UnknownTopic(t)) if t == "nowhere")
        );
        assert!(matches!(log.read(&at("nowhere"), 0, 1), Err(LogError::UnknownTopic(_))));
        assert!(matches!(log.commit_offset("g", &at("nowhere"), 0), Err(LogError::UnknownTopic(_))));
    }
    assert_eq!(log.topics().unwrap(), []);
}

/// A topic made by hand with Kafka's own limit: the record is refused, and the source goes on.
#[test]
fn a_record_over_the_topics_limit_is_refused() {
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let log = KafkaLog::open(options.clone()).unwrap();
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &servers).create().unwrap();
    let name = format!("{}.small", options.url.prefix());
    let small = NewTopic::new(&name, 1, TopicReplication::Fixed(1)).set("max.message.bytes", "20000");
    futures::executor::block_on(admin.create_topics([&small], &AdminOptions::new())).unwrap();
    log.create_topic("small", ONE_PARTITION).unwrap();

    log.append(&at("small"), batch("a", 0, 0, 1)).unwrap();
    let mut large = batch("a", 0, 1, 2);
    large.records[1].payload = noise(30_000);
    let refused = log.append(&at("small"), large).unwrap_err();
    assert!(matches!(refused, LogError::KafkaRefused { .. }), "{refused:?}");
    assert!(refused.to_string().contains("raise max.message.bytes"), "{refused}");
    log.append(&at("small"), batch("a", 0, 1, 2)).unwrap();
    assert_eq!(read_all(&log, &at("small")).len(), 3, "nothing of the refused batch is there");
}

#[test]
fn the_largest_record_need_not_compress() {
    let Some(servers) = broker::shared() else { return };
    let log = KafkaLog::open(broker::options(&servers)).unwrap();
    log.create_topic("large", ONE_PARTITION).unwrap();
    let mut large = batch("a", 0, 0, 2);
    large.records[1].payload = noise(tidegate_log::MAX_RECORD_BYTES - large.records[1].key.len());
    log.append(&at("large"), large.clone()).unwrap();
    let read: Vec<_> = read_all(&log, &at("large")).into_iter().map(|stored| stored.record).collect();
    assert_eq!(read, large.records);
}

pub fn noise(bytes: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(byte).collect()
}

const WITH_ACLS: &str = "
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},SASL_PLAINTEXT://127.0.0.1:{sasl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_nobody=\"secret\";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
";

#[test]
fn missing_rights_and_wrong_passwords_are_reported() {
    if !broker::installed() {
        return;
    }
    let sasl = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let cluster = Cluster::start(1, &WITH_ACLS.replace("{sasl}", &sasl.to_string()));
    // The super user makes what a log needs, so that each call is refused for itself.
    let by_admin = broker::options(&cluster.servers());
    let log = KafkaLog::open(by_admin.clone()).unwrap();
    log.create_topic("jobs", ONE_PARTITION).unwrap();

    let url = format!("kafka://127.0.0.1:{sasl}/{}", by_admin.url.prefix());
    let mut options = KafkaOptions::new(url.parse().unwrap());
    options.timeout = Duration::from_secs(10);
    for (key, value) in
        [("security.protocol", "sasl_plaintext"), ("sasl.mechanism", "PLAIN"), ("sasl.username", "nobody")]
    {
        options.properties.insert(key.into(), value.into());
    }
    options.properties.insert("sasl.password".into(), "secret".into());
    let refused = KafkaLog::open(options.clone()).unwrap_err();
    println!("{refused}");
    assert!(matches!(refused, LogError::KafkaRefused { .. }), "{refused:?}");
    assert!(refused.to_string().contains("grant this user"), "{refused}");

    options.properties.insert("sasl.password".into(), "wrong".into());
    let refused = KafkaLog::open(options).unwrap_err().to_string();
    println!("{refused}");
    assert!(refused.contains("uthentication"), "{refused}");
}
