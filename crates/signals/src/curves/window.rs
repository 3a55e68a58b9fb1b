//! A window of a job's steps at one size.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_events::v1;
use tidegate_insight::advice::scaling::Size;

use super::MAX_GPUS;

/// Assumed GPUs per node, where neither reports nor the allocation name nodes.
const DEFAULT_NODE_GPUS: u32 = 8;

/// Steps of a job at one size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Window {
    pub world: u32,
    /// Longest duration of each step over the ranks, µs, without checkpoints.
    pub steps: BTreeMap<u64, u64>,
    pub reports: u64,
    pub tokens: u128,
    pub tells_tokens: bool,
    pub nodes: BTreeSet<String>,
    /// From the start of its first step to the end of its last, µs since 1970.
    pub span_us: Option<(i64, i64)>,
}

/// A full window. It waits until it is known whether the job was slow.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ClosedWindow {
    pub size: Size,
    pub median_s: f64,
    pub steps: u64,
    pub tells_tokens: bool,
    pub span_us: (i64, i64),
}

impl Window {
    pub fn new(world: u32) -> Self {
        Self {
            world,
            steps: BTreeMap::new(),
            reports: 0,
            tokens: 0,
            tells_tokens: false,
            nodes: BTreeSet::new(),
            span_us: None,
        }
    }

    pub fn take(&mut self, report: &v1::StepReport, took_us: u64, end_us: i64) {
        let begin_us = end_us.saturating_sub(i64::try_from(report.duration_us).unwrap_or(i64::MAX));
        let (from_us, to_us) = self.span_us.unwrap_or((begin_us, end_us));
        self.span_us = Some((from_us.min(begin_us), to_us.max(end_us)));
        let longest = self.steps.entry(report.step).or_default();
        *longest = (*longest).max(took_us);
        self.reports += 1;
        self.tells_tokens |= report.tokens.is_some();
        self.tokens += u128::from(report.tokens.unwrap_or(0));
        if let Some(node) = report.node.as_ref().filter(|node| !self.nodes.contains(*node))
            && self.nodes.len() < MAX_GPUS as usize
        {
            self.nodes.insert(node.clone());
        }
    }

    pub fn closed(&self, hosts: u32) -> Option<ClosedWindow> {
        Some(ClosedWindow {
            size: self.size(hosts),
            median_s: self.median_s(),
            steps: self.steps.len() as u64,
            tells_tokens: self.tells_tokens,
            span_us: self.span_us?,
        })
    }

    /// Median step, seconds.
    pub fn median_s(&self) -> f64 {
        let mut times: Vec<u64> = self.steps.values().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).map_or(0.0, |us| *us as f64 / 1e6)
    }

    /// One rank per GPU. Tokens are averaged over the ranks: where one rank reports the tokens of
    /// all, each gets its share.
    pub fn size(&self, hosts: u32) -> Size {
        let named = u32::try_from(self.nodes.len()).unwrap_or(MAX_GPUS);
        let nodes = match (named, hosts) {
            (0, 0) => self.world.div_ceil(DEFAULT_NODE_GPUS),
            (0, hosts) => hosts,
            (named, _) => named,
        };
        let mean = self.tokens / u128::from(self.reports.max(1));
        let local_batch = if self.tells_tokens { round_batch(mean) } else { 1 };
        Size { gpus: self.world, nodes: nodes.clamp(1, self.world), local_batch }
    }
}

/// Rounds to five significant bits (off by at most 3 %), so that sequences of uneven length do not
/// make a size each. At least 1.
pub(super) fn round_batch(tokens: u128) -> u32 {
    let bits = u128::BITS - tokens.leading_zeros();
    let shift = bits.saturating_sub(5);
    let half = if shift > 0 { 1_u128 << (shift - 1) } else { 0 };
    u32::try_from((tokens + half) >> shift << shift).unwrap_or(u32::MAX).max(1)
}
