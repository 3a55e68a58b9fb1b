//! The progress topic: state of the log other than its records.
//!
//! `PREFIX.progress` is compacted. Partition 0 is for control: the generation of writers (key
//! `generation`), how each topic was asked for (key `topic/TOPIC`), when its records were written
//! (key `written/TOPIC`), and whether another log was copied here (key `copy`). The others hold how
//! far each source got in each partition (key `TOPIC/PARTITION/SOURCE`), spread by a hash of the
//! source's [`family`]. Values are JSON, readable with a console consumer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

use xxhash_rust::xxh3::xxh3_64;

use super::client::Cluster;
use super::deadline::Deadline;
use super::reader::Readers;
use crate::check::{Progress, lock};
use crate::write_marks::Written;
use crate::{LogError, Record, TopicConfig, TopicPartition};

pub(super) const TOPIC: &str = "progress";
pub(super) const CONTROL: u32 = 0;
pub(super) const GENERATION: &str = "generation";
/// Whether a copy into this log has begun, and whether it is complete: see `copy`.
pub(super) const COPY: &str = "copy";
const TOPIC_KEY: &str = "topic/";
const WRITTEN_KEY: &str = "written/";

/// How far a source got, by partition.
pub(super) type SourceProgress = HashMap<TopicPartition, Progress>;

#[derive(Debug, Default)]
pub(super) struct Control {
    pub generation: u64,
    pub topics: BTreeMap<String, TopicConfig>,
    /// `"running"` or `"done"`; `None` in a log that nothing was ever copied into.
    pub copy: Option<String>,
    /// When records were written, by topic and partition.
    pub written: BTreeMap<String, BTreeMap<u32, Written>>,
}

/// State of a partition of the topic, up to an offset.
#[derive(Default)]
struct Tail<T> {
    next: u64,
    content: T,
}

pub(super) struct State {
    /// The topic's name in Kafka.
    topic: String,
    readers: Readers,
    control: Mutex<Tail<Control>>,
    /// Of partitions 1 and on.
    sources: Vec<Mutex<Tail<HashMap<String, SourceProgress>>>>,
}

impl State {
    /// Finds the topic, or creates it.
    pub fn open(cluster: &Cluster, deadline: Deadline) -> Result<Self, LogError> {
        let topic = cluster.name(TOPIC);
        let partitions = match cluster.find(&topic, deadline)? {
            Some(found) => found,
            None => {
                let settings = [
                    ("cleanup.policy", "compact"),
                    ("segment.ms", "3600000"),
                    ("segment.bytes", "67108864"),
                    ("retention.ms", "-1"),
                ];
                cluster.create(&topic, cluster.options.progress_partitions.max(2), &settings, deadline)?
            }
        };
        if partitions < 2 {
            let doing = format!("opening topic {topic}");
            return Err(LogError::KafkaRefused {
                servers: cluster.options.url.servers().into(),
                doing,
                reason: "it has one partition".into(),
                mend: "make it with 2 partitions or more, and cleanup.policy=compact".into(),
            });
        }
        let sources = (1..partitions).map(|_| Mutex::default()).collect();
        Ok(Self { topic, readers: Readers::default(), control: Mutex::default(), sources })
    }

    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The partition that holds the progress of a source, and of its whole family.
    pub fn partition_of(&self, source: &str) -> u32 {
        1 + (xxh3_64(family(source).as_bytes()) % self.sources.len() as u64) as u32
    }

    /// The generation, and topics' layouts, as they are now.
    pub fn control<T>(
        &self,
        cluster: &Cluster,
        deadline: Deadline,
        look: impl FnOnce(&Control) -> T,
    ) -> Result<T, LogError> {
        let mut tail = lock(&self.control);
        self.catch_up(cluster, CONTROL, &mut tail, deadline, |control, record| {
            let Ok(key) = str::from_utf8(&record.key) else { return Ok(()) };
            if key == GENERATION {
                control.generation = self.parse(CONTROL, key, &record.payload)?;
            } else if key == COPY {
                control.copy = Some(self.parse(CONTROL, key, &record.payload)?);
            } else if let Some(topic) = key.strip_prefix(TOPIC_KEY) {
                control.topics.insert(topic.into(), self.parse(CONTROL, key, &record.payload)?);
            } else if let Some(topic) = key.strip_prefix(WRITTEN_KEY) {
                control.written.insert(topic.into(), self.parse(CONTROL, key, &record.payload)?);
            }
            Ok(())
        })?;
        Ok(look(&tail.content))
    }

