//! Nodes (`sinfo --json`), reservations (`scontrol show reservation`) and limits (`sacctmgr show`),
//! as they stand.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tidegate_autopilot::target::TargetError;
use tidegate_collect::slurm::read::{Number, Texts, fields, hosts, is_null, lines, node_gpus, tres_gpus};

use super::ask::{Slurm, unknown};

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    errors: Vec<serde_json::Value>,
    nodes: Option<Vec<Told>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Told {
    name: String,
    state: Texts,
    state_flags: Texts,
    gres: Option<String>,
    partitions: Texts,
    features: Texts,
    reason: Option<String>,
    reason_changed_at: Number,
    comment: Option<String>,
    extra: Option<String>,
}

/// A node as Slurm tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlurmNode {
    pub gpus: u32,
    pub model: String,
    pub partitions: Vec<String>,
    pub features: Vec<String>,
    /// Upper case, e.g. `IDLE`, `DRAIN`, `NOT_RESPONDING`.
    pub states: BTreeSet<String>,
    pub reason: String,
    pub reason_ms: Option<i64>,
    pub comment: String,
    pub extra: String,
}

/// A reservation as Slurm tells it.
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

/// `GrpTRES=gres/gpu=…` by account and by QOS; `None` for one that has no such limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub accounts: BTreeMap<String, Option<u32>>,
    pub qos: BTreeMap<String, QosLimit>,
}

/// A QOS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QosLimit {
    pub gpus: Option<u32>,
    /// In lower case, as sacctmgr writes it.
    pub description: String,
}

/// Nodes by name.
pub(super) fn nodes(slurm: &Slurm) -> Result<BTreeMap<String, SlurmNode>, TargetError> {
    read_nodes(&slurm.ask("sinfo", &["--json"])?)
}

fn read_nodes(answer: &str) -> Result<BTreeMap<String, SlurmNode>, TargetError> {
    let answer: Answer = serde_json::from_str(answer)
        .map_err(|error| unknown(format!("the answer of sinfo is not the JSON expected: {error}")))?;
    if let Some(error) = answer.errors.first() {
        return Err(unknown(format!("the answer of sinfo holds an error: {error}")));
    }
    // A Slurm without nodes is none.
    let told = answer.nodes.filter(|nodes| !nodes.is_empty());
    let told = told.ok_or_else(|| unknown("the answer of sinfo names no node"))?;
    let node = |told: Told| {
        let text = |value: Option<String>| value.filter(|text| !is_null(text)).unwrap_or_default();
        let gpus = node_gpus(&text(told.gres));
        let count = u32::try_from(gpus.count)
            .map_err(|_| unknown(format!("node {} has {} GPUs", told.name, gpus.count)))?;
        let states = told.state.0.iter().chain(&told.state_flags.0).map(|state| state.to_uppercase());
        let words = |texts: Texts| -> Vec<String> {
            let words = texts.0.iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty());
            words.map(str::to_owned).collect()
        };
        let node = SlurmNode {
            gpus: count,
            model: gpus.model.unwrap_or_else(|| "gpu".to_owned()),
            partitions: words(told.partitions),
            features: words(told.features),
            states: states.collect(),
            reason: text(told.reason),
            reason_ms: told.reason_changed_at.time_ms(),
            comment: text(told.comment),
            extra: text(told.extra),
        };
        Ok((told.name, node))
    };
    told.into_iter().map(node).collect()
}

/// Reservations by name.
pub(super) fn reservations(slurm: &Slurm) -> Result<BTreeMap<String, SlurmReservation>, TargetError> {
    read_reservations(&slurm.ask("scontrol", &["--oneliner", "show", "reservation"])?)
}

