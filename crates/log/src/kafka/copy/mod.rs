//! Copies an embedded log to Kafka, once, before processes move there.
//!
//! Two ways. As it is ([`mirror`]): the same partitions, and offset N means the same record in both
//! logs, so that everything which remembers offsets (the lake's tables, the consumer groups) goes
//! on where it was, and so do producers. Or laid out anew ([`spread`]) over another number of
//! partitions: then nothing keeps its offset.
//!
//! Either may be killed at any instant and run again: it goes on where it was. In the end every
//! record of both logs is read and compared.
//!
//! Nobody else may append to the target meanwhile. That two copies do not run at a time is seen to
//! by a transactional id, `PREFIX.copy`: who takes it last has the right to copy, and each asks
//! every second whether it still has, by writing down once more that a copy is running.

mod compare;
mod mirror;
mod spread;

use std::cell::Cell;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use super::KafkaLog;
use super::deadline::Deadline;
use super::producer_context::Role;
use super::state::{self, Control};
use super::writer::{Failure, Writer};
use crate::{EmbeddedLog, EventLog, LogError, TopicConfig, TopicPartition};

/// How often a copy checks that it is still the only one.
const ASK: Duration = Duration::from_secs(1);
/// How long the target must be at rest before a copy goes on that another process began: longer
/// than it takes until that one asks, or until what it had on the way when it was killed has
/// arrived.
const REST: Duration = Duration::from_secs(3);

/// How to copy.
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyOptions<'a> {
    /// A new layout of all topics; `None` keeps partitions and offsets.
    pub spread: Option<Spread<'a>>,
}

/// A new layout.
#[derive(Clone, Copy)]
pub struct Spread<'a> {
    /// What every topic gets.
    pub partitions: u32,
    /// Where a record belongs, by its topic, its key and the number of partitions. Must always say
    /// the same.
    pub place: &'a dyn Fn(&str, &[u8], u32) -> Place,
}

impl fmt::Debug for Spread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spread").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}

/// The partitions that a record belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The partition with this number.
    One(u32),
    /// Each gets it, as with heartbeats, which speak for all that was reported before.
    All,
}

/// What a copy is doing with a partition of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyProgress {
    /// What is being done.
    pub step: CopyStep,
    /// The partition of the source.
    pub at: TopicPartition,
    /// Done with up to here; the step ends at `end`.
    pub offset: u64,
    /// Offset at which the step ends.
    pub end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
/// What a copy does with a partition.
pub enum CopyStep {
    /// Reads both logs and compares them.
    Comparing,
    /// Brings a new partition to the offset at which the source begins.
    Filling,
    /// Writes the records that the target lacks.
    Copying,
}

/// What a copy did, and what the target then holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Topics of the source.
    pub topics: u64,
    /// Of the source.
    pub partitions: u64,
    /// Records of the source. All of them were compared with what the target holds.
    pub records: u64,
    /// Records that this run wrote; the others were there from an earlier one. Where a record goes
    /// to all partitions, each counts.
    pub written: u64,
    /// Producers whose progress was carried over, counted in each partition; none when laid out
    /// anew.
    pub producers: u64,
    /// Consumer groups whose offsets were carried over, counted in each partition; none when laid
    /// out anew.
    pub groups: u64,
}

type OnProgress<'a> = &'a mut dyn FnMut(CopyProgress);

/// Copies all topics of `from` into `to`.
///
/// Nobody may append to either meanwhile; an embedded log that grew is refused at the end, and the
/// copy is to be run again. A target that holds anything else than the beginning of such a copy is
/// refused as [`LogError::NoCopy`] or [`LogError::TopicMismatch`] before anything is written to the
/// topic in question.
pub fn copy_to_kafka(
    from: &EmbeddedLog,
    to: &KafkaLog,
    options: CopyOptions<'_>,
    on_progress: &mut dyn FnMut(CopyProgress),
) -> Result<CopyReport, LogError> {
    let topics = from.topics()?;
    refuse_other_topics(to, &topics)?;
    let lease = CopyLease::take(to)?;
    let mut report = CopyReport { topics: topics.len() as u64, ..Default::default() };
    let mut layout = topics.clone();
    for (topic, config) in &mut layout {
        config.partitions = options.spread.map_or(config.partitions, |spread| spread.partitions);
        to.create_topic(topic, *config)?;
    }
    lease.wait_for_rest(&layout)?;
    lease.mark("running")?;
    let before = extents(from, &topics)?;
    for (topic, config) in &topics {
        report.partitions += u64::from(config.partitions);
        match options.spread {
            Some(spread) => spread::copy(from, &lease, (topic, *config), spread, &mut report, on_progress)?,
            None => mirror::copy(from, &lease, (topic, *config), &mut report, on_progress)?,
        }
    }
    if options.spread.is_none() {
        mirror::carry_over(from, &lease, &topics, &mut report)?;
    }
    for ((at, extent), (_, after)) in before.into_iter().zip(extents(from, &topics)?) {
        if extent != after {
            let what = "somebody appended to it or trimmed it meanwhile; stop that and copy again, which goes on from here";
            return Err(no_copy(&at, after.end, what));
        }
    }
    lease.mark("done")?;
    Ok(report)
}

