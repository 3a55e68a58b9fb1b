//! [`Cluster`]: the clients of one Kafka cluster, with requests that are retried until a deadline.
//! Partitions are in `partitions.rs`, topics in `topics.rs`.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::admin::AdminClient;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};

use super::client_errors::{ClientErrors, Context, Kind, code, is_passing, kind, refused};
use super::deadline::Deadline;
use super::options::KafkaOptions;
use super::producer_context::probe_refusal;
use super::topic_cache::TopicCache;
use crate::LogError;
use crate::check::lock;

/// A client of Kafka that gets no answer for this long is replaced by a new one.
///
/// A broker that was away for longer than its session says for a moment that there are no brokers.
/// librdkafka 2.12 then forgets all of them, those of the configuration too, and never connects
/// again (its issue 5301).
pub(super) const STALLED: Duration = Duration::from_secs(12);
/// Time limit for a leader to report the end of its partition.
pub(super) const LEADER: Duration = Duration::from_secs(1);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(250);

pub(super) type Client = BaseConsumer<Context>;

/// The clients that send a log's requests.
pub(super) struct Clients {
    /// Sees the end of what is committed: the last stable offset.
    pub committed: Client,
    /// Sees the end of all there is, unfinished transactions too: the high watermark.
    pub all: Client,
    pub admin: AdminClient<Context>,
}

impl Clients {
    fn new(options: &KafkaOptions, errors: &ClientErrors) -> KafkaResult<Self> {
        Ok(Self {
            committed: create(&options.consumer("read_committed"), errors)?,
            all: create(&options.consumer("read_uncommitted"), errors)?,
            admin: AdminClient::from_config_and_context(&options.admin(), Context(errors.clone()))?,
        })
    }
}

pub(super) struct Cluster {
    pub options: KafkaOptions,
    pub errors: ClientErrors,
    /// Replaced when they get no answer, see [`STALLED`].
    clients: Mutex<Arc<Clients>>,
    pub topics: TopicCache,
}

impl Cluster {
    pub fn new(options: KafkaOptions) -> Result<Self, LogError> {
        options.check_build()?;
        let errors = ClientErrors::default();
        let refused =
            |error| refused(&options, "the configuration of its client", &error, "mend that property");
        let clients = Clients::new(&options, &errors).map_err(refused)?;
        let clients = Mutex::new(Arc::new(clients));
        Ok(Self { options, errors, clients, topics: TopicCache::default() })
    }

    /// The present clients; each try of a request asks for them anew.
    pub fn clients(&self) -> Arc<Clients> {
        lock(&self.clients).clone()
    }

    /// Replaces clients that get no answer, unless another thread has done it.
    fn replace(&self, stalled: &Arc<Clients>) {
        let mut clients = lock(&self.clients);
        if !Arc::ptr_eq(&clients, stalled) {
            return;
        }
        match Clients::new(&self.options, &self.errors) {
            Ok(new) => {
                tracing::info!(target: "kafka", "clients that get no answer are replaced");
                let old = std::mem::replace(&mut *clients, Arc::new(new));
                drop(clients);
                // It may take a moment to end its connections.
                drop(old);
            }
            Err(error) => tracing::warn!(target: "kafka", %error, "no new clients"),
        }
    }

    pub fn id(&self, deadline: Deadline) -> Result<String, LogError> {
        let id = self.clients().committed.client().fetch_cluster_id(deadline.left());
        id.ok_or_else(|| self.timed_out("asking for the cluster's id", deadline, "no answer"))
    }

    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.options.timeout)
    }

    /// The topic's name in Kafka.
    pub fn name(&self, topic: &str) -> String {
        format!("{}.{topic}", self.options.url.prefix())
    }

    /// A consumer for reading by offset. librdkafka assigns partitions only to a consumer that
    /// names a group; nothing is ever committed for this one.
    pub fn consumer(&self) -> Result<Client, LogError> {
        self.group(&self.name("readers"))
    }

    pub fn group(&self, group: &str) -> Result<Client, LogError> {
        create(&self.options.group(group), &self.errors)
            .map_err(|error| self.error("creating a consumer", &error, self.options.timeout))
    }

    /// Retries a request until it is answered or refused, or the deadline passes.
    pub fn retry<T>(
        &self,
        doing: &str,
        deadline: Deadline,
        mut request: impl FnMut(Duration) -> KafkaResult<T>,
    ) -> Result<T, LogError> {
        let mut pause = Duration::from_millis(10);
        let (mut clients, mut since) = (self.clients(), Instant::now());
        loop {
            match request(deadline.request()) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    self.poll_errors();
                    if deadline.passed() {
                        probe_refusal(&self.options, &self.errors);
                    }
                    let refusal = self.errors.refusal().filter(|_| is_passing(&error));
                    if let Some((reason, mend)) = refusal {
                        let servers = self.options.url.servers().into();
                        return Err(LogError::KafkaRefused {
                            servers,
                            doing: doing.into(),
                            reason,
                            mend: mend.into(),
                        });
                    }
                    // Those of a call that ends here are replaced for the next one.
                    if is_passing(&error) && (deadline.passed() || since.elapsed() >= STALLED) {
                        self.replace(&clients);
                        (clients, since) = (self.clients(), Instant::now());
                    }
                    if deadline.passed() || !is_passing(&error) {
                        return Err(self.error(doing, &error, deadline.limit));
                    }
                    thread::sleep(pause.min(deadline.left()));
                }
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Polls the client for errors. librdkafka reports them only to callers that poll.
    fn poll_errors(&self) {
        for _ in 0..16 {
            match self.clients().committed.poll(Duration::ZERO) {
                Some(Err(error)) => self.errors.record(&error, &error.to_string()),
                Some(Ok(_)) => {}
                None => break,
            }
        }
    }

    /// Translates a request's error into the log's terms.
    pub fn error(&self, doing: &str, error: &KafkaError, waited: Duration) -> LogError {
        match code(error).map(kind) {
            Some(Kind::Refused(mend)) => refused(&self.options, doing, error, mend),
            Some(Kind::UnknownTopic) => LogError::UnknownTopic(doing.into()),
            Some(Kind::Passing) => self.unavailable(doing, waited, &error.to_string()),
            None => refused(&self.options, doing, error, "mend that and try again"),
        }
    }

    pub fn unavailable(&self, doing: &str, waited: Duration, reason: &str) -> LogError {
        let reason = match self.errors.last() {
            Some(error) => format!("{reason}; last error: {error}"),
            None => reason.into(),
        };
        let servers = self.options.url.servers().into();
        LogError::KafkaUnavailable { servers, doing: doing.into(), seconds: waited.as_secs(), reason }
    }

    pub fn timed_out(&self, doing: &str, deadline: Deadline, reason: &str) -> LogError {
        self.unavailable(doing, deadline.limit, reason)
    }
}

/// Refreshes the leaders of the topic's partitions. By itself the client would keep asking a dead
/// leader.
pub(super) fn refresh_leaders(client: &Client, topic: &str, left: Duration) {
    if let Err(error) = client.fetch_metadata(Some(topic), left) {
        tracing::debug!(target: "kafka", topic, %error, "no news of its leaders");
    }
}

fn create(config: &ClientConfig, errors: &ClientErrors) -> KafkaResult<Client> {
    BaseConsumer::from_config_and_context(config, Context(errors.clone()))
}