fn read_reservations(answer: &str) -> Result<BTreeMap<String, SlurmReservation>, TargetError> {
    let told = lines(answer, "scontrol", "ReservationName").map_err(|error| unknown(error.to_string()))?;
    let each = |line: &str| {
        let fields = fields(line);
        let text = |name: &str| fields.get(name).copied().filter(|text| !is_null(text));
        let unreadable =
            |what: &str| unknown(format!("scontrol tells a reservation without {what}: {line:?}"));
        let set = |name: &str| -> BTreeSet<String> {
            text(name).into_iter().flat_map(|list| list.split(',')).map(str::to_owned).collect()
        };
        let seconds = |name: &str| fields.get(name).and_then(|text| text.parse().ok());
        let mut names = String::new();
        if let Some(list) = text("Nodes") {
            hosts(list, &mut names).map_err(|_| unreadable("nodes that can be read"))?;
        }
        let reservation = SlurmReservation {
            nodes: names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            accounts: set("Accounts"),
            users: set("Users"),
            flags: set("Flags"),
            start_s: seconds("StartTime").ok_or_else(|| unreadable("StartTime"))?,
            end_s: seconds("EndTime").ok_or_else(|| unreadable("EndTime"))?,
            partition: text("PartitionName").map(str::to_owned),
        };
        Ok((text("ReservationName").ok_or_else(|| unreadable("a name"))?.to_owned(), reservation))
    };
    told.into_iter().map(each).collect()
}

/// Limits of accounts (those of their own associations, not of their users) and QOS.
pub(super) fn limits(slurm: &Slurm, cluster: &str) -> Result<Limits, TargetError> {
    let cluster = format!("cluster={cluster}");
    let columns = "format=account,user,partition,grptres";
    let accounts = slurm.ask("sacctmgr", &["-nP", "show", "assoc", &cluster, columns])?;
    let qos = slurm.ask("sacctmgr", &["-nP", "show", "qos", "format=name,grptres,description"])?;
    read_limits(&accounts, &qos)
}

fn read_limits(accounts: &str, qos: &str) -> Result<Limits, TargetError> {
    let gpus = |tres: &str| -> Result<Option<u32>, TargetError> {
        if !tres.contains("gres/gpu") {
            return Ok(None);
        }
        let read = tres_gpus(tres).ok().and_then(|gpus| u32::try_from(gpus.gpus).ok());
        read.map(Some).ok_or_else(|| unknown(format!("sacctmgr tells a limit that cannot be read: {tres:?}")))
    };
    let unreadable = |line: &str| unknown(format!("sacctmgr tells what cannot be read: {line:?}"));
    let mut limits = Limits::default();
    for line in accounts.lines().filter(|line| !line.is_empty()) {
        let [account, user, partition, tres] = line.split('|').collect::<Vec<_>>()[..] else {
            return Err(unreadable(line));
        };
        if user.is_empty() && partition.is_empty() {
            limits.accounts.insert(account.to_owned(), gpus(tres)?);
        }
    }
    for line in qos.lines().filter(|line| !line.is_empty()) {
        let [name, tres, description] = line.splitn(3, '|').collect::<Vec<_>>()[..] else {
            return Err(unreadable(line));
        };
        let limit = QosLimit { gpus: gpus(tres)?, description: description.to_owned() };
        limits.qos.insert(name.to_owned(), limit);
    }
    if limits.accounts.is_empty() {
        return Err(unknown("sacctmgr tells no account at all"));
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_cluster_without_nodes_is_no_cluster() {
        for answer in [
            "{}",
            r#"{"errors": [], "nodes": []}"#,
            r#"{"errors": [{"error": "x"}], "nodes": [{"name": "n1"}]}"#,
        ] {
            assert!(matches!(read_nodes(answer), Err(TargetError::Unknown { .. })), "{answer}");
        }
        let answer = r#"{"errors": [], "nodes": [{"name": "n1", "state": "idle", "state_flags": ["DRAIN"],
            "gres": "gpu:h200:8(S:0)", "partitions": ["train"], "features": "", "reason": "fan", "reason_changed_at": 9}]}"#;
        let nodes = read_nodes(answer).unwrap();
        assert_eq!((nodes["n1"].gpus, nodes["n1"].model.as_str()), (8, "h200"));
        assert_eq!(nodes["n1"].states, ["IDLE", "DRAIN"].map(String::from).into());
    }
}
