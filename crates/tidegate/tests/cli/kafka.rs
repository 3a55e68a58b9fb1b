//! The program on a real Kafka broker: the tables equal those of the embedded log, with any number
//! of processes.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_testing::needs;

use crate::broker;
use crate::program::{
    Place, assert_same_tables, import, jobs, query, run, succeed, table_names, tables, tidegate, wait_until,
};

pub const TRACE: &str = "philly_multigpu_attempts";

pub fn trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("demo/{TRACE}.parquet"))
}

/// A log of its own on the broker that tests share; `None` where there is no Kafka.
pub fn log() -> Option<String> {
    static LOGS: AtomicU32 = AtomicU32::new(0);
    let number = LOGS.fetch_add(1, Ordering::Relaxed);
    Some(format!("kafka://{}/cli{}-{number}", broker::shared()?, std::process::id()))
}

pub fn pipeline_run(log: &str, data: &Path) -> Command {
    let mut command = tidegate();
    command.args(["pipeline", "run", "--log", log, "--data"]).arg(data);
    command.args(["--kafka-property", "session.timeout.ms=6000"]);
    command
}

fn append_only(log: &str, data: &Path) -> Command {
    let mut command = import(trace(), TRACE, data);
    command.args(["--no-run", "--log", log, "--partitions", "4"]);
    command
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// All tables but the raw one of jobs, in which a heartbeat stands once per partition.
pub fn contents(data: &Path) -> BTreeMap<String, Vec<String>> {
    let mut names = table_names(data);
    names.retain(|name| name != "job_events");
    tables(data, &names)
}

/// Tables of the trace on the embedded log.
pub fn expected() -> &'static BTreeMap<String, Vec<String>> {
    static EXPECTED: OnceLock<BTreeMap<String, Vec<String>>> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let place = Place::new();
        succeed(&mut import(trace(), TRACE, &place.data()));
        contents(&place.data())
    })
}

#[test]
fn tables_are_those_of_the_embedded_log_whoever_computes_them() {
    let Some(log) = log() else { return };
    let (place, expected) = (Place::new(), expected());
    assert!(expected["jobs"].len() > 1000);

    let alone = place.data();
    let said = succeed(import(trace(), TRACE, &alone).args(["--log", &log, "--partitions", "4"]));
    assert!(said.contains("events written          9,238"), "{said}");
    assert_same_tables(&contents(&alone), expected, "one process");
    let again = succeed(&mut append_only(&log, &alone));
    assert!(again.contains("events written              0"), "{again}");

    let rebuilt = succeed(tidegate().args(["pipeline", "backfill", "--log", &log, "--data"]).arg(&alone));
    assert!(rebuilt.contains("rebuilt from"), "{rebuilt}");
    assert_same_tables(&contents(&alone), expected, "backfill");
}

/// Processes that are killed when dropped.
struct Workers(Vec<Child>);

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            worker.kill().ok();
            worker.wait().ok();
        }
    }
}

/// Waits until the tables have every record of the log; where that fails, shows who is behind.
fn wait_for_tables(log: &str, data: &Path) {
    let mut last = serde_json::Value::Null;
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_until("everything is in the tables", || {
            last = status(log, data);
            last["lag"] == 0
        });
    }));
    assert!(waited.is_ok(), "{last:#}");
}

/// Processes share the partitions of a log that fills while they run; one of them dies. Three do,
/// in the long form two (of which none dies) and then five.
#[test]
fn numbers_are_the_same_whoever_shares_the_work_and_while_they_change() {
    let (Some(log), Some(other)) = (log(), log()) else { return };
    let (place, expected) = (Place::new(), expected());
    let forms = if needs::is_long() { vec![(2, &log), (5, &other)] } else { vec![(3, &log)] };
    for (processes, log) in forms {
        let data = place.0.path().join(format!("by-{processes}"));
        let follow = || {
            let mut command = pipeline_run(log, &data);
            start(command.args([
                "--follow",
                "--flush-every",
                "2",
                "--flush-events",
                "500",
                "--partitions",
                "6",
            ]))
        };
        let mut workers = Workers((0..processes).map(|_| follow()).collect());
        wait_until("each has a share", || {
            for worker in &mut workers.0 {
                if worker.try_wait().unwrap().is_some() {
                    let mut said = String::new();
                    worker.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                    panic!("a worker ended: {said}");
                }
            }
            if !data.join("FORMAT").exists() {
                return false;
            }
            let members = status(log, &data)["members"].clone();
            let shares: Vec<u64> =
                members.as_array().unwrap().iter().map(|m| m["partitions"].as_u64().unwrap()).collect();
            shares.len() == processes && shares.iter().all(|share| *share > 0)
        });
        let mut importing = start(import(trace(), TRACE, &data).args(["--no-run", "--log", log]));
        if processes > 2 {
            let mut dies = workers.0.pop().unwrap();
            dies.kill().unwrap();
            dies.wait().unwrap();
            workers.0.push(follow());
        }
        assert!(importing.wait().unwrap().success());
        wait_for_tables(log, &data);
        let mut shares = 0;
        for worker in std::mem::take(&mut workers.0) {
            let pid = nix::unistd::Pid::from_raw(worker.id() as i32);
            nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).unwrap();
            let ended = worker.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
            shares += u32::from(!said.starts_with("0 records"));
        }
        assert!(shares >= 2, "{shares} of {processes} processes took something in");
        // A process that stops repairs windows for some seconds at most, and leaves the rest.
        succeed(&mut pipeline_run(log, &data));
        assert_same_tables(&contents(&data), expected, &format!("{processes} processes"));
    }
}

