//! Nodes as `sinfo --json` prints them, with features, comments and the time of a drain as fields
//! of their own.

use serde::Deserialize;

use crate::client::{CommandError, SlurmClient};
use crate::json::{Number, Texts, check_errors};
use crate::node_state::NodeState;
use crate::spelling::present;
use crate::tres::GresGpus;

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    errors: Vec<serde_json::Value>,
    nodes: Option<Vec<RawNode>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawNode {
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

/// A node of `sinfo --json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Name.
    pub name: String,
    /// State.
    pub state: NodeState,
    /// Configured GPUs.
    pub gpus: GresGpus,
    /// Partitions.
    pub partitions: Vec<String>,
    /// Features.
    pub features: Vec<String>,
    /// Reason of a drain or failure, without user and time.
    pub reason: Option<String>,
    /// When the reason was set, ms since 1970.
    pub reason_ms: Option<i64>,
    /// `Comment`.
    pub comment: Option<String>,
    /// `Extra`.
    pub extra: Option<String>,
}

impl SlurmClient {
    /// All nodes that `sinfo` shows.
    ///
    /// # Errors
    /// sinfo failed, its answer cannot be read, or it names no node: there is no Slurm without one.
    pub fn nodes(&self) -> Result<Vec<NodeRecord>, CommandError> {
        parse_nodes(&self.text("sinfo", &["--json"])?)
    }
}

/// Parses the answer of `sinfo --json`.
///
/// # Errors
/// As for [`SlurmClient::nodes`].
pub fn parse_nodes(answer: &str) -> Result<Vec<NodeRecord>, CommandError> {
    let unusable = |what: String| CommandError::unusable("sinfo", what);
    let answer: Answer = serde_json::from_str(answer)
        .map_err(|error| unusable(format!("it is not the JSON expected: {error}")))?;
    check_errors("sinfo", &answer.errors)?;
    let nodes = answer.nodes.filter(|nodes| !nodes.is_empty());
    let nodes = nodes.ok_or_else(|| unusable("it names no node".to_owned()))?;
    Ok(nodes.into_iter().map(record).collect())
}

fn record(raw: RawNode) -> NodeRecord {
    let words = |texts: Texts| -> Vec<String> {
        let words = texts.0.iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    };
    NodeRecord {
        name: raw.name,
        state: NodeState::from_names(raw.state.0.iter().chain(&raw.state_flags.0)),
        gpus: GresGpus::parse(&present(raw.gres).unwrap_or_default()),
        partitions: words(raw.partitions),
        features: words(raw.features),
        reason: present(raw.reason),
        reason_ms: raw.reason_changed_at.time_ms(),
        comment: present(raw.comment),
        extra: present(raw.extra),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_state::Availability;

    #[test]
    fn a_cluster_without_nodes_is_no_cluster() {
        for answer in [
            "{}",
            r#"{"errors": [], "nodes": []}"#,
            r#"{"errors": [{"error": "x"}], "nodes": [{"name": "n1"}]}"#,
        ] {
            assert!(matches!(parse_nodes(answer), Err(CommandError::Unusable { .. })), "{answer}");
        }
        let answer = r#"{"errors": [], "nodes": [{"name": "n1", "state": "idle", "state_flags": ["DRAIN"],
            "gres": "gpu:h200:8(S:0)", "partitions": ["train"], "features": "", "reason": "fan", "reason_changed_at": 9}]}"#;
        let node = parse_nodes(answer).unwrap().remove(0);
        assert_eq!(
            (node.name.as_str(), node.gpus.count, node.gpus.model.as_deref()),
            ("n1", 8, Some("h200"))
        );
        assert_eq!(node.state, NodeState::parse("IDLE+DRAIN"));
        assert_eq!((node.state.availability(), node.state.is_draining()), (Availability::Up, true));
    }
}
