//! The plan of a lake: all pipelines with their tables, in order of dependency.
//!
//! A *group* is one raw table with every keyed and windowed pipeline computed from it. Groups are
//! independent: each has its own position in the log and its own state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::pipeline::definition::{Extent, Pipeline};
use crate::pipeline::plan_cache::PlanCache;
use crate::pipeline::rollup::Rollup;
use crate::raw::table::RawTable;
use crate::table::{Layout, TableSpec, table_lag, window_revisions};

/// Watermark of the row's cluster: a column that keyed pipelines see on every raw table.
pub const AS_OF: &str = "as_of";

/// A pipeline with the table it fills.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The parsed pipeline file.
    pub pipeline: Pipeline,
    /// Output table. For a view only its public columns matter.
    pub spec: Arc<TableSpec>,
    /// Raw tables that everything is computed from.
    pub roots: BTreeSet<String>,
    /// For windows over one source: the columns that the SQL reads, without those added at run
    /// time.
    pub columns_read: Vec<String>,
    /// Those of `columns_read` that are text and only passed through.
    pub pass_through: Vec<String>,
    /// How it relates to the table it rolls up, if any.
    pub rollup: Option<Rollup>,
    pub(crate) plan_cache: PlanCache,
}

/// A raw table and what is computed from it, each list in order of dependency.
#[derive(Debug, Clone)]
pub struct Group {
    /// The raw table.
    pub raw: RawTable,
    /// Keyed pipelines.
    pub keyed: Vec<Planned>,
    /// Windowed pipelines.
    pub windowed: Vec<Planned>,
    /// Whether joined tables read it. If so, its commits note which spans they invalidate.
    pub feeds_joined: bool,
}

/// Everything the lake computes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// One group per raw table.
    pub groups: Vec<Group>,
    /// Joined pipelines in order of dependency. Those that are not stored are intermediate steps.
    /// They may read views, and views may read them.
    pub joined: Vec<Planned>,
    /// Views in order of dependency.
    pub views: Vec<Planned>,
}

impl Planned {
    /// The raw table everything is computed from; `None` if there are several.
    pub fn root(&self) -> Option<&String> {
        self.roots.first().filter(|_| self.roots.len() == 1)
    }
}

impl Plan {
    /// The same plan with only these pipelines and the raw tables that feed them. `names` must
    /// include every pipeline that one of them reads. Both plans share the plan cache.
    pub fn only(&self, names: &BTreeSet<&str>) -> Self {
        let mut only = self.clone();
        let is_left = |planned: &Planned| names.contains(planned.pipeline.name.as_str());
        only.joined.retain(is_left);
        only.views.retain(is_left);
        let roots: BTreeSet<String> =
            self.pipelines().filter(|p| is_left(p)).flat_map(|planned| planned.roots.clone()).collect();
        only.groups.retain(|group| roots.contains(&group.raw.spec.name));
        for group in &mut only.groups {
            group.keyed.retain(is_left);
            group.windowed.retain(is_left);
            group.feeds_joined = only.joined.iter().any(|p| p.roots.contains(&group.raw.spec.name));
        }
        only
    }

    /// The same plan for a new lake in which ratios of GPU samples are rounded to multiples of this
    /// many millionths. The lake remembers it.
    pub fn with_ratio_step(mut self, ppm: u32) -> Self {
        for group in &mut self.groups {
            if group.raw.spec.layout == Layout::Samples {
                group.raw.ratio_step_ppm = ppm.max(1);
            }
        }
        self
    }

    /// Joined pipelines whose result is a table.
    pub fn stored_joined(&self) -> impl Iterator<Item = &Planned> {
        self.joined.iter().filter(|p| p.pipeline.stored)
    }

    /// Every table, raw tables first.
    pub fn tables(&self) -> Vec<Arc<TableSpec>> {
        let raw = self.groups.iter().map(|g| Arc::clone(&g.raw.spec));
        let computed = self.pipelines().filter(|p| p.pipeline.stored).map(|p| Arc::clone(&p.spec));
        raw.chain(computed).chain([window_revisions(), table_lag()]).collect()
    }