pub fn status(log: &str, data: &Path) -> serde_json::Value {
    let said = succeed(tidegate().args(["status", "--json", "--log", log, "--data"]).arg(data));
    serde_json::from_str(&said).unwrap()
}

#[test]
fn a_folder_belongs_to_one_log() {
    let (Some(log), Some(other)) = (log(), log()) else { return };
    let place = Place::new();
    let data = place.data();
    let file = place.file("jobs.csv", jobs(200));
    succeed(import(&file, "jobs_csv", &data).args(["--log", &log]));
    run(&mut import(&file, "jobs_csv", &data)).refused(&["log on Kafka", "--log kafka://HOST:PORT/"]);
    run(&mut pipeline_run(&other, &data)).refused(&["are of the log", "choose another --data", "backfill"]);

    let embedded = place.0.path().join("embedded");
    succeed(&mut import(&file, "jobs_csv", &embedded));
    run(&mut pipeline_run(&log, &embedded)).refused(&["of the log in that folder", "tidegate log copy"]);
    // Only a rebuild changes the log they belong to.
    succeed(tidegate().args(["pipeline", "backfill", "--log", &log, "--data"]).arg(&embedded));
    succeed(&mut pipeline_run(&log, &embedded));
    assert_same_tables(&contents(&embedded), &contents(&data), "rebuilt from Kafka");
}

#[test]
fn what_cannot_be_reached_or_read_is_named() {
    let Some(log) = log() else { return };
    let place = Place::new();
    let nobody = run(&mut pipeline_run("kafka://127.0.0.1:1/x", &place.data()));
    nobody.gave_up(&["Kafka at 127.0.0.1:1", "check that the address is right"]);
    assert!(!place.data().exists(), "an address where nobody answers leaves no folder behind");
    // Topics that are not there are nothing to read; reading creates none, and neither does the
    // broker.
    let nothing = succeed(&mut pipeline_run(&log, &place.0.path().join("nothing")));
    assert!(nothing.starts_with("0 records"), "{nothing}");
    assert_eq!(status(&log, &place.0.path().join("nothing"))["partitions"].as_array().unwrap().len(), 0);
    let misspelt = run(&mut pipeline_run("kafka:/127.0.0.1:9092", &place.data()));
    assert_eq!(misspelt.status, Some(2), "{misspelt:?}");
    assert!(misspelt.stderr.contains("kafka://HOST:PORT"), "{misspelt:?}");
    run(pipeline_run(&log, &place.data()).args(["--kafka-property", "no.such.property=1"]))
        .refused(&["no.such.property"]);
    let config = place.file("client.properties", "# ours\nclient.id = somebody\nnonsense\n");
    run(pipeline_run(&log, &place.data()).arg("--kafka-config").arg(&config))
        .refused(&["client.properties:3", "KEY=VALUE"]);
}

#[test]
fn poison_becomes_dead_letters_and_strays_find_their_partition() {
    let Some(log) = log() else { return };
    let place = Place::new();
    let data = place.data();
    succeed(&mut append_only(&log, &data));
    let url: tidegate_log::KafkaUrl = log.parse().unwrap();
    let topic = format!("{}.jobs", url.prefix());
    let copied = poison::write(url.servers(), &topic);
    succeed(&mut pipeline_run(&log, &data));
    let letters = query(&data, "SELECT origin, code, count(*) FROM dead_letters GROUP BY 1, 2");
    assert_eq!(letters.lines().nth(1), Some("jobs,UNDECODABLE,3"), "{letters}");
    let reasons = query(&data, "SELECT \"partition\", \"offset\", reason FROM dead_letters ORDER BY 2");
    for words in ["unknown schema", "not a protobuf message"] {
        assert!(reasons.contains(words), "{words:?} is missing in {reasons}");
    }

    let expected = expected();
    let mut found = contents(&data);
    assert_eq!(copied, 3);
    found.insert("dead_letters".into(), expected["dead_letters"].clone());
    assert_same_tables(&found, expected, "with poison and strays");
}

mod poison {
    //! What other producers may do to a topic.

    use std::time::Duration;

    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::message::{Headers, Message, OwnedHeaders, OwnedMessage};
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    use rdkafka::{Offset, TopicPartitionList};

    /// Three messages that nobody can read, and three good ones once more, in other partitions than
    /// their keys belong to.
    pub fn write(servers: &str, topic: &str) -> usize {
        let good = first_messages(servers, topic);
        let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
        let send = |partition: i32, payload: &[u8], headers: Option<OwnedHeaders>| {
            let mut record = BaseRecord::to(topic).partition(partition).key("elsewhere").payload(payload);
            record.headers = headers;
            producer.send(record).map_err(|(e, _)| e).unwrap();
        };
        send(0, b"hello", None);
        send(1, &[0, 0, 99, 0, 1, 0, 8, 1], None);
        let whole = good[0].payload().unwrap();
        send(2, &whole[..whole.len() / 2], good[0].headers().cloned());
        for message in &good {
            send((message.partition() + 1) % 4, message.payload().unwrap(), message.headers().cloned());
        }
        producer.flush(Duration::from_secs(30)).unwrap();
        good.len()
    }

    fn first_messages(servers: &str, topic: &str) -> Vec<OwnedMessage> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", servers).set("group.id", "poison").set("enable.auto.commit", "false");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(topic, 3, Offset::Beginning).unwrap();
        consumer.assign(&from).unwrap();
        let next = || consumer.poll(Duration::from_secs(30)).unwrap().unwrap().detach();
        let messages: Vec<_> = (0..3).map(|_| next()).collect();
        assert!(messages.iter().all(|m| m.headers().is_some_and(|h| h.count() > 0)));
        messages
    }
}