fn extents(
    from: &EmbeddedLog,
    topics: &[(String, TopicConfig)],
) -> Result<Vec<(TopicPartition, crate::Extent)>, LogError> {
    let all = topics.iter().flat_map(|(topic, config)| partitions(topic, config.partitions));
    all.map(|at| Ok((at.clone(), from.extent(&at)?))).collect()
}

fn partitions(topic: &str, count: u32) -> impl Iterator<Item = TopicPartition> {
    let topic = topic.to_owned();
    (0..count).map(move |partition| TopicPartition { topic: topic.clone(), partition })
}

fn no_copy(at: &TopicPartition, offset: u64, what: impl Into<String>) -> LogError {
    let TopicPartition { topic, partition } = at.clone();
    LogError::NoCopy { topic, partition, offset, what: what.into() }
}

/// A log that was used for something else is no target, even where no topic's name is the same.
fn refuse_other_topics(to: &KafkaLog, ours: &[(String, TopicConfig)]) -> Result<(), LogError> {
    for (topic, config) in to.topics()? {
        if ours.iter().any(|(ours, _)| *ours == topic) {
            continue;
        }
        for at in partitions(&topic, config.partitions) {
            let extent = to.extent(&at)?;
            if extent.end > 0 {
                let what = "the Kafka log holds it and the embedded one does not; copy to another prefix";
                return Err(no_copy(&at, extent.start, what));
            }
        }
    }
    Ok(())
}

/// The right to copy into a log.
struct CopyLease<'a> {
    to: &'a KafkaLog,
    writer: Writer,
    /// Whether another process has copied here before.
    begun: bool,
    asked: Cell<Instant>,
}

impl<'a> CopyLease<'a> {
    fn take(to: &'a KafkaLog) -> Result<Self, LogError> {
        let deadline = to.cluster.deadline();
        let writer = Writer::take(&to.cluster, &to.cluster.name("copy"), deadline)?;
        let begun = to.state.control(&to.cluster, deadline, |control: &Control| control.copy.is_some())?;
        Ok(Self { to, writer, begun, asked: Cell::new(Instant::now()) })
    }

    /// Waits until nothing arrives any more of what an earlier copy had on the way.
    fn wait_for_rest(&self, layout: &[(String, TopicConfig)]) -> Result<(), LogError> {
        if !self.begun {
            return Ok(());
        }
        let ends = || -> Result<Vec<u64>, LogError> {
            let all = layout.iter().flat_map(|(topic, config)| partitions(topic, config.partitions));
            let cluster = &self.to.cluster;
            all.map(|at| cluster.high_watermark(&cluster.name(&at.topic), at.partition, self.deadline()))
                .collect()
        };
        let (mut last, mut since) = (ends()?, Instant::now());
        while since.elapsed() < REST {
            thread::sleep(Duration::from_millis(200));
            let now = ends()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Writes down how far the copy is; fails if another one took over.
    fn mark(&self, what: &str) -> Result<(), LogError> {
        let value = format!("{what:?}");
        self.write(&[(state::CONTROL, state::COPY.into(), value)])
    }

    /// Checks once a second that this process still has the right to copy; call it between steps.
    fn check(&self) -> Result<(), LogError> {
        if self.asked.get().elapsed() < ASK {
            return Ok(());
        }
        self.mark("running")?;
        self.asked.set(Instant::now());
        Ok(())
    }

    /// Writes to the topic of progress, all or nothing: partition, key, value.
    fn write(&self, messages: &[(u32, String, String)]) -> Result<(), LogError> {
        let (cluster, deadline) = (&self.to.cluster, self.to.cluster.deadline());
        let topic = self.to.state.topic();
        loop {
            let send = |writer: &Writer| {
                messages.iter().try_for_each(|(partition, key, value)| {
                    let beside = (Role::Beside, None, None);
                    writer.send((topic, *partition), (key.as_bytes(), value.as_bytes()), beside, deadline)
                })
            };
            let reason = match self.writer.transact(cluster, deadline, send, |_| Ok(())) {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(refused)) => return Err(refused),
                Err(Failure::Aborted(reason)) if !deadline.passed() => reason,
                Err(Failure::Taken(reason)) => {
                    return Err(LogError::KafkaRefused {
                        servers: cluster.options.url.servers().into(),
                        doing: format!("copying to {}", cluster.options.url),
                        reason,
                        mend: "another copy to it was started; let that one get done".into(),
                    });
                }
                Err(Failure::Aborted(reason) | Failure::Lost(reason)) => {
                    return Err(cluster.timed_out("writing to the topic of progress", deadline, &reason));
                }
            };
            tracing::warn!(target: "kafka", "a copy writes its progress again: {reason}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn deadline(&self) -> Deadline {
        self.to.cluster.deadline()
    }
}
