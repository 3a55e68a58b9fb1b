use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rdkafka::ClientConfig;

use super::url::KafkaUrl;
use crate::{LogError, MAX_RECORD_BYTES};

/// A record of the largest size with its headers, in one message.
pub(super) const MAX_MESSAGE_BYTES: usize = MAX_RECORD_BYTES + (64 << 10);

/// How long a broker may leave a request unanswered. An append makes several one after the other,
/// so it may wait for some times as long when a broker freezes; and a member of a group must have
/// found another broker before its session ends.
const SILENCE: Duration = Duration::from_secs(6);

/// Whether OpenSSL is built in, which SASL's SCRAM and OAUTHBEARER need too; PLAIN does without.
const TLS: bool = cfg!(feature = "kafka-tls");
const WITH_TLS: &str = "build it with TLS (cargo build --features kafka-tls), for which libssl-dev must be installed; without, security.protocol may be PLAINTEXT or SASL_PLAINTEXT with the mechanism PLAIN";

/// How to reach Kafka, and how to lay out what is created there.
#[derive(Debug, Clone)]
pub struct KafkaOptions {
    /// Addresses of brokers, and the prefix of the topics.
    pub url: KafkaUrl,
    /// librdkafka's properties, e.g. `security.protocol` and `sasl.username`. They win over ours,
    /// but for those that the guarantees of the log rest on.
    pub properties: BTreeMap<String, String>,
    /// Copies of each partition of a topic that is created; `None`: three, or one per broker where
    /// there are fewer.
    pub replication: Option<u16>,
    /// How many partitions the topic of progress gets when it is created.
    pub progress_partitions: u32,
    /// How long any call may try before it fails with
    /// [`LogError::KafkaUnavailable`](crate::LogError::KafkaUnavailable).
    pub timeout: Duration,
    /// After how long Kafka gives up the unfinished append of a process that died, which readers of
    /// the partition and [`fence`](crate::EventLog::fence) wait for.
    pub transaction_timeout: Duration,
}

impl KafkaOptions {
    /// The defaults, for the log at `url`.
    pub fn new(url: KafkaUrl) -> Self {
        Self {
            url,
            properties: BTreeMap::new(),
            replication: None,
            progress_partitions: 9,
            timeout: Duration::from_secs(60),
            transaction_timeout: Duration::from_secs(30),
        }
    }

