//! Peer groups: which ranks are compared with each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::input::JobShape;

/// A job's ranks by node, role and peer class. All numbers are dense, in order of the given ids.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Layout {
    /// Node of each rank.
    pub node_of: Vec<u32>,
    /// Role of each rank.
    pub role_of: Vec<u32>,
    /// Id of each node, as given.
    pub node_ids: Vec<u32>,

    /// Ranks of each node.
    pub nodes: Vec<Vec<u32>>,
    /// Ranks of each role.
    pub roles: Vec<Vec<u32>>,
    /// Peer class of each rank.
    pub class_of: Vec<u32>,
    /// Ranks whose median is a class's reference.
    pub classes: Vec<Vec<u32>>,
    /// The class that is the whole job; its ranks are compared across roles.
    pub everyone: Option<u32>,
    /// Roles that live on one node each, so that their ranks have no peers elsewhere.
    pub lone_roles: Vec<u32>,
    /// Pipeline stages, where roles are stages, or equally many groups of each, and equally large;
    /// else 1.
    pub stages: usize,
    /// Roles per stage; 1 where roles do not fit the stages.
    pub groups: usize,
    /// Micro-batches per step; 1 without a pipeline.
    pub micro_batches: usize,
}

impl Layout {
    /// Lays out `shape`. Ranks beyond `most` are ignored; a rank without a role has role 0.
    pub fn new(shape: &JobShape, peers: usize, most: usize) -> Self {
        let ranks = shape.node.len().min(most);
        let role = |rank: usize| shape.role.get(rank).copied().unwrap_or(0);
        let (node_ids, nodes, node_of) = dense((0..ranks).map(|rank| shape.node[rank]));
        let (_, roles, role_of) = dense((0..ranks).map(role));
        let mut layout = Self {
            node_of,
            role_of,
            node_ids,

            nodes,
            roles,
            class_of: vec![0; ranks],
            classes: Vec::new(),
            everyone: None,
            lone_roles: Vec::new(),
            stages: 1,
            groups: 1,
            micro_batches: 1,
        };
        layout.classify(peers);
        let (roles, stages) = (layout.roles.len(), shape.stages as usize);
        let equal = layout.roles.windows(2).all(|pair| pair[0].len() == pair[1].len());
        if stages <= 1 {
            layout.groups = roles.max(1);
        } else if roles > 0 && roles.is_multiple_of(stages) && equal {
            layout.stages = stages;
            layout.groups = roles / stages;
            layout.micro_batches = (shape.micro_batches as usize).max(1);
        }
        layout
    }

    /// Roles of a stage.
    pub fn roles_of(&self, stage: usize) -> std::ops::Range<usize> {
        stage * self.groups..(stage + 1) * self.groups
    }

    /// Stage of a role; `None` without a pipeline.
    pub fn stage_of(&self, role: u32) -> Option<u32> {
        (self.stages > 1).then(|| role / self.groups as u32)
    }

    /// Rank at place `d * stages + s` of a worker table, replica `d` in stage `s`; ranks in order,
    /// group by group.
    pub fn worker_rank(&self, place: usize) -> usize {
        if self.stages == 1 {
            return place;
        }
        let (stage, replica) = (place % self.stages, place / self.stages);
        // Groups are equally large.
        let each = self.roles[0].len();
        self.roles[stage * self.groups + replica / each][replica % each] as usize
    }

    pub fn ranks(&self) -> usize {
        self.node_of.len()
    }

