//! The two lanes of joined tables. *Live* takes over what commits invalidated and recomputes the
//! newest windows at once; older ones become pending. *Repair* recomputes pending windows, a slice
//! at a time, so that it never delays what is live.
//!
//! What is pending is in the same commit as the progress that took it over and as the windows that
//! were recomputed, so a crash loses no more than one slice of work.

use super::opening::Balance;
use super::past::Past;
use super::plan::{Extent, RecomputePlan, Slice, commits, live_and_older, spans_of, width_us, windows_in};
use super::recompute::{Inputs, Recompute};
use super::shared_views::SharedViews;
use super::{CommitStats, Lake};
use crate::delta::{Change, Pending};
use crate::error::Result;
use crate::pipeline::plan::Planned;
use crate::window::{Span, intersect_spans, merge_spans, subtract_spans};

/// How much an update recomputes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// The windows of the last ten minutes.
    Live,
    /// All windows that are not up to date.
    All,
}

impl Lake {
    /// Recomputes all windows that commits invalidated since the last time, and all that are
    /// pending.
    ///
    /// If there are more jobs than fit into memory, the newest windows come first, and the others a
    /// span of days at a time.
    pub async fn update_joined(&mut self) -> Result<CommitStats> {
        let past = match self.updates_joined() && self.plan.stored_joined().any(|p| p.pipeline.opening) {
            true => Past::divide(&self.stores, self.jobs_at_once).await?,
            false => None,
        };
        let past = past.filter(|past| past.spans.len() > 1);
        let Some(past) = past else { return self.update_lane(Lane::All, None).await };
        let mut flushed = CommitStats::default();
        for (number, span) in past.spans.iter().enumerate() {
            let balance = past.balance(&self.plan, &self.stores, *span).await?;
            if number == 0 {
                flushed += self.update_lane(Lane::Live, Some(&balance)).await?;
            }
            flushed += self.repair(Slice::all_in((span.0, i64::MAX)), Some(&balance)).await?;
        }
        // What waited for a table that reads it.
        flushed += self.update_lane(Lane::All, None).await?;
        Ok(flushed)
    }

    /// Recomputes the newest of the windows that commits invalidated since the last time. Older
    /// ones are left to [`Self::repair_joined`].
    pub async fn update_live(&mut self) -> Result<CommitStats> {
        let balance = if self.updates_joined() { self.balance().await? } else { None };
        self.update_lane(Lane::Live, balance.as_ref()).await
    }

    /// Recomputes the newest pending windows of each joined table: as many as begin within
    /// `slice_us` (µs), at least one. Windows that the opening balance covers come first, then
    /// those of the days before it, so that a site with many jobs computes none from all history.
    pub async fn repair_joined(&mut self, slice_us: i64) -> Result<CommitStats> {
        if !self.updates_joined() {
            return Ok(CommitStats::default());
        }
        // This process may have become the owner just now.
        self.watermarks.update(&self.plan, &self.stores).await?;
        let Some(newest) = self.newest_pending(i64::MAX).await? else { return Ok(CommitStats::default()) };
        let balance = self.balance().await?;
        let covered = balance.as_ref().map_or(i64::MAX, |balance| balance.nodes_from.max(balance.jobs_from));
        let all = Slice { from: i64::MIN, to: i64::MAX, newest_us: slice_us };
        if newest >= covered {
            let flushed = self.repair(Slice { from: covered, ..all }, balance.as_ref()).await?;
            if flushed.commits > 0 {
                return Ok(flushed);
            }
        }
        let Some(past) = Past::divide(&self.stores, self.jobs_at_once).await? else {
            return self.repair(all, balance.as_ref()).await;
        };
        let Some(newest) = self.newest_pending(covered).await? else { return Ok(CommitStats::default()) };
        let span = past.days_of(newest, slice_us);
        let balance = past.balance(&self.plan, &self.stores, span).await?;
        let from = span.0.max(newest.saturating_sub(slice_us));
        self.repair(Slice::all_in((from, span.1)), Some(&balance)).await
    }

    /// End of the newest pending window of any joined table that begins before this time, cut
    /// there. µs.
    async fn newest_pending(&self, before: i64) -> Result<Option<i64>> {
        let mut newest = None;
        for planned in self.plan.stored_joined() {
            let pending = self.stores[&planned.spec.name].pending().await?;
            let of_table = pending.spans.iter().rev().find(|(from, _)| *from < before);
            newest = newest.max(of_table.map(|(_, to)| (*to).min(before - 1)));
        }
        Ok(newest)
    }

    async fn repair(&mut self, slice: Slice, balance: Option<&Balance>) -> Result<CommitStats> {
        let mut flushed = CommitStats::default();
        let tables: Vec<Planned> = self.plan.stored_joined().cloned().collect();
        let mut shared = SharedViews::default();
        for (place, planned) in tables.iter().enumerate() {
            if self.stores[&planned.spec.name].pending().await?.spans.is_empty() {
                continue;
            }
            let later = &tables[place + 1..];
            let inputs = self.inputs(planned, balance, &mut shared, later).await?;
            self.repair_table(planned, &inputs, slice, &mut flushed).await?;
        }
        if flushed.commits > 0 {
            self.publish().await?;
        }
        Ok(flushed)
    }