    /// A raw table, and every table and view that is computed from it.
    pub fn computed_from(&self, raw: &str) -> BTreeSet<String> {
        let computed = self.pipelines().filter(|planned| planned.roots.contains(raw));
        computed.map(|planned| planned.spec.name.clone()).chain([raw.to_owned()]).collect()
    }

    /// Rollups of each table, the narrowest first.
    pub fn rollups(&self) -> BTreeMap<String, Vec<Rollup>> {
        let next = |table: &str| {
            let mut rollups =
                self.pipelines().filter(|planned| planned.pipeline.rolls_up.as_deref() == Some(table));
            rollups.find_map(|planned| planned.rollup.clone())
        };
        let rolled_up = self.pipelines().filter_map(|planned| planned.pipeline.rolls_up.clone());
        let rollups = |table: String| {
            let wider = std::iter::successors(next(&table), |rollup| next(&rollup.table));
            // A cycle of rollups ends where the width stops growing.
            let mut width_ms = 0;
            let wider = wider
                .take_while(|rollup| std::mem::replace(&mut width_ms, rollup.width_ms) < rollup.width_ms);
            let wider = wider.collect();
            (table, wider)
        };
        rolled_up.map(rollups).collect()
    }

    /// Every pipeline, keyed ones first, views last.
    pub fn pipelines(&self) -> impl Iterator<Item = &Planned> {
        let computed = self.groups.iter().flat_map(|g| g.keyed.iter().chain(&g.windowed));
        computed.chain(&self.joined).chain(&self.views)
    }
}

impl Group {
    /// Groups with keyed pipelines hold events until their key is finished, so new rows are not
    /// apart from old ones: no window of them can be kept as partial aggregates.
    pub(super) fn disable_partials(&mut self) {
        for planned in &mut self.windowed {
            Arc::make_mut(&mut planned.spec).partials.clear();
        }
    }

    /// Keyed pipelines whose result is a table.
    pub fn stored_keyed(&self) -> impl Iterator<Item = &Planned> {
        self.keyed.iter().filter(|p| p.pipeline.stored)
    }

    /// Windowed pipelines kept as partial aggregates.
    pub fn with_partials(&self) -> impl Iterator<Item = &Planned> {
        self.windowed.iter().filter(|p| !p.spec.partials.is_empty())
    }

    /// Windowed pipelines whose dirty windows are recomputed from all their rows.
    pub fn recomputed(&self) -> impl Iterator<Item = &Planned> {
        self.windowed.iter().filter(|p| p.spec.partials.is_empty())
    }

    /// Tables that hold the group's state, in commit order. The last one is the anchor: after a
    /// crash between two commits the anchor is behind, and its offset is where to resume.
    pub fn commit_order(&self) -> Vec<Arc<TableSpec>> {
        let windowed = self.windowed.iter().map(|p| Arc::clone(&p.spec));
        let raw = std::iter::once(Arc::clone(&self.raw.spec));
        windowed.chain(raw).chain(self.stored_keyed().map(|p| Arc::clone(&p.spec))).collect()
    }
}

/// Columns added to the rows of a window at run time. A windowed source has a `window_start` of its
/// own, which the wider window's start replaces.
pub fn added_columns(extent: &Extent) -> &'static [&'static str] {
    match extent {
        Extent::Interval { .. } => &["window_start", "clip_from", "clip_to"],
        Extent::Instant { .. } => &["window_start"],
    }
}

/// As [`added_columns`], of a joined pipeline, whose intervals may not have ended.
pub fn added_to_joined(extent: &Extent) -> &'static [&'static str] {
    match extent {
        Extent::Interval { .. } => &["window_start", "clip_from", "clip_to", "clip_end"],
        Extent::Instant { .. } => added_columns(extent),
    }
}