    /// Adds the librdkafka properties of a file, a `KEY=VALUE` on each line; `#` begins a comment.
    pub fn read_properties(&mut self, file: &Path) -> Result<(), LogError> {
        let refuse = |what: String| LogError::InvalidKafkaProperty { property: what };
        let text = fs::read_to_string(file).map_err(|e| refuse(format!("{}: {e}", file.display())))?;
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if !line.is_empty() && !line.starts_with('#') {
                let added = self.add_property(line);
                added.map_err(|_| refuse(format!("{}:{number}: {line:?}", file.display())))?;
            }
        }
        Ok(())
    }

    /// Adds a librdkafka property, `KEY=VALUE`.
    pub fn add_property(&mut self, property: &str) -> Result<(), LogError> {
        match property.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                self.properties.insert(key.trim().into(), value.trim().into());
                Ok(())
            }
            _ => Err(LogError::InvalidKafkaProperty { property: format!("{property:?}") }),
        }
    }

    /// Adds a librdkafka property of a command line, `KEY=VALUE`: no secret.
    ///
    /// # Errors It is no property, or holds a secret; the error leaves the value out.
    pub fn add_argument(&mut self, property: &str) -> Result<(), LogError> {
        let key = property.split('=').next().unwrap_or_default().trim();
        let secret = ["password", "passphrase", "secret", "key.pem", "oauthbearer.config", "jaas.config"];
        if secret.iter().any(|end| key.ends_with(end)) {
            return Err(LogError::SecretOnCommandLine { key: key.into() });
        }
        self.add_property(property)
    }

    /// Refuses what this build cannot do, with a remedy that the client library's error would lack.
    pub(super) fn check_build(&self) -> Result<(), LogError> {
        let refuse = |property: &str, value: &str, mend: &str| {
            Err(LogError::KafkaRefused {
                servers: self.url.servers().into(),
                doing: format!("the property {property}={value}"),
                reason: "this tidegate was built without it".into(),
                mend: mend.into(),
            })
        };
        for (key, value) in &self.properties {
            let asked = value.to_ascii_uppercase();
            match key.as_str() {
                "security.protocol" if asked.ends_with("SSL") && !TLS => return refuse(key, value, WITH_TLS),
                "sasl.mechanism" | "sasl.mechanisms" if asked == "GSSAPI" => {
                    return refuse(
                        key,
                        value,
                        "use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 instead of Kerberos",
                    );
                }
                "sasl.mechanism" | "sasl.mechanisms" if asked != "PLAIN" && !TLS => {
                    return refuse(key, value, WITH_TLS);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn client(&self, ours: &[(&str, &str)], fixed: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("client.id", "tidegate").set("log.connection.close", "false");
        // A broker that restarts is found again soon.
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "1000");
        // Give up a silent broker soon and ask the new leader; by default that takes a minute.
        let silence = SILENCE.min(self.transaction_timeout).as_millis().to_string();
        config.set("socket.timeout.ms", silence);
        config.set("socket.connection.setup.timeout.ms", SILENCE.as_millis().to_string());
        let properties = self.properties.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let servers = [("bootstrap.servers", self.url.servers())];
        for (key, value) in ours.iter().copied().chain(properties).chain(servers).chain(fixed.iter().copied())
        {
            config.set(key, value);
        }
        config
    }

    /// For a message at a time, written on by the broker that takes it.
    pub(super) fn clock(&self) -> ClientConfig {
        self.client(&[], &[("acks", "1"), ("linger.ms", "0"), ("compression.type", "none")])
    }

    pub(super) fn admin(&self) -> ClientConfig {
        self.client(&[], &[])
    }

    /// Without a group, for reading; `isolation` is Kafka's `isolation.level`.
    pub(super) fn consumer(&self, isolation: &str) -> ClientConfig {
        let ours = [
            ("fetch.wait.max.ms", "20"),
            ("fetch.queue.backoff.ms", "5"),
            ("fetch.error.backoff.ms", "50"),
            ("fetch.message.max.bytes", "8388608"),
            ("queued.max.messages.kbytes", "8192"),
            ("check.crcs", "true"),
        ];
        let fixed = [
            ("isolation.level", isolation),
            ("enable.partition.eof", "true"),
            ("auto.offset.reset", "error"),
            ("enable.auto.commit", "false"),
            ("allow.auto.create.topics", "false"),
        ];
        self.client(&ours, &fixed)
    }

    pub(super) fn group(&self, group: &str) -> ClientConfig {
        let mut config = self.consumer("read_committed");
        config.set("group.id", group);
        config
    }

    /// Of a member of a group, which takes part in it and fetches nothing.
    ///
    /// It learns of members that join or leave within a second, of one that died within ten, and of
    /// a new topic within five.
    pub(super) fn member(&self, group: &str) -> ClientConfig {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("tidegate-{host}-{}", std::process::id());
        let ours = [
            ("client.id", name.as_str()),
            ("session.timeout.ms", "10000"),
            ("heartbeat.interval.ms", "1000"),
            ("topic.metadata.refresh.interval.ms", "5000"),
        ];
        let fixed = [
            ("group.id", group),
            ("group.protocol", "classic"),
            ("partition.assignment.strategy", "cooperative-sticky"),
            ("auto.offset.reset", "error"),
            ("enable.auto.commit", "false"),
            ("allow.auto.create.topics", "false"),
        ];
        self.client(&ours, &fixed)
    }

    fn idempotent(&self, fixed: &[(&str, &str)]) -> ClientConfig {
        let max_bytes = MAX_MESSAGE_BYTES.to_string();
        let ours = [
            ("compression.type", "zstd"),
            ("compression.level", "1"),
            ("linger.ms", "5"),
            ("batch.size", "1000000"),
            ("queue.buffering.max.kbytes", "131072"),
            ("retry.backoff.ms", "20"),
        ];
        let idempotent = [("enable.idempotence", "true"), ("acks", "all"), ("message.max.bytes", &max_bytes)];
        let fixed: Vec<_> = idempotent.into_iter().chain(fixed.iter().copied()).collect();
        self.client(&ours, &fixed)
    }

    pub(super) fn producer(&self, transactional_id: &str) -> ClientConfig {
        let timeout = self.transaction_timeout.as_millis().to_string();
        self.idempotent(&[("transactional.id", transactional_id), ("transaction.timeout.ms", &timeout)])
    }

    /// Without transactions, whose ends take offsets: what is sent stands in one piece, or the
    /// producer stops for good.
    pub(super) fn dense_producer(&self) -> ClientConfig {
        self.idempotent(&[("enable.gapless.guarantee", "true"), ("message.timeout.ms", "0")])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_on_the_command_line_is_refused() {
        let mut options = KafkaOptions::new("kafka://localhost:9092".parse().unwrap());
        for key in [
            "sasl.password",
            "ssl.key.password",
            "ssl.keystore.password",
            "sasl.oauthbearer.client.secret",
            "ssl.key.pem",
        ] {
            let error = options.add_argument(&format!("{key} = hunter2")).unwrap_err().to_string();
            assert!(
                error.contains(key) && error.contains("--kafka-config") && !error.contains("hunter2"),
                "{error}"
            );
        }
        options.add_argument("sasl.username=me").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kafka.conf");
        fs::write(&file, "sasl.password = hunter2\n").unwrap();
        options.read_properties(&file).unwrap();
        let properties = options.properties.into_iter().collect::<Vec<_>>();
        let of = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(properties, [of("sasl.password", "hunter2"), of("sasl.username", "me")]);
    }
}
