//! Which ranks of a job do the same work, by their reports: pipeline stages and groups of experts.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Role of ranks that report none while others do: they are peers of each other alone.
const UNKNOWN_ROLE: u32 = u32::MAX;
/// Micro-batches per stage where a pipelined job reports none. From there on the bubble is small,
/// which is why pipelines are run so (GPipe, arXiv 1811.06965, section 2.3).
const MICRO_BATCHES_PER_STAGE: u32 = 4;

/// Place of a rank in the job's parallelism, as it reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct RankPosition {
    pub stage: Option<u32>,
    pub expert_group: Option<u32>,
}

/// Where a rank runs and its place in the job, as far as reports name them; for a job without
/// reports, a device that it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RankLocation {
    pub position: RankPosition,
    pub node: Option<String>,
    pub gpu_uuid: Option<String>,
    pub gpu_index: Option<u32>,
}

/// Roles of a job's ranks, in the form of [`JobShape`](tidegate_insight::straggler::JobShape).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// By rank: `stage * groups + group`.
    pub role: Vec<u32>,
    /// 1 without a pipeline.
    pub stages: u32,
    pub micro_batches: u32,
}

impl Roles {
    /// Roles of ranks at positions `positions`, in order of rank, in a pipeline of `stages` with
    /// `micro_batches`, as far as reports name them. Without positions all ranks are peers.
    pub fn new(positions: &[RankPosition], stages: Option<u32>, micro_batches: Option<u32>) -> Self {
        let seen = positions
            .iter()
            .filter_map(|positions| positions.stage)
            .max()
            .map_or(1, |stage| stage.saturating_add(1));
        // A stage has at least one rank.
        let stages = stages.unwrap_or(seen).clamp(1, positions.len().max(1) as u32);
        let stage_of = |positions: &RankPosition| {
            if stages > 1 { positions.stage.filter(|stage| *stage < stages) } else { Some(0) }
        };
        let mut groups: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for rank in positions {
            if let Some(stage) = stage_of(rank) {
                groups.entry(stage).or_default().extend(rank.expert_group);
            }
        }
        // Expert groups divide stages only where each stage has the same ones.
        let mut sets = groups.values();
        let first = sets.next().cloned().unwrap_or_default();
        let groups: Vec<u32> =
            if sets.all(|set| *set == first) { first.into_iter().collect() } else { Vec::new() };
        let role = |rank: &RankPosition| {
            let stage = stage_of(rank)?;
            if groups.is_empty() {
                return Some(stage);
            }
            let group = groups.binary_search(&rank.expert_group?).ok()?;
            Some(stage * groups.len() as u32 + group as u32)
        };
        let micro_batches = match (stages, micro_batches.filter(|many| *many > 0)) {
            (1, _) => 1,
            (_, Some(many)) => many,
            (_, None) => MICRO_BATCHES_PER_STAGE * stages,
        };
        Self {
            role: positions.iter().map(|rank| role(rank).unwrap_or(UNKNOWN_ROLE)).collect(),
            stages,
            micro_batches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(places: &[(Option<u32>, Option<u32>)]) -> Vec<RankPosition> {
        places.iter().map(|&(stage, expert_group)| RankPosition { stage, expert_group }).collect()
    }

    #[test]
    fn without_positions_all_ranks_are_peers() {
        let roles = Roles::new(&positions(&[(None, None); 3]), None, Some(8));
        assert_eq!(roles, Roles { role: vec![0; 3], stages: 1, micro_batches: 1 });
        assert_eq!(Roles::new(&[], Some(4), None).stages, 1);
    }

    #[test]
    fn stages_are_roles_and_ranks_without_position_are_apart() {
        let places = positions(&[(Some(0), None), (Some(1), None), (None, None), (Some(7), None)]);
        let roles = Roles::new(&places, Some(2), Some(16));
        assert_eq!(
            roles,
            Roles { role: vec![0, 1, UNKNOWN_ROLE, UNKNOWN_ROLE], stages: 2, micro_batches: 16 }
        );
        // Without a number of stages: as many as were seen, with four micro-batches each.
        let seen = Roles::new(&places[..2], None, None);
        assert_eq!((seen.stages, seen.micro_batches), (2, 8));
    }

    #[test]
    fn expert_groups_divide_stages_that_have_the_same() {
        let even =
            positions(&[(Some(0), Some(3)), (Some(0), Some(9)), (Some(1), Some(3)), (Some(1), Some(9))]);
        assert_eq!(Roles::new(&even, Some(2), None).role, [0, 1, 2, 3]);
        let uneven =
            positions(&[(Some(0), Some(3)), (Some(0), Some(9)), (Some(1), Some(3)), (Some(1), Some(3))]);
        assert_eq!(Roles::new(&uneven, Some(2), None).role, [0, 0, 1, 1]);
        // Without a pipeline the groups alone are roles.
        let alone = positions(&[(None, Some(4)), (None, Some(2)), (None, None)]);
        assert_eq!(
            Roles::new(&alone, None, None),
            Roles { role: vec![1, 0, UNKNOWN_ROLE], stages: 1, micro_batches: 1 }
        );
    }

    #[test]
    fn absurd_numbers_make_no_great_job() {
        let places = positions(&[(Some(u32::MAX), Some(u32::MAX)), (Some(0), None)]);
        assert_eq!(Roles::new(&places, Some(u32::MAX), Some(u32::MAX)).stages, 2);
        assert_eq!(Roles::new(&places, None, None).role.len(), 2);
    }
}