    /// Gives each rank its peers. Normally they are its role. Where the role is on few nodes, they
    /// are its ranks on other nodes, because a slow node would be a large part of its own
    /// reference. Where too few are left, they are the whole job, and the rank's own baseline
    /// absorbs how roles differ.
    fn classify(&mut self, peers: usize) {
        /// From this many nodes on, one node hardly moves the median.
        const FEW_NODES: usize = 4;
        let everyone: Vec<u32> = (0..self.ranks() as u32).collect();
        let mut lone = Vec::new();
        for (role, ranks) in self.roles.iter().enumerate() {
            let mut nodes: Vec<u32> = ranks.iter().map(|&rank| self.node_of[rank as usize]).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let elsewhere = |node: u32| -> Vec<u32> {
                ranks.iter().copied().filter(|&rank| self.node_of[rank as usize] != node).collect()
            };
            let apart = (2..=FEW_NODES).contains(&nodes.len())
                && nodes.iter().all(|&node| elsewhere(node).len() >= peers);
            // One node is much of the role, and the rest is too small a reference.
            let uneven = nodes.len() > 1 && !apart && self.home_node(role).1 * 3 > ranks.len();
            if ranks.len() < peers || uneven {
                let class = *self.everyone.get_or_insert_with(|| {
                    self.classes.push(everyone.clone());
                    self.classes.len() as u32 - 1
                });
                ranks.iter().for_each(|&rank| self.class_of[rank as usize] = class);
                continue;
            }
            if !apart {
                if nodes.len() == 1 && self.roles.len() > 1 {
                    lone.push(role as u32);
                }
                ranks.iter().for_each(|&rank| self.class_of[rank as usize] = self.classes.len() as u32);
                self.classes.push(ranks.clone());
                continue;
            }
            for &node in &nodes {
                let members = elsewhere(node);
                for &rank in ranks.iter().filter(|&&rank| self.node_of[rank as usize] == node) {
                    self.class_of[rank as usize] = self.classes.len() as u32;
                }
                self.classes.push(members);
            }
        }
        self.lone_roles = lone;
    }

    /// The node that holds most ranks of a role, and how many.
    pub fn home_node(&self, role: usize) -> (u32, usize) {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for &rank in &self.roles[role] {
            *counts.entry(self.node_of[rank as usize]).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(node, count)| (*count, std::cmp::Reverse(*node))).unwrap_or((0, 0))
    }
}

/// Distinct ids in order, the members of each, and the dense number of each member.
fn dense(ids: impl Iterator<Item = u32>) -> (Vec<u32>, Vec<Vec<u32>>, Vec<u32>) {
    let ids: Vec<u32> = ids.collect();
    let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (rank, &id) in ids.iter().enumerate() {
        members.entry(id).or_default().push(rank as u32);
    }
    let mut of = vec![0; ids.len()];
    for (number, ranks) in members.values().enumerate() {
        ranks.iter().for_each(|&rank| of[rank as usize] = number as u32);
    }
    (members.keys().copied().collect(), members.into_values().collect(), of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(node: Vec<u32>, role: Vec<u32>, stages: u32) -> JobShape {
        JobShape { attempt: 0, node, role, stages, micro_batches: 4 }
    }

    #[test]
    fn two_nodes_are_each_others_peers() {
        let layout = Layout::new(&shape((0..16).map(|r| 70 + r / 8).collect(), vec![5; 16], 1), 4, 99);
        assert_eq!(layout.classes[layout.class_of[0] as usize], (8..16).collect::<Vec<u32>>());
        assert_eq!(layout.classes[layout.class_of[9] as usize], (0..8).collect::<Vec<u32>>());
        assert_eq!((layout.node_ids, layout.stages), (vec![70, 71], 1));
    }

    #[test]
    fn a_stage_on_one_node_is_alone_and_a_small_role_has_the_whole_job() {
        let layout =
            Layout::new(&shape((0..16).map(|r| r / 8).collect(), (0..16).map(|r| r / 8).collect(), 2), 4, 99);
        assert_eq!((layout.lone_roles.len(), layout.stages, layout.micro_batches), (2, 2, 4));
        // Two expert groups in each of two stages.
        let groups = Layout::new(&shape(vec![0; 8], vec![0, 1, 0, 1, 2, 3, 2, 3], 2), 2, 99);
        assert_eq!(
            (groups.stages, groups.groups, groups.stage_of(1), groups.stage_of(2)),
            (2, 2, Some(0), Some(1))
        );
        assert_eq!(groups.roles_of(1), 2..4);
        // Replicas of a stage group by group: 0, 2, then 1, 3.
        assert_eq!(
            (0..8).map(|place| groups.worker_rank(place)).collect::<Vec<_>>(),
            [0, 4, 2, 6, 1, 5, 3, 7]
        );
        let small = Layout::new(&shape(vec![0; 6], vec![0, 0, 1, 1, 2, 2], 3), 4, 99);
        assert_eq!(small.classes, vec![(0..6).collect::<Vec<u32>>()]);
    }

    #[test]
    fn missing_roles_and_too_many_ranks_are_borne() {
        let layout = Layout::new(&shape(vec![1; 9], vec![3], 7), 4, 8);
        assert_eq!((layout.ranks(), layout.stages, layout.groups, layout.stage_of(0)), (8, 1, 1, None));
        assert_eq!(Layout::new(&shape(vec![], vec![], 0), 4, 8).ranks(), 0);
    }
}
