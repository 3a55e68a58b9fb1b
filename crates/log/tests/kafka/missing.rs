//! Topics that were there and that no broker knows: not yet again, or not any more.

use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use tidegate_log::{EventLog, KafkaLog, KafkaOptions, LogError};
use tidegate_testing::conformance::batch;

use crate::broker::{self, Cluster};
use crate::members::until;
use crate::wire::{ONE_PARTITION, at};

/// How long the brokers do not know the topic.
const AWAY: Duration = Duration::from_millis(1500);

struct Admin {
    client: AdminClient<DefaultClientContext>,
    topic: String,
}

impl Admin {
    fn of(options: &KafkaOptions, servers: &str) -> Self {
        let client = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
        Self { client, topic: format!("{}.t", options.url.prefix()) }
    }

    /// Deletes the topic and waits until the broker does not know it any more.
    fn delete(&self) {
        let deleted = block_on(self.client.delete_topics(&[&self.topic], &AdminOptions::new())).unwrap();
        assert_eq!(deleted, [Ok(self.topic.clone())]);
        until("the topic is gone", || {
            let known = self.client.inner().fetch_metadata(None, Duration::from_secs(5)).unwrap();
            known.topics().iter().all(|topic| topic.name() != self.topic)
        });
    }

    fn create(&self) {
        let new = NewTopic::new(&self.topic, 1, TopicReplication::Fixed(1));
        until("the topic is there again", || {
            block_on(self.client.create_topics([&new], &AdminOptions::new())).unwrap()[0].is_ok()
        });
    }
}

/// A broker that has just started does not know every topic yet. Calls must not report an existing
/// topic as missing meanwhile.
#[test]
fn a_topic_that_was_there_is_waited_for() {
    if !broker::installed() {
        return;
    }
    // Otherwise a producer's request for a topic would make the broker create it.
    let cluster = Cluster::start(1, "auto.create.topics.enable=false");
    let servers = cluster.servers();
    let options = broker::options(&servers);
    let admin = Admin::of(&options, &servers);
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    log.append(&at("t"), batch("a", 0, 0, 3)).unwrap();
    log.read(&at("t"), 0, 1).unwrap();
    type Call<'a> = &'a dyn Fn() -> Result<(), LogError>;
    let calls: [(&str, Call<'_>); 7] = [
        ("extent", &|| log.extent(&at("t")).map(drop)),
        ("append", &|| log.append(&at("t"), batch("a", 0, 3, 3)).map(drop)),
        ("read", &|| log.read(&at("t"), 0, 1).map(drop)),
        ("commit", &|| log.commit_offset("g", &at("t"), 0)),
        ("committed", &|| log.committed_offset("g", &at("t")).map(drop)),
        ("topics", &|| log.topics().map(|topics| assert_eq!(topics, [("t".into(), ONE_PARTITION)]))),
        ("a new handle", &|| KafkaLog::open(options.clone())?.extent(&at("t")).map(drop)),
    ];
    for (name, call) in calls {
        admin.delete();
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(AWAY);
                admin.create();
            });
            let done = call();
            println!("{name}: {:?}", began.elapsed());
            assert!(done.is_ok(), "{name}: {done:?}");
        });
    }
}

/// Once it was missing for long it counts as deleted, and is not waited for again.
#[test]
fn a_deleted_topic_is_unknown_in_the_end() {
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    Admin::of(&options, &servers).delete();
    let unknown = || {
        let refused = log.extent(&at("t")).unwrap_err();
        assert!(matches!(&refused, LogError::UnknownTopic(topic) if topic == "t"), "{refused:?}");
    };
    unknown();
    let began = Instant::now();
    unknown();
    assert_eq!(log.topics().unwrap(), []);
    println!("unknown at once: {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    log.create_topic("t", ONE_PARTITION).unwrap();
    log.append(&at("t"), batch("a", 0, 0, 3)).unwrap();
}
