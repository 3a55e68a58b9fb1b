//! Health of nodes and slowdown by slow ones, as the signals publish them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_autopilot::pairs;
use tidegate_autopilot::state::{ClusterState, Health};
use tidegate_events::v1::{NodeHealthState, NodeSignal, SignalState, StragglerSignal};
use tidegate_events::{Event, Millis};

/// Kinds of evidence as policies count them, by a part of the detector rule's name.
const FAMILIES: [(&str, &str); 12] = [
    ("xid", "xid"),
    ("ecc", "ecc"),
    ("remap", "ecc"),
    ("retired", "ecc"),
    ("link", "link"),
    ("pcie", "link"),
    ("replay", "link"),
    ("thermal", "thermal"),
    ("throttl", "thermal"),
    ("slowed", "thermal"),
    ("clock", "thermal"),
    ("power", "thermal"),
];

/// What signals say of nodes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct NodeSignals {
    nodes: BTreeMap<String, Health>,
    slow: BTreeMap<String, SlowEpisodes>,
}

/// Slowdown of a confirmed slow node, by job and episode.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct SlowEpisodes(#[serde(with = "pairs")] BTreeMap<(String, u64), u32>);

impl NodeSignals {
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::NodeHealth(signal) => self.health(signal, event.event_time_ms()),
            Event::Straggler(signal) => self.straggler(signal),
            _ => {}
        }
    }

    fn health(&mut self, signal: &NodeSignal, at_ms: i64) {
        let is_good = signal.state() == NodeHealthState::Healthy;
        let families: BTreeSet<&str> = signal
            .evidence
            .iter()
            .filter_map(|line| {
                let rule = line.split(' ').next()?;
                FAMILIES.iter().find(|(part, _)| rule.contains(part)).map(|(_, family)| *family)
            })
            .collect();
        let health = Health {
            bad_ppm: Some(signal.bad_ppm),
            families: families.into_iter().map(str::to_owned).collect(),
            fatal: signal.state() == NodeHealthState::Failed,
            slowdown_ppm: None,
            checked_good_us: is_good.then_some(Millis(at_ms).to_micros().0),
        };
        self.nodes.insert(signal.node.clone(), health);
    }

    fn straggler(&mut self, signal: &StragglerSignal) {
        let Some(node) = &signal.node else { return };
        let episode = (signal.job_id.clone(), signal.episode);
        let is_the_nodes = matches!(&*signal.blame, "NODE" | "RANK");
        let slow = &mut self.slow.entry(node.clone()).or_default().0;
        match signal.state() {
            SignalState::Confirmed if is_the_nodes => {
                slow.insert(episode, u32::try_from(signal.slowdown_ppm.max(0)).unwrap_or(u32::MAX));
            }
            _ => {
                slow.remove(&episode);
            }
        }
    }

    pub fn enrich(&self, state: &mut ClusterState) {
        for (name, node) in &mut state.nodes {
            if let Some(health) = self.nodes.get(name) {
                node.health = health.clone();
            }
            let slowest = self.slow.get(name).into_iter().flat_map(|slow| slow.0.values()).max();
            if let Some(slowdown) = slowest {
                node.health.slowdown_ppm = Some(*slowdown);
                node.health.families.push("straggler".to_owned());
                node.health.families.sort_unstable();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_autopilot::state::{Node, NodeState};
    use tidegate_events::v1;

    use super::*;

    fn node() -> Node {
        Node {
            pool: "train".into(),
            rack: None,
            gpu_model: "h100".into(),
            gpus: 8,
            state: NodeState::Up,
            health: Health::default(),
            drain: None,
            do_not_disrupt: false,
        }
    }

    #[test]
    fn what_signals_say_of_a_node_is_in_its_health() {
        let mut signals = NodeSignals::default();
        let envelope =
            || Some(v1::Envelope { cluster: "c".into(), event_time_ms: 5_000, ..Default::default() });
        signals.observe(&Event::NodeHealth(NodeSignal {
            envelope: envelope(),
            state: NodeHealthState::Bad.into(),
            node: "n1".into(),
            bad_ppm: 970_000,
            evidence: vec![
                "xid value=63.000 weight=3.00".into(),
                "clock_below_peers value=0.8 weight=1.00".into(),
            ],
            ..NodeSignal::default()
        }));
        let slow = |state: SignalState, blame: &str| {
            Event::Straggler(StragglerSignal {
                envelope: envelope(),
                state: state.into(),
                job_id: "7".into(),
                episode: 1,
                blame: blame.into(),
                node: Some("n1".into()),
                slowdown_ppm: 210_000,
                ..StragglerSignal::default()
            })
        };
        signals.observe(&slow(SignalState::Confirmed, "RANK"));
        let mut state = ClusterState::default();
        state.nodes.insert("n1".into(), node());
        state.nodes.insert("n2".into(), node());
        signals.enrich(&mut state);
        let health = &state.nodes["n1"].health;
        assert_eq!(health.bad_ppm, Some(970_000));
        assert_eq!(health.families, ["straggler", "thermal", "xid"]);
        assert!(!health.fatal && health.slowdown_ppm == Some(210_000) && health.checked_good_us.is_none());
        assert_eq!(state.nodes["n2"].health, Health::default());
        // The straggler is over, and the node is healthy again.
        signals.observe(&slow(SignalState::Cleared, "RANK"));
        signals.observe(&Event::NodeHealth(NodeSignal {
            envelope: envelope(),
            state: NodeHealthState::Healthy.into(),
            node: "n1".into(),
            ..NodeSignal::default()
        }));
        let mut state = ClusterState::default();
        state.nodes.insert("n1".into(), node());
        signals.enrich(&mut state);
        let health = &state.nodes["n1"].health;
        assert!(health.families.is_empty() && health.slowdown_ppm.is_none());
        assert_eq!((health.bad_ppm, health.checked_good_us), (Some(0), Some(5_000_000)));
    }
}
