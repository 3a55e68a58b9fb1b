//! Nodes, reservations and limits of a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::target::TargetError;
use tidegate_slurm::sacctmgr::{AssociationRecord, GrpTres, QosRecord, Rows};
use tidegate_slurm::scontrol::ReservationRecord;
use tidegate_slurm::sinfo::NodeRecord;
use tidegate_slurm::{HostList, NodeState};

use super::ask::{Slurm, unanswered, unknown};

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlurmNode {
    pub gpus: u32,
    pub model: String,
    pub partitions: Vec<String>,
    pub features: Vec<String>,
    pub state: NodeState,
    pub reason: String,
    pub reason_ms: Option<i64>,
    pub comment: String,
    pub extra: String,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlurmReservation {
    pub nodes: BTreeSet<String>,
    pub accounts: BTreeSet<String>,
    pub users: BTreeSet<String>,
    pub flags: BTreeSet<String>,
    pub start_s: i64,
    pub end_s: i64,
    pub partition: Option<String>,
}

/// GPU limits (`GrpTRES=gres/gpu=…`) by account and by QOS; `None`: it has no such limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub accounts: BTreeMap<String, Option<u32>>,
    pub qos: BTreeMap<String, QosLimit>,
}

/// Limit and description of a QOS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QosLimit {
    pub gpus: Option<u32>,
    /// In lower case, as sacctmgr stores it.
    pub description: String,
}

/// Nodes by name.
pub(super) fn nodes(slurm: &Slurm) -> Result<BTreeMap<String, SlurmNode>, TargetError> {
    slurm.client.nodes().map_err(unanswered)?.into_iter().map(node).collect()
}

fn node(record: NodeRecord) -> Result<(String, SlurmNode), TargetError> {
    let gpus = u32::try_from(record.gpus.count)
        .map_err(|_| unknown(format!("node {} has {} GPUs", record.name, record.gpus.count)))?;
    let node = SlurmNode {
        gpus,
        model: record.gpus.model.unwrap_or_else(|| "gpu".to_owned()),
        partitions: record.partitions,
        features: record.features,
        state: record.state,
        reason: record.reason.unwrap_or_default(),
        reason_ms: record.reason_ms,
        comment: record.comment.unwrap_or_default(),
        extra: record.extra.unwrap_or_default(),
    };
    Ok((record.name, node))
}

/// Reservations by name.
pub(super) fn reservations(slurm: &Slurm) -> Result<BTreeMap<String, SlurmReservation>, TargetError> {
    slurm.client.reservations().map_err(unanswered)?.into_iter().map(reservation).collect()
}

fn reservation(record: ReservationRecord) -> Result<(String, SlurmReservation), TargetError> {
    let name = record.name.clone();
    let unreadable = |what: &str| unknown(format!("scontrol shows reservation {name:?} without {what}"));
    let nodes = record.nodes.map_err(|_| unreadable("nodes that can be read"))?;
    let nodes = nodes.iter().flat_map(HostList::iter).filter(|name| !name.is_empty());
    let reservation = SlurmReservation {
        nodes: nodes.map(str::to_owned).collect(),
        accounts: record.accounts.into_iter().collect(),
        users: record.users.into_iter().collect(),
        flags: record.flags.into_iter().collect(),
        start_s: record.start_s.ok_or_else(|| unreadable("StartTime"))?,
        end_s: record.end_s.ok_or_else(|| unreadable("EndTime"))?,
        partition: record.partition,
    };
    Ok((record.name.ok_or_else(|| unreadable("a name"))?, reservation))
}

/// Limits of accounts (of their own associations, not of their users') and of QOS.
pub(super) fn limits(slurm: &Slurm, cluster: &str) -> Result<Limits, TargetError> {
    let associations = slurm.client.associations(cluster).map_err(unanswered)?;
    from_rows(associations, slurm.client.qos().map_err(unanswered)?)
}

fn from_rows(associations: Rows<AssociationRecord>, qos: Rows<QosRecord>) -> Result<Limits, TargetError> {
    let gpus =
        |limit: &GrpTres| limit.gpus().map_err(|error| unknown(format!("sacctmgr shows a limit: {error}")));
    let mut limits = Limits::default();
    for record in associations {
        let record = record.map_err(unanswered)?;
        if record.is_account() {
            limits.accounts.insert(record.account, gpus(&record.limit)?);
        }
    }
    for record in qos {
        let record = record.map_err(unanswered)?;
        let no_description = || unknown(format!("sacctmgr shows QOS {} without description", record.name));
        let description = record.description.clone().ok_or_else(no_description)?;
        limits.qos.insert(record.name.clone(), QosLimit { gpus: gpus(&record.limit)?, description });
    }
    if limits.accounts.is_empty() {
        return Err(unknown("sacctmgr shows no account at all"));
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use tidegate_slurm::sacctmgr::{parse_associations, parse_qos};
    use tidegate_slurm::scontrol::parse_reservations;

    use super::*;

    fn read_reservations(answer: &str) -> Result<BTreeMap<String, SlurmReservation>, TargetError> {
        parse_reservations(answer).map_err(unanswered)?.into_iter().map(reservation).collect()
    }

    fn read_limits(accounts: &str, qos: &str) -> Result<Limits, TargetError> {
        from_rows(parse_associations(accounts.lines()), parse_qos(qos))
    }

    #[test]
    fn reservations_and_limits_are_read_as_22_05_prints_them() {
        let answer = "ReservationName=owner StartTime=1795365965 EndTime=1826901965 Duration=365-00:00:00 Nodes=n[6-8] \
            NodeCnt=3 CoreCnt=192 Features=(null) PartitionName=(null) Flags=SPEC_NODES,MAGNETIC TRES=cpu=192 Users=(null) \
            Groups=(null) Accounts=serving Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)";
        let read = read_reservations(answer).unwrap();
        assert_eq!(read["owner"].nodes, ["n6", "n7", "n8"].map(String::from).into());
        assert_eq!((read["owner"].start_s, read["owner"].end_s), (1_795_365_965, 1_826_901_965));
        assert!(read["owner"].users.is_empty() && read["owner"].flags.contains("MAGNETIC"));
        assert_eq!(read_reservations("No reservations in the system\n").unwrap(), BTreeMap::new());
        assert!(read_reservations("").is_err(), "no answer is not an answer of none");
        let limits =
            read_limits("root|||\nai|||cpu=8,gres/gpu=24\nai|bob||gres/gpu=2\n", "loan|gres/gpu=0|of a|b\n")
                .unwrap();
        assert_eq!(limits.accounts["ai"], Some(24));
        let loan = QosLimit { gpus: Some(0), description: "of a|b".to_owned() };
        assert_eq!((limits.accounts["root"], &limits.qos["loan"]), (None, &loan));
        assert!(read_limits("", "loan||\n").is_err());
    }
}
