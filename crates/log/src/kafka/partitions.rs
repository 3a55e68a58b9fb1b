//! Requests about partitions and consumer groups: where a partition ends, offsets by time,
//! trimming.

use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use rdkafka::admin::AdminOptions;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::groups::GroupList;
use rdkafka::{Offset, TopicPartitionList};

use super::client::{Client, Clients, Cluster, LEADER, refresh_leaders};
use super::deadline::Deadline;
use super::record::offset;
use crate::{Extent, LogError};

impl Cluster {
    /// From the first record to the end of what is committed.
    pub fn extent(&self, topic: &str, partition: u32, deadline: Deadline) -> Result<Extent, LogError> {
        let (start, end) = self.watermarks(|clients| &clients.committed, topic, partition, deadline)?;
        Ok(Extent { start, end: end.max(start) })
    }

    /// The end of all that was ever written, finished or not.
    pub fn high_watermark(&self, topic: &str, partition: u32, deadline: Deadline) -> Result<u64, LogError> {
        Ok(self.watermarks(|clients| &clients.all, topic, partition, deadline)?.1)
    }

    fn watermarks(
        &self,
        of: fn(&Clients) -> &Client,
        topic: &str,
        partition: u32,
        deadline: Deadline,
    ) -> Result<(u64, u64), LogError> {
        let doing = format!("asking for the ends of {topic}/{partition}");
        let (low, high) = self.retry_for_topic(topic, &doing, deadline, |left| {
            let clients = self.clients();
            let client = of(&clients);
            let asked = client.fetch_watermarks(topic, partition as i32, left.min(LEADER));
            asked.inspect_err(|_| refresh_leaders(client, topic, left))
        })?;
        Ok((offset(low), offset(high)))
    }

    /// Waits until everything that the partition holds below `end` is finished, committed or given
    /// up.
    pub fn wait_until_settled(
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
                return Err(self.timed_out(
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
        self.retry_for_topic(topic, &format!("looking for a time in {topic}/{partition}"), deadline, |left| {
            let mut wanted = TopicPartitionList::new();
            wanted.add_partition_offset(topic, partition as i32, Offset::Offset(time_ms))?;
            let client = &self.clients().committed;
            let found = client.offsets_for_times(wanted, left.min(LEADER));
            let found = found.inspect_err(|_| refresh_leaders(client, topic, left))?;
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
        self.retry_for_topic(topic, &format!("trimming {topic}/{partition}"), deadline, |left| {
            let mut wanted = TopicPartitionList::new();
            wanted.add_partition_offset(topic, partition as i32, Offset::Offset(before as i64))?;
            let options = AdminOptions::new().request_timeout(Some(left)).operation_timeout(Some(left));
            let done = block_on(self.clients().admin.delete_records(&wanted, &options))?;
            done.elements().iter().try_for_each(|element| element.error())
        })
    }

    /// Names of all consumer groups of the cluster that belong to this log, as Kafka spells them.
    pub fn groups(&self, deadline: Deadline) -> Result<Vec<String>, LogError> {
        let prefix = self.name("");
        self.retry("listing consumer groups", deadline, |left| {
            let groups = self.clients().committed.fetch_group_list(None, left)?;
            let names = groups.groups().iter().map(|group| group.name().to_owned());
            Ok(names.filter(|name| name.starts_with(&prefix)).collect())
        })
    }

    /// Deletes a consumer group; Kafka refuses while it has members.
    pub fn delete_group(&self, group: &str, deadline: Deadline) -> Result<(), LogError> {
        self.retry(&format!("forgetting consumer group {group}"), deadline, |left| {
            let options = AdminOptions::new().request_timeout(Some(left)).operation_timeout(Some(left));
            match block_on(self.clients().admin.delete_groups(&[group], &options))?.pop() {
                Some(Err((_, code))) => Err(KafkaError::AdminOp(code)),
                _ => Ok(()),
            }
        })
    }

    /// A group as Kafka describes it.
    pub fn group_list(&self, group: &str, timeout: Duration) -> KafkaResult<GroupList> {
        self.clients().committed.fetch_group_list(Some(group), timeout)
    }
}
