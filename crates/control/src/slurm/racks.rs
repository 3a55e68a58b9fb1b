//! Racks as Slurm knows them: leaf switches or blocks of its topology.
//!
//! What a person imported (`tidegate topology import`) is the log's, and goes before it.

use std::collections::BTreeMap;

use tidegate_autopilot::state::ClusterState;
use tidegate_autopilot::target::TargetError;
use tidegate_events::Micros;
use tidegate_slurm::CommandError;
use tidegate_slurm::scontrol::Neighbours;

use super::ask::{Slurm, now_us, unanswered};

/// Topology changes when somebody moves cables.
const READ_EVERY_S: i64 = 600;

/// Rack of each node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Racks {
    of_node: BTreeMap<String, String>,
    read_us: i64,
}

impl Racks {
    /// Reads them. A topology in a form that this version cannot read is lacking: each node counts
    /// as a rack of its own, as without one.
    ///
    /// # Errors
    /// Slurm does not answer.
    pub(super) fn read(slurm: &Slurm, lacking: &mut Vec<String>) -> Result<Self, TargetError> {
        let of_node = match slurm.client.topology() {
            Ok(found) => by_node(found),
            Err(error @ (CommandError::Unusable { .. } | CommandError::TooLong { .. })) => {
                lacking.push(format!("racks, without an imported topology: {error}"));
                BTreeMap::new()
            }
            Err(error) => return Err(unanswered(error)),
        };
        Ok(Self { of_node, read_us: now_us() })
    }

    /// Reads them again from time to time. Without a usable answer the known ones stay.
    pub(super) fn refresh(&mut self, slurm: &Slurm, at_us: i64) {
        if at_us - self.read_us < Micros::from_secs(READ_EVERY_S).0 {
            return;
        }
        self.read_us = at_us;
        // Where there is none, Slurm says nothing at all; so may a slurmctld that has just begun.
        if let Ok(found) = slurm.client.topology()
            && !found.is_empty()
        {
            self.of_node = by_node(found);
        }
    }

    pub(super) fn enrich(&self, state: &mut ClusterState) {
        for (name, node) in &mut state.nodes {
            node.rack = self.of_node.get(name).cloned();
        }
    }
}

/// A node that stands in several is of the first.
fn by_node(found: Vec<Neighbours>) -> BTreeMap<String, String> {
    let mut of_node = BTreeMap::new();
    for Neighbours { name, nodes } in found {
        for node in nodes.iter().filter(|node| !node.is_empty()) {
            of_node.entry(node.to_owned()).or_insert_with(|| name.clone());
        }
    }
    of_node
}

#[cfg(test)]
mod tests {
    use tidegate_slurm::scontrol::parse_topology;

    use super::*;

    #[test]
    fn a_node_is_in_the_first_rack_that_lists_it() {
        let answer = "BlockName=b1 BlockIndex=0 Nodes=n[1-2]\nBlockName=b2 BlockIndex=1 Nodes=n[2-3]\n";
        let found = by_node(parse_topology(answer).unwrap());
        let expected = [("n1", "b1"), ("n2", "b1"), ("n3", "b2")];
        assert_eq!(found, expected.map(|(node, rack)| (node.to_owned(), rack.to_owned())).into());
    }
}