    /// Progress of a source in all partitions. Exact if all its transactions are over, as they are
    /// once its transactional id is initialized.
    pub fn of_source(
        &self,
        cluster: &Cluster,
        source: &str,
        deadline: Deadline,
    ) -> Result<SourceProgress, LogError> {
        let partition = self.partition_of(source);
        let mut tail = lock(&self.sources[partition as usize - 1]);
        self.catch_up(cluster, partition, &mut tail, deadline, |sources, record| {
            let Some((at, source)) = str::from_utf8(&record.key).ok().and_then(parse_key) else {
                return Ok(());
            };
            let progress = self.parse(partition, source, &record.payload)?;
            sources.entry(source.to_owned()).or_default().insert(at, progress);
            Ok(())
        })?;
        Ok(tail.content.get(source).cloned().unwrap_or_default())
    }

    /// Progress of a source in a partition, as of the last read of its family.
    pub fn last_read(&self, source: &str, at: &TopicPartition) -> Option<Progress> {
        let tail = lock(&self.sources[self.partition_of(source) as usize - 1]);
        tail.content.get(source)?.get(at).copied()
    }

    /// Reads on to the end, as it is when this is called.
    fn catch_up<T>(
        &self,
        cluster: &Cluster,
        partition: u32,
        tail: &mut MutexGuard<'_, Tail<T>>,
        deadline: Deadline,
        mut apply: impl FnMut(&mut T, Record) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let end = cluster.high_watermark(&self.topic, partition, deadline)?;
        if end <= tail.next {
            return Ok(());
        }
        // A committed record may lie behind an unfinished transaction of another process; it
        // counts, so wait for it.
        let start = cluster.wait_until_settled(&self.topic, partition, end, deadline)?.start;
        let mut from = tail.next.max(start);
        while from < end {
            let records = self.readers.read(cluster, (&self.topic, partition), from, 1 << 20, deadline)?;
            let Some(last) = records.last() else { break };
            from = last.offset + 1;
            records.into_iter().try_for_each(|stored| apply(&mut tail.content, stored.record))?;
        }
        tail.next = end.max(from);
        Ok(())
    }

    fn parse<T: serde::de::DeserializeOwned>(
        &self,
        partition: u32,
        key: &str,
        value: &[u8],
    ) -> Result<T, LogError> {
        serde_json::from_slice(value).map_err(|error| LogError::KafkaRefused {
            servers: "the cluster".into(),
            doing: format!("reading {}/{partition}", self.topic),
            reason: format!("the value of {key:?} is not ours ({error})"),
            mend: "something else writes to this topic; use another prefix, or take the record out".into(),
        })
    }
}

/// Sources that are equal up to their last `#`, it included, are a family, with one transactional
/// id; others are alone.
pub(super) fn family(source: &str) -> &str {
    source.rfind('#').map_or(source, |last| &source[..=last])
}

pub(super) fn topic_key(topic: &str) -> String {
    format!("{TOPIC_KEY}{topic}")
}

pub(super) fn written_key(topic: &str) -> String {
    format!("{WRITTEN_KEY}{topic}")
}

/// `TOPIC/PARTITION/SOURCE`: the names of topics hold no slash, so that a source may.
pub(super) fn key(at: &TopicPartition, source: &str) -> String {
    format!("{}/{}/{source}", at.topic, at.partition)
}

pub(super) fn value(progress: Progress) -> String {
    format!(r#"{{"epoch":{},"next_seq":{}}}"#, progress.epoch, progress.next_seq)
}

fn parse_key(key: &str) -> Option<(TopicPartition, &str)> {
    let (topic, rest) = key.split_once('/')?;
    let (partition, source) = rest.split_once('/')?;
    Some((TopicPartition { topic: topic.into(), partition: partition.parse().ok()? }, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let at = TopicPartition { topic: "topic".into(), partition: 7 };
        assert_eq!(parse_key(&key(&at, "import/a/b")), Some((at, "import/a/b")));
        assert_eq!(parse_key(GENERATION), None);
    }

    #[test]
    fn a_family_is_what_stands_before_the_last_number_sign() {
        for (source, expected) in [
            ("import/a#12", "import/a#"),
            ("a#b#c", "a#b#"),
            ("a#", "a#"),
            ("agent/n1", "agent/n1"),
            ("#", "#"),
        ] {
            assert_eq!(family(source), expected);
        }
    }
}
