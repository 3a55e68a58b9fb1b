//! The first reports of an attempt, kept until the layout of its ranks is known.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tidegate_events::v1;

use super::MAX_RANKS;
use crate::budget;
use crate::roles::{RankLocation, RankPosition, Roles};

/// Ranks beside eight for each that was heard: a small job whose other ranks report late.
const UNHEARD_RANKS: u32 = 64;
/// Names in a report: job, node, device, and those of its envelope.
const REPORT_NAMES: usize = 6;

/// Reports of an attempt whose layout is unknown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Gathering {
    pub since_us: i64,
    pub world: Option<u32>,
    #[serde(with = "crate::stored::reports")]
    pub reports: Vec<(v1::StepReport, i64)>,
    pub heard: BTreeSet<u32>,
}

impl Gathering {
    pub fn add(&mut self, report: v1::StepReport, end_us: i64) {
        self.world = self.world.or(report.world_size.filter(|world| *world > 0));
        self.heard.insert(report.rank);
        self.reports.push((report, end_us));
    }

    /// Whether every rank has reported, or so many have reported so often that the others need not
    /// be waited for.
    pub fn is_complete(&self) -> bool {
        let world = self.world.map_or(MAX_RANKS, |world| world.min(MAX_RANKS)) as usize;
        self.heard.len() >= world || self.reports.len() > 4 * world + 4_096
    }

    /// Memory of the reports, bytes.
    pub fn bytes(&self) -> usize {
        let report = size_of::<(v1::StepReport, i64)>() + REPORT_NAMES * budget::NAME_BYTES;
        self.reports.len() * report + self.heard.len() * budget::ENTRY_BYTES
    }

    /// Location of each rank, and which ranks are peers, by the reports and the `hosts` of the
    /// allocation.
    pub fn layout(&self, hosts: &[String]) -> (Vec<RankLocation>, Roles) {
        let most = self.heard.last().map_or(0, |rank| rank.saturating_add(1));
        // Memory is taken for ranks that were heard, not for those that a report claims: where one
        // rank of each node reports, for all eight of it.
        let credible = 8 * self.heard.len() as u32 + UNHEARD_RANKS;
        let ranks = self.world.unwrap_or(most).min(credible).min(MAX_RANKS);
        let mut locations = vec![RankLocation::default(); ranks as usize];
        for (report, _) in &self.reports {
            let Some(location) = locations.get_mut(report.rank as usize) else { continue };
            location.node = location.node.take().or_else(|| report.node.clone());
            location.gpu_uuid = location.gpu_uuid.take().or_else(|| report.gpu_uuid.clone());
            location.gpu_index = location.gpu_index.or(report.gpu_index);
            location.position.stage = location.position.stage.or(report.pipeline_stage);
            location.position.expert_group = location.position.expert_group.or(report.expert_group);
        }
        let standing: Vec<RankPosition> = locations.iter().map(|location| location.position).collect();
        let first = |of: fn(&v1::StepReport) -> Option<u32>| {
            self.reports.iter().find_map(|(report, _)| of(report).filter(|many| *many > 0))
        };
        let roles = Roles::new(
            &standing,
            first(|report| report.pipeline_stages),
            first(|report| report.micro_batches),
        );
        // Where reports name no node: launchers fill hosts with ranks in order, the same number on
        // each.
        if !hosts.is_empty() && locations.len().is_multiple_of(hosts.len()) {
            let each = locations.len() / hosts.len();
            for (rank, location) in
                locations.iter_mut().enumerate().filter(|(_, location)| location.node.is_none())
            {
                location.node = Some(hosts[rank / each].clone());
            }
        }
        (locations, roles)
    }
}
