//! What all parts ask of the cluster: ends of partitions, groups; `topics.rs` has the topics.

use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::groups::GroupList;
use rdkafka::{Offset, TopicPartitionList};

use super::complaints::{Complaints, Context, Kind, code, is_passing, kind, refused};
use super::options::KafkaOptions;
use super::record::offset;
use super::topics::Topics;
use crate::{Extent, LogError};

/// How long a single request may take before it is asked again.
const REQUEST: Duration = Duration::from_secs(3);
/// How long a partition's leader may take to say where the partition ends.
pub(super) const LEADER: Duration = Duration::from_secs(1);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The end of a call's patience.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    pub limit: Duration,
}

impl Deadline {
    pub fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub fn passed(&self) -> bool {
        self.left().is_zero()
    }

    /// What is left, but no longer than one request should take.
    pub fn request(&self) -> Duration {
        self.left().clamp(Duration::from_millis(1), REQUEST)
    }
}

pub(super) type Client = BaseConsumer<Context>;

pub(super) struct Cluster {
    pub options: KafkaOptions,
    pub complaints: Complaints,
    /// Sees the end of what is committed: the last stable offset.
    pub committed: Client,
    /// Sees the end of all there is, unfinished transactions too: the high watermark.
    pub all: Client,
    pub admin: AdminClient<Context>,
    pub topics: Topics,
}

impl Cluster {
    pub fn new(options: KafkaOptions) -> Result<Self, LogError> {
        options.check_build()?;
        let complaints = Complaints::default();
        let refused =
            |error| refused(&options, "the configuration of its client", &error, "mend that property");
        let committed = create(&options.consumer("read_committed"), &complaints).map_err(refused)?;
        let all = create(&options.consumer("read_uncommitted"), &complaints).map_err(refused)?;
        let admin = AdminClient::from_config_and_context(&options.admin(), Context(complaints.clone()));
        let admin = admin.map_err(refused)?;
        Ok(Self { options, complaints, committed, all, admin, topics: Topics::default() })
    }

    pub fn id(&self, deadline: Deadline) -> Result<String, LogError> {
        let id = self.committed.client().fetch_cluster_id(deadline.left());
        id.ok_or_else(|| self.too_late("asking for the cluster's id", deadline, "no answer"))
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
        create(&self.options.group(group), &self.complaints)
            .map_err(|error| self.error("creating a consumer", &error, self.options.timeout))
    }

