//! Offsets of consumer groups, kept by Kafka under `PREFIX.GROUP`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use super::client::{Client, Cluster};
use super::client_errors::refused;
use super::deadline::Deadline;
use super::record::offset;
use crate::LogError;
use crate::check::lock;

/// Groups whose clients are kept.
const MAX_CLIENTS: usize = 16;

/// One client a group: Kafka's protocol ties a client to a group.
#[derive(Default)]
pub(super) struct Groups(Mutex<HashMap<String, Arc<Client>>>);

impl Groups {
    /// `group` as Kafka spells it.
    fn client(&self, cluster: &Cluster, group: &str) -> Result<Arc<Client>, LogError> {
        if let Some(client) = lock(&self.0).get(group) {
            return Ok(client.clone());
        }
        let client = Arc::new(cluster.group(group)?);
        let mut clients = lock(&self.0);
        let surplus = clients.keys().next().filter(|_| clients.len() >= MAX_CLIENTS).cloned();
        let surplus = surplus.and_then(|group| clients.remove(&group));
        clients.insert(group.into(), client.clone());
        drop(clients);
        drop(surplus);
        Ok(client)
    }

    /// Drops the client of a group after a failure, or once the group was deleted, so that the next
    /// call opens a new one: see [`STALLED`](super::client::STALLED).
    pub fn forget(&self, group: &str) {
        let client = lock(&self.0).remove(group);
        drop(client);
    }

    pub fn commit(
        &self,
        cluster: &Cluster,
        group: &str,
        (topic, partition): (&str, u32),
        at: u64,
        deadline: Deadline,
    ) -> Result<(), LogError> {
        let client = self.client(cluster, group)?;
        let (doing, mut members) = (format!("committing an offset of group {group}"), None);
        cluster
            .retry_for_topic(topic, &doing, deadline, |_| {
                let mut offsets = TopicPartitionList::new();
                offsets.add_partition_offset(topic, partition as i32, Offset::Offset(at as i64))?;
                match client.commit(&offsets, CommitMode::Sync) {
                    Err(error) if error.rdkafka_error_code() == Some(Code::UnknownMemberId) => {
                        members = Some(error);
                        Ok(())
                    }
                    done => done,
                }
            })
            .inspect_err(|_| self.forget(group))?;
        match members {
            Some(error) => {
                let mend = "it has members, and Kafka takes its progress from them alone: stop them, or commit as a member";
                Err(refused(&cluster.options, &doing, &error, mend))
            }
            None => Ok(()),
        }
    }

    pub fn committed(
        &self,
        cluster: &Cluster,
        group: &str,
        (topic, partition): (&str, u32),
        deadline: Deadline,
    ) -> Result<Option<u64>, LogError> {
        let client = self.client(cluster, group)?;
        cluster
            .retry_for_topic(topic, &format!("asking for an offset of group {group}"), deadline, |left| {
                let mut asked = TopicPartitionList::new();
                asked.add_partition(topic, partition as i32);
                let committed = client.committed_offsets(asked, left)?;
                match committed.elements().first().map(|found| (found.error(), found.offset())) {
                    Some((Err(error), _)) => Err(error),
                    Some((Ok(()), Offset::Offset(at))) => Ok(Some(offset(at))),
                    _ => Ok(None),
                }
            })
            .inspect_err(|_| self.forget(group))
    }
}