    /// Whether a joined table has pending windows, which this process can repair.
    pub async fn has_pending(&self) -> Result<bool> {
        if !self.updates_joined() {
            return Ok(false);
        }
        for planned in self.plan.stored_joined() {
            if !self.stores[&planned.spec.name].pending().await?.spans.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn update_lane(&mut self, lane: Lane, balance: Option<&Balance>) -> Result<CommitStats> {
        let mut flushed = CommitStats::default();
        if !self.updates_joined() {
            return Ok(flushed);
        }
        self.watermarks.update(&self.plan, &self.stores).await?;
        let joined = self.states.values().filter(|state| state.group.feeds_joined);
        let watermark = joined.filter_map(|state| state.watermark()).max();
        let tables: Vec<Planned> = self.plan.stored_joined().cloned().collect();
        let mut shared = SharedViews::default();
        for (place, planned) in tables.iter().enumerate() {
            let (mut invalidated, progress) = self.invalidated_since(planned).await?;
            let pending = self.stores[&planned.spec.name].pending().await?;
            if progress.is_empty() && (lane == Lane::Live || pending.spans.is_empty()) {
                continue;
            }
            self.check_inputs(planned, &progress).await?;
            let later = &tables[place + 1..];
            let inputs = self.inputs(planned, balance, &mut shared, later).await?;
            let extent = self.extent(planned, &inputs).await?;
            if extent.end.is_none() && !pending.spans.is_empty() {
                continue;
            }
            invalidated.extend(pending.spans);
            let windows = windows_in(&invalidated, width_us(planned), extent, || self.first_event());
            let (now, later) = match lane {
                Lane::All => (windows, Vec::new()),
                Lane::Live => live_and_older(&windows, width_us(planned), extent.end),
            };
            let unsettled = self.unsettled(planned, extent).await?;
            let live_to = inputs.watermarks.values().copied().max().or(pending.live_to);
            let plan = RecomputePlan { now, later, unsettled, progress, live_to };
            self.recompute(planned, plan, &inputs, &mut flushed).await?;
        }
        if flushed.commits > 0 {
            self.publish().await?;
        }
        self.joined_watermark = watermark;
        Ok(flushed)
    }

    async fn repair_table(
        &mut self,
        planned: &Planned,
        inputs: &Inputs,
        slice: Slice,
        flushed: &mut CommitStats,
    ) -> Result<()> {
        let pending = self.stores[&planned.spec.name].pending().await?;
        let extent = self.extent(planned, inputs).await?;
        // Without a watermark it is not known which of them exist: they stay pending.
        if extent.end.is_none() {
            return Ok(());
        }
        let width = width_us(planned);
        let windows = windows_in(&pending.spans, width, extent, || self.first_event());
        let unsettled = self.unsettled(planned, extent).await?;
        let now = slice.of(&windows, &unsettled, width);
        if now.is_empty() && !windows.is_empty() {
            return Ok(());
        }
        let later = subtract_spans(&windows, &now);
        let plan = RecomputePlan { now, later, unsettled, progress: Vec::new(), live_to: pending.live_to };
        self.recompute(planned, plan, inputs, flushed).await
    }

    /// Windows that a joined table which this one reads has yet to recompute.
    async fn unsettled(&self, planned: &Planned, extent: Extent) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        let inputs = self.stored_inputs(planned);
        let others = self.plan.stored_joined().filter(|other| other.spec.name != planned.spec.name);
        for input in others.filter(|other| inputs.contains(&other.spec.name)) {
            spans.extend(self.stores[&input.spec.name].pending().await?.spans);
        }
        Ok(windows_in(&spans, width_us(planned), extent, || None))
    }

    async fn recompute(
        &mut self,
        planned: &Planned,
        plan: RecomputePlan,
        inputs: &Inputs,
        flushed: &mut CommitStats,
    ) -> Result<()> {
        let segment = planned.pipeline.shape.segment().expect("joined pipelines have segments");
        let before = self.stores[&planned.spec.name].pending().await?;
        let mut left = plan.now.clone();
        let mut progress = plan.progress.clone();
        let mut parts = commits(&plan.now, segment);
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        for segments in parts {
            let session = || self.session();
            let recompute = Recompute {
                planned,
                plan: &self.plan,
                store: &self.stores[&planned.spec.name],
                inputs,
                closed_before: self.joined_watermark,
                too_long: &self.too_long,
                session: &session,
            };
            let (adds, removes) = recompute.run(segment, &segments).await?;
            left = subtract_spans(&left, &spans_of(&segments));
            let unsettled = intersect_spans(&plan.now, &plan.unsettled);
            let spans = merge_spans([left.clone(), plan.later.clone(), unsettled].concat(), 1);
            let pending = Pending { live_to: plan.live_to, spans }.bounded();
            let progress = std::mem::take(&mut progress);
            let change = Change { progress, adds, removes, pending: Some(pending), ..Change::default() };
            self.commit_joined(planned, change, &before, flushed).await?;
        }
        Ok(())
    }

    async fn commit_joined(
        &mut self,
        planned: &Planned,
        change: Change,
        before: &Pending,
        flushed: &mut CommitStats,
    ) -> Result<()> {
        let has_files = !change.adds.is_empty() || !change.removes.is_empty();
        let pends = change.pending.as_ref().is_some_and(|pending| pending.spans != before.spans);
        if change.progress.is_empty() && !has_files && !pends {
            return Ok(());
        }
        self.count_commit()?;
        flushed.commits += 1;
        flushed.files_added += change.adds.len() as u64;
        flushed.bytes_added += change.adds.iter().map(|file| file.size as u64).sum::<u64>();
        self.store_mut(&planned.spec.name).commit(change).await
    }
}
