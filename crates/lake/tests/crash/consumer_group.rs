//! Two processes that share one log as members of a consumer group on Kafka would: one that dies or
//! stays silent loses its partitions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_log::{
    Appended, Batch, EmbeddedLog, EventLog, Extent, LogError, Member, RebalanceEvent, StoredRecord,
    TopicConfig, TopicPartition,
};

/// Which of two processes has which partition, and which should.
#[derive(Debug, Default)]
pub struct Assignment {
    held: BTreeMap<TopicPartition, usize>,
    is_gone: [bool; 2],
}

impl Assignment {
    /// Even partitions belong to the first process, odd ones to the second; all belong to the one
    /// that is left.
    fn should_have(&self, at: &TopicPartition) -> usize {
        let share = at.partition as usize % 2;
        if self.is_gone[share] { 1 - share } else { share }
    }
}

/// One process's handle of the log.
#[derive(Clone)]
pub struct Handle {
    log: EmbeddedLog,
    who: usize,
    shares: Arc<Mutex<Assignment>>,
}

impl Handle {
    /// Two processes on one log.
    pub fn pair(log: &EmbeddedLog) -> [Self; 2] {
        let shares = Arc::default();
        [0, 1].map(|who| Self { log: log.clone(), who, shares: Arc::clone(&shares) })
    }

    fn shares(&self) -> MutexGuard<'_, Assignment> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process died, or was silent for too long: the group reassigns its partitions.
    pub fn is_gone(&self) {
        let mut shares = self.shares();
        shares.is_gone[self.who] = true;
        let who = self.who;
        shares.held.retain(|_, holder| *holder != who);
    }

    /// The process is a member again.
    pub fn is_back(&self) {
        self.shares().is_gone[self.who] = false;
    }
}

/// Membership of one topic's group.
struct TopicMember {
    handle: Handle,
    group: String,
    all: Vec<TopicPartition>,
    /// Partitions assigned to it.
    held: Vec<TopicPartition>,
    /// Partitions being revoked from it, for which it may still commit.
    leaving: Vec<TopicPartition>,
    changes: u64,
}

impl Member for TopicMember {
    fn poll(&mut self, _: Duration) -> Result<Option<RebalanceEvent>, LogError> {
        let mut shares = self.handle.shares();
        let who = self.handle.who;
        for at in self.leaving.drain(..) {
            if shares.held.get(&at) == Some(&who) {
                shares.held.remove(&at);
            }
        }
        let takes =
            |from: &mut Vec<TopicPartition>, which: &[TopicPartition]| from.retain(|at| !which.contains(at));
        let lost: Vec<_> = self.held.iter().filter(|at| shares.held.get(at) != Some(&who)).cloned().collect();
        let leaving: Vec<_> = self.held.iter().filter(|at| shares.should_have(at) != who).cloned().collect();
        let free = |at: &&TopicPartition| shares.should_have(at) == who && !shares.held.contains_key(at);
        let gained: Vec<_> = self.all.iter().filter(free).cloned().collect();
        let share = if !lost.is_empty() {
            takes(&mut self.held, &lost);
            RebalanceEvent::Lost(lost)
        } else if !leaving.is_empty() {
            takes(&mut self.held, &leaving);
            self.leaving.clone_from(&leaving);
            RebalanceEvent::Revoking(leaving)
        } else if !gained.is_empty() {
            shares.held.extend(gained.iter().map(|at| (at.clone(), who)));
            self.held.extend(gained.iter().cloned());
            RebalanceEvent::Assigned(gained)
        } else {
            return Ok(None);
        };
        self.changes += 1;
        Ok(Some(share))
    }

    fn commit(&mut self, offsets: &[(TopicPartition, u64)]) -> Result<(), LogError> {
        for (at, offset) in offsets {
            let is_mine = self.handle.shares().held.get(at) == Some(&self.handle.who);
            if is_mine {
                self.handle.log.commit_offset(&self.group, at, *offset)?;
            }
        }
        Ok(())
    }

    fn rebalances(&self) -> u64 {
        self.changes
    }
}

impl EventLog for Handle {
    fn join(&self, group: &str, topics: &[&str]) -> Result<Box<dyn Member>, LogError> {
        let topics = self.log.topics()?.into_iter().filter(|(topic, _)| topics.contains(&topic.as_str()));
        let partitions = |(topic, config): (String, TopicConfig)| {
            (0..config.partitions).map(move |partition| TopicPartition { topic: topic.clone(), partition })
        };
        let all = topics.flat_map(partitions).collect();
        let (handle, group) = (self.clone(), group.into());
        Ok(Box::new(TopicMember { handle, group, all, held: Vec::new(), leaving: Vec::new(), changes: 0 }))
    }

    fn create_topic(&self, topic: &str, config: TopicConfig) -> Result<(), LogError> {
        self.log.create_topic(topic, config)
    }

    fn topics(&self) -> Result<Vec<(String, TopicConfig)>, LogError> {
        self.log.topics()
    }

    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        self.log.append(at, batch)
    }

    fn read(&self, at: &TopicPartition, from: u64, max_bytes: usize) -> Result<Vec<StoredRecord>, LogError> {
        self.log.read(at, from, max_bytes)
    }

    fn extent(&self, at: &TopicPartition) -> Result<Extent, LogError> {
        self.log.extent(at)
    }

    fn offset_for_time(&self, at: &TopicPartition, event_time_ms: i64) -> Result<u64, LogError> {
        self.log.offset_for_time(at, event_time_ms)
    }

    fn wait_for(&self, at: &TopicPartition, offset: u64, timeout: Duration) -> Result<bool, LogError> {
        self.log.wait_for(at, offset, timeout)
    }

    fn commit_offset(&self, group: &str, at: &TopicPartition, offset: u64) -> Result<(), LogError> {
        self.log.commit_offset(group, at, offset)
    }

    fn committed_offset(&self, group: &str, at: &TopicPartition) -> Result<Option<u64>, LogError> {
        self.log.committed_offset(group, at)
    }

    fn trim(&self, at: &TopicPartition, before: u64) -> Result<Extent, LogError> {
        self.log.trim(at, before)
    }

    fn apply_retention(&self, now_ms: i64) -> Result<(), LogError> {
        self.log.apply_retention(now_ms)
    }

    fn set_retention(&self, topic: &str, retain_ms: Option<u64>) -> Result<(), LogError> {
        self.log.set_retention(topic, retain_ms)
    }

    fn consumers(&self, at: &TopicPartition) -> Result<Vec<(String, u64)>, LogError> {
        self.log.consumers(at)
    }

    fn forget_consumer(&self, group: &str) -> Result<bool, LogError> {
        self.log.forget_consumer(group)
    }

    fn fence(&self) -> Result<u64, LogError> {
        self.log.fence()
    }
}
