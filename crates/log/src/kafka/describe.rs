//! Members of a consumer group, as Kafka reports them.

use super::client::Cluster;
use super::deadline::Deadline;
use crate::{LogError, TopicPartition};

/// A process in a consumer group, and its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// `tidegate-HOST-PID` for a member of ours, unless its properties name a `client.id`.
    pub name: String,
    /// The partitions that the group assigned to it.
    pub partitions: Vec<TopicPartition>,
}

/// Members of a group, by name; empty for a group that does not exist.
pub(super) fn members(
    cluster: &Cluster,
    group: &str,
    deadline: Deadline,
) -> Result<Vec<GroupMember>, LogError> {
    let prefix = cluster.name("");
    cluster.retry(&format!("asking who is in group {group}"), deadline, |left| {
        let groups = cluster.group_list(group, left)?;
        let members = groups.groups().iter().filter(|found| found.name() == group).flat_map(|g| g.members());
        let mut members: Vec<GroupMember> = members
            .map(|member| GroupMember {
                name: member.client_id().to_owned(),
                partitions: assignment(member.assignment().unwrap_or_default(), &prefix).unwrap_or_default(),
            })
            .collect();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(members)
    })
}

/// Reads `ConsumerProtocolAssignment` (Kafka's protocol, big-endian): a version, then topics with
/// their partitions. `None` where it ends too early.
fn assignment(bytes: &[u8], prefix: &str) -> Option<Vec<TopicPartition>> {
    let mut rest = bytes.get(2..)?;
    let mut found = Vec::new();
    for _ in 0..int(&mut rest)? {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let (name, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let name = std::str::from_utf8(name).ok()?;
        rest = after;
        for _ in 0..int(&mut rest)? {
            let topic = name.strip_prefix(prefix).unwrap_or(name).to_owned();
            found.push(TopicPartition { topic, partition: int(&mut rest)? });
        }
    }
    Some(found)
}

fn int(rest: &mut &[u8]) -> Option<u32> {
    let (int, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    Some(u32::from_be_bytes(*int))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_topics_with_partitions() {
        let mut bytes = vec![0, 1, 0, 0, 0, 1, 0, 6];
        bytes.extend_from_slice(b"t.jobs");
        bytes.extend_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 255, 255, 255, 255]);
        let at = |partition| TopicPartition { topic: "jobs".into(), partition };
        assert_eq!(assignment(&bytes, "t."), Some(vec![at(0), at(7)]));
        assert_eq!(assignment(&bytes[..bytes.len() - 6], "t."), None);
        assert_eq!(assignment(&[], "t."), None);
    }
}
