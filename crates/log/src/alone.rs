use std::sync::Arc;
use std::time::Duration;

use crate::{EventLog, LogError, Member, Share, TopicPartition};

/// The only member of its group: it gets everything at once, and keeps it.
struct Alone {
    log: Arc<dyn EventLog>,
    group: String,
    share: Option<Vec<TopicPartition>>,
}

/// A reader that holds all partitions of those of the topics that exist, without asking a group for
/// them: where nobody else reads for the same purpose.
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
    fn poll(&mut self, timeout: Duration) -> Result<Option<Share>, LogError> {
        let gained = self.share.take().map(Share::Gained);
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
