//! Topics: listing, creating, and waiting for brokers that do not know one yet.
//!
//! A broker that has just started answers before it knows every topic. So calls wait for a topic
//! that this handle has seen or that the log's own records declare; any other is unknown at once.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};

use super::client::{Cluster, LEADER, refresh_leaders};
use super::client_errors::{Kind, kind};
use super::deadline::Deadline;
use super::topic_cache::TopicState;
use crate::LogError;
use crate::check::lock;

/// How long a topic that was there may be unknown before it counts as deleted.
const NEWS: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);

impl Cluster {
    /// Sends a request about a topic, and retries where a broker does not know the topic but
    /// [`find`](Self::find) does.
    pub fn retry_for_topic<T>(
        &self,
        topic: &str,
        doing: &str,
        deadline: Deadline,
        mut request: impl FnMut(Duration) -> KafkaResult<T>,
    ) -> Result<T, LogError> {
        loop {
            match self.retry(doing, deadline, &mut request) {
                Err(LogError::UnknownTopic(_)) => self.wait_for(topic, doing, deadline)?,
                answer => return answer,
            }
        }
    }

    /// Waits for a topic that one broker does not know; an error if no broker knows it.
    pub fn wait_for(&self, topic: &str, doing: &str, deadline: Deadline) -> Result<(), LogError> {
        if self.find(topic, deadline)?.is_none() {
            let prefix = self.name("");
            return Err(LogError::UnknownTopic(topic.strip_prefix(&prefix).unwrap_or(topic).into()));
        }
        if deadline.passed() {
            return Err(self.timed_out(
                doing,
                deadline,
                &format!("a broker does not know topic {topic} yet"),
            ));
        }
        thread::sleep(PAUSE.min(deadline.left()));
        Ok(())
    }

    /// Partitions of a topic by its name in Kafka; `None` if there is no such topic. One that was
    /// there is waited for, up to [`NEWS`].
    pub fn find(&self, topic: &str, deadline: Deadline) -> Result<Option<u32>, LogError> {
        loop {
            let found = self.look_up(topic, deadline)?;
            match self.update_cache(topic, found) {
                Some(missing) if missing < NEWS => {}
                _ => return Ok(found),
            }
            if deadline.passed() {
                let doing = format!("looking up topic {topic}");
                return Err(self.timed_out(
                    &doing,
                    deadline,
                    "it was there, and the brokers do not know it now",
                ));
            }
            thread::sleep(PAUSE.min(deadline.left()));
        }
    }

    /// Updates the cache from the brokers' answer. Returns for how long a known topic has been
    /// missing.
    fn update_cache(&self, topic: &str, found: Option<u32>) -> Option<Duration> {
        let mut topics = lock(&self.topics);
        if let Some(partitions) = found {
            topics.insert(topic.into(), TopicState::There(partitions));
            return None;
        }
        let state = topics.get_mut(topic)?;
        if let TopicState::There(_) = state {
            *state = TopicState::Missing(Instant::now());
        }
        match state {
            TopicState::Missing(since) => Some(since.elapsed()),
            TopicState::There(_) => None,
        }
    }

    /// [`find`](Self::find) for a topic that the log's own records declare.
    pub fn find_declared(&self, topic: &str, deadline: Deadline) -> Result<Option<u32>, LogError> {
        lock(&self.topics).entry(topic.into()).or_insert_with(|| TopicState::Missing(Instant::now()));
        self.find(topic, deadline)
    }

    fn look_up(&self, topic: &str, deadline: Deadline) -> Result<Option<u32>, LogError> {
        let found = self.retry(&format!("looking up topic {topic}"), deadline, |left| {
            let metadata = self.clients().committed.fetch_metadata(Some(topic), left)?;
            let found = metadata.topics().iter().find(|found| found.name() == topic);
            match found.and_then(|found| Some((found, found.error()?))) {
                Some((_, error)) => Err(KafkaError::MetadataFetch(error.into())),
                None => Ok(found.map(|found| found.partitions().len() as u32).filter(|count| *count > 0)),
            }
        });
        let found = match found {
            Err(LogError::UnknownTopic(_)) => None,
            found => found?,
        };
        self.errors.forget();
        Ok(found)
    }

    /// The number of partitions from the cache; asks the brokers if it is unknown.
    pub fn partitions(
        &self,
        topic: &str,
        at_least: u32,
        deadline: Deadline,
    ) -> Result<Option<u32>, LogError> {
        if let Some(TopicState::There(count)) = lock(&self.topics).get(topic)
            && *count >= at_least
        {
            return Ok(Some(*count));
        }
        self.find(topic, deadline)
    }

    /// All topics whose names begin with our prefix, without it, and their partitions.
    pub fn list(&self, deadline: Deadline) -> Result<BTreeMap<String, u32>, LogError> {
        let prefix = self.name("");
        self.retry("listing topics", deadline, |left| {
            let metadata = self.clients().committed.fetch_metadata(None, left)?;
            let ours = metadata.topics().iter().filter_map(|topic| {
                Some((topic.name().strip_prefix(&prefix)?.to_owned(), topic.partitions().len() as u32))
            });
            Ok(ours.collect())
        })
    }

    /// Creates a topic and waits until it may be used; one that exists by then is left as it is.
    pub fn create(
        &self,
        topic: &str,
        partitions: u32,
        settings: &[(&str, &str)],
        deadline: Deadline,
    ) -> Result<u32, LogError> {
        let doing = format!("creating topic {topic}");
        let brokers = self.retry(&doing, deadline, |left| {
            Ok(self.clients().committed.fetch_metadata(Some(topic), left)?.brokers().len() as u16)
        })?;
        let replication = self.options.replication.unwrap_or(brokers.clamp(1, 3));
        let in_sync = replication.saturating_sub(1).max(1).to_string();
        let mut new = NewTopic::new(topic, partitions as i32, TopicReplication::Fixed(replication.into()));
        new = new.set("min.insync.replicas", &in_sync);
        new = settings.iter().fold(new, |new, (key, value)| new.set(key, value));
        self.retry(&doing, deadline, |left| {
            let options = AdminOptions::new().request_timeout(Some(left)).operation_timeout(Some(left));
            match block_on(self.clients().admin.create_topics([&new], &options))?.pop() {
                Some(Err((_, code))) if code != Code::TopicAlreadyExists => Err(KafkaError::AdminOp(code)),
                _ => Ok(()),
            }
        })?;
        loop {
            let reason = match self.ready(topic, deadline)? {
                Ok(found) => return Ok(found),
                Err(reason) => reason,
            };
            if deadline.passed() {
                return Err(self.timed_out(&doing, deadline, &reason));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Partitions of a topic that has a leader for each and answers for them; else what it lacks.
    fn ready(&self, topic: &str, deadline: Deadline) -> Result<Result<u32, String>, LogError> {
        let Some(count) = self.find(topic, deadline)? else {
            return Ok(Err("the brokers do not know it yet".into()));
        };
        for partition in 0..count {
            let left = deadline.request();
            let client = &self.clients().all;
            let asked = client.fetch_watermarks(topic, partition as i32, left.min(LEADER));
            let Err(error) = asked.inspect_err(|_| refresh_leaders(client, topic, left)) else { continue };
            match error.rdkafka_error_code().map(kind) {
                Some(Kind::Passing | Kind::UnknownTopic) => {
                    return Ok(Err(format!("partition {partition} does not answer: {error}")));
                }
                _ => return Err(self.error(&format!("opening topic {topic}"), &error, deadline.limit)),
            }
        }
        Ok(Ok(count))
    }
}