    /// Asks until there is an answer, a refusal, or no time left.
    pub fn ask<T>(
        &self,
        doing: &str,
        deadline: Deadline,
        mut request: impl FnMut(Duration) -> KafkaResult<T>,
    ) -> Result<T, LogError> {
        let mut pause = Duration::from_millis(10);
        loop {
            match request(deadline.request()) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    self.listen();
                    if deadline.passed() {
                        super::writer::ask_why(&self.options, &self.complaints);
                    }
                    let refusal = self.complaints.refusal().filter(|_| is_passing(&error));
                    if let Some((reason, mend)) = refusal {
                        let servers = self.options.url.servers().into();
                        return Err(LogError::KafkaRefused {
                            servers,
                            doing: doing.into(),
                            reason,
                            mend: mend.into(),
                        });
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

    /// Hears what the client has to complain of; that is only told to who polls, and to a consumer
    /// without the reason.
    fn listen(&self) {
        for _ in 0..16 {
            match self.committed.poll(Duration::ZERO) {
                Some(Err(error)) => self.complaints.hear(&error, &error.to_string()),
                Some(Ok(_)) => {}
                None => break,
            }
        }
    }

    /// Says in the log's words what a request ran into.
    pub fn error(&self, doing: &str, error: &KafkaError, waited: Duration) -> LogError {
        match code(error).map(kind) {
            Some(Kind::Refused(mend)) => refused(&self.options, doing, error, mend),
            Some(Kind::UnknownTopic) => LogError::UnknownTopic(doing.into()),
            Some(Kind::Passing) => self.unavailable(doing, waited, &error.to_string()),
            None => refused(&self.options, doing, error, "mend that and try again"),
        }
    }

    pub fn unavailable(&self, doing: &str, waited: Duration, reason: &str) -> LogError {
        let reason = match self.complaints.last() {
            Some(complaint) => format!("{reason}; last heard: {complaint}"),
            None => reason.into(),
        };
        let servers = self.options.url.servers().into();
        LogError::KafkaUnavailable { servers, doing: doing.into(), seconds: waited.as_secs(), reason }
    }

    pub fn too_late(&self, doing: &str, deadline: Deadline, reason: &str) -> LogError {
        self.unavailable(doing, deadline.limit, reason)
    }

    /// From the first record to the end of what is committed.
    pub fn extent(&self, topic: &str, partition: u32, deadline: Deadline) -> Result<Extent, LogError> {
        let (start, end) = self.watermarks(&self.committed, topic, partition, deadline)?;
        Ok(Extent { start, end: end.max(start) })
    }

    /// The end of all that was ever written, finished or not.
    pub fn high_watermark(&self, topic: &str, partition: u32, deadline: Deadline) -> Result<u64, LogError> {
        Ok(self.watermarks(&self.all, topic, partition, deadline)?.1)
    }

    fn watermarks(
        &self,
        of: &Client,
        topic: &str,
        partition: u32,
        deadline: Deadline,
    ) -> Result<(u64, u64), LogError> {
        let doing = format!("asking for the ends of {topic}/{partition}");
        let (low, high) = self.ask_of(topic, &doing, deadline, |left| {
            let asked = of.fetch_watermarks(topic, partition as i32, left.min(LEADER));
            asked.inspect_err(|_| look_again(of, topic, left))
        })?;
        Ok((offset(low), offset(high)))
    }

    /// Waits until everything that the partition holds below `end` is finished, committed or given
    /// up.
    pub fn settle(
        &self,
        topic: &str,
        partition: u32,
        end: u64,
        deadline: Deadline,
    ) -> Result<Extent, LogError> {
        let mut pause = Duration::from_micros(200);
        loop {
            let extent = self.extent(topic, partition, deadline)?;
            if extent.end >= end {
                return Ok(extent);
            }
            if deadline.passed() {
                let doing = format!("waiting for unfinished appends to {topic}/{partition}");
                return Err(self.too_late(
                    &doing,
                    deadline,
                    "another process left one and Kafka still waits for it",
                ));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// The first offset whose timestamp is not below `time_ms`, markers of transactions included.
    pub fn offset_at_time(
        &self,
        topic: &str,
        partition: u32,
        time_ms: i64,
        deadline: Deadline,
    ) -> Result<Option<u64>, LogError> {
        self.ask_of(topic, &format!("looking for a time in {topic}/{partition}"), deadline, |left| {
            let mut wanted = TopicPartitionList::new();
            wanted.add_partition_offset(topic, partition as i32, Offset::Offset(time_ms))?;
            let found = self.committed.offsets_for_times(wanted, left.min(LEADER));
            let found = found.inspect_err(|_| look_again(&self.committed, topic, left))?;
            let found = found.elements().first().map(|found| (found.error(), found.offset()));
            match found {
                Some((Err(error), _)) => Err(error),
                Some((Ok(()), Offset::Offset(at))) => Ok(Some(offset(at))),
                _ => Ok(None),
            }
        })
    }

    pub fn delete_records(
        &self,
        topic: &str,
        partition: u32,
        before: u64,
        deadline: Deadline,
    ) -> Result<(), LogError> {
        self.ask_of(topic, &format!("trimming {topic}/{partition}"), deadline, |left| {
            let mut wanted = TopicPartitionList::new();
            wanted.add_partition_offset(topic, partition as i32, Offset::Offset(before as i64))?;
            let options = AdminOptions::new().request_timeout(Some(left)).operation_timeout(Some(left));
            let done = block_on(self.admin.delete_records(&wanted, &options))?;
            done.elements().iter().try_for_each(|element| element.error())
        })
    }

    /// Names of all consumer groups of the cluster that belong to this log, as Kafka spells them.
    pub fn groups(&self, deadline: Deadline) -> Result<Vec<String>, LogError> {
        let prefix = self.name("");
        self.ask("listing consumer groups", deadline, |left| {
            let groups = self.committed.fetch_group_list(None, left)?;
            let names = groups.groups().iter().map(|group| group.name().to_owned());
            Ok(names.filter(|name| name.starts_with(&prefix)).collect())
        })
    }

    /// What Kafka tells of a group.
    pub fn group_list(&self, group: &str, timeout: Duration) -> KafkaResult<GroupList> {
        self.committed.fetch_group_list(Some(group), timeout)
    }
}

/// Finds out who leads the topic's partitions now. By itself the client would go on asking a leader
/// that died.
pub(super) fn look_again(client: &Client, topic: &str, left: Duration) {
    if let Err(error) = client.fetch_metadata(Some(topic), left) {
        tracing::debug!(target: "kafka", topic, %error, "no news of its leaders");
    }
}

fn create(config: &ClientConfig, complaints: &Complaints) -> KafkaResult<Client> {
    BaseConsumer::from_config_and_context(config, Context(complaints.clone()))
}
