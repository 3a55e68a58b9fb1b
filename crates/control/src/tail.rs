//! What a log tells of one cluster on some topics, from where it was read to.

use std::sync::Arc;

use tidegate_events::Event;
use tidegate_log::{EventLog, LogError, TopicPartition};

/// Payload bytes read at a time.
const READ_BYTES: usize = 4 << 20;

/// A reader of a cluster's events.
pub(crate) struct Tail {
    log: Arc<dyn EventLog>,
    cluster: String,
    cursors: Vec<(TopicPartition, u64)>,
}

impl Tail {
    /// Reads `topics` from the first event that is not older than `since_ms`; `None`: from the
    /// beginning. One that the log does not have tells nothing.
    pub(crate) fn new(
        log: Arc<dyn EventLog>,
        cluster: &str,
        topics: &[&str],
        since_ms: Option<i64>,
    ) -> Result<Self, LogError> {
        let mut cursors = Vec::new();
        for (topic, config) in log.topics()? {
            if !topics.contains(&topic.as_str()) {
                continue;
            }
            for partition in 0..config.partitions {
                let at = TopicPartition { topic: topic.clone(), partition };
                let next = match since_ms {
                    Some(since_ms) => log.offset_for_time(&at, since_ms)?,
                    None => log.extent(&at)?.start,
                };
                cursors.push((at, next));
            }
        }
        Ok(Self { log, cluster: cluster.to_owned(), cursors })
    }

    /// Hands on what came since the last call. After an error the rest comes with the next one.
    pub(crate) fn read(&mut self, mut take: impl FnMut(&Event)) -> Result<(), LogError> {
        for (at, next) in &mut self.cursors {
            let extent = self.log.extent(at)?;
            // What retention dropped meanwhile cannot be read any more.
            *next = (*next).max(extent.start);
            while *next < extent.end {
                let records = self.log.read(at, *next, READ_BYTES)?;
                let Some(last) = records.last() else { break };
                *next = last.offset + 1;
                for stored in &records {
                    let Ok(event) = Event::decode(stored.record.schema, &stored.record.payload) else {
                        continue;
                    };
                    if event.envelope().is_some_and(|envelope| envelope.cluster == self.cluster) {
                        take(&event);
                    }
                }
            }
        }
        Ok(())
    }
}
