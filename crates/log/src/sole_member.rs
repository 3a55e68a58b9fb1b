use std::sync::Arc;
use std::time::Duration;

use crate::{EventLog, LogError, Member, RebalanceEvent, TopicPartition};

/// The only member of its group: it is assigned everything at once and keeps it.
struct Alone {
    log: Arc<dyn EventLog>,
    group: String,
    share: Option<Vec<TopicPartition>>,
}

/// Membership without a group: assigns all partitions of the existing topics to the caller. For a
/// reader that shares its work with no other process.
pub fn sole_member(
    log: Arc<dyn EventLog>,
    group: &str,
    topics: &[&str],
) -> Result<Box<dyn Member>, LogError> {
    let mut all = Vec::new();
    for (topic, config) in log.topics()? {
        if topics.contains(&topic.as_str()) {
            let partition = |partition| TopicPartition { topic: topic.clone(), partition };
            all.extend((0..config.partitions).map(partition));
        }
    }
    Ok(Box::new(Alone { log, group: group.into(), share: Some(all) }))
}

impl Member for Alone {
    fn poll(&mut self, timeout: Duration) -> Result<Option<RebalanceEvent>, LogError> {
        let gained = self.share.take().map(RebalanceEvent::Assigned);
        if gained.is_none() {
            std::thread::sleep(timeout);
        }
        Ok(gained)
    }

    fn commit(&mut self, offsets: &[(TopicPartition, u64)]) -> Result<(), LogError> {
        offsets.iter().try_for_each(|(at, offset)| self.log.commit_offset(&self.group, at, *offset))
    }

    fn rebalances(&self) -> u64 {
        self.share.is_none().into()
    }
}
