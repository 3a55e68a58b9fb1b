//! Joined tables: windows over several raw tables, recomputed after those are committed.
//!
//! Every commit of a group notes the event-time spans it invalidates. A joined table's progress
//! names, for each raw table it is computed from, the version of that group's anchor whose
//! invalidations it has worked off. The result depends only on what the tables hold then, so it
//! does not matter how often, or in which order, groups are committed.
//!
//! [`plan`] decides which windows to recompute, [`recompute`] does it, [`lanes`] commits the newest
//! before the rest, and this file gathers what they need.

mod lanes;
mod node_reports;
mod opening;
mod past;
mod plan;
mod recompute;
mod shared_views;
mod too_long;

use std::collections::{BTreeMap, BTreeSet};

use tidegate_events::SchemaId;

use self::opening::Balance;
pub(super) use self::opening::Opening;
pub(super) use self::past::JOBS_AT_ONCE;
use self::plan::{Extent, width_us};
use self::recompute::Inputs;
use self::shared_views::SharedViews;
pub(super) use self::too_long::TooLong;
use super::publish::Visibility;
use super::{CommitStats, Lake, Sharing};
use crate::catalog::Catalog;
use crate::error::{LakeError, Result};
use crate::exec::run::first_times;
use crate::pipeline::definition::{Extent as SourceExtent, Shape};
use crate::pipeline::plan::{Group, Planned};
use crate::pipeline::rollup::START as WINDOW_START;
use crate::raw::raw_tables;
use crate::window::{InvalidatedSpans, Span, floor_to};

/// Joined tables belong to no log partition. The owner of this partition of this raw table owns all
/// of them.
pub(super) const OWNER: (&str, u32) = ("job_events", 0);

impl Lake {
    /// Whether this process updates joined tables now.
    fn updates_joined(&self) -> bool {
        let is_owner = self.states.contains_key(&(OWNER.0.to_owned(), OWNER.1));
        // While an interrupted flush is repaired, the tables of its group stand at two offsets.
        let repairs = self.states.values().any(|state| state.recover_to.is_some());
        !repairs && (self.sharing == Sharing::Exclusive || is_owner)
    }

    /// The committed tables. Rows in memory belong to no version, so they are not read.
    ///
    /// `shared` are views made for the tables before this one in the update; it hands them on to
    /// those in `later`.
    async fn inputs(
        &self,
        planned: &Planned,
        balance: Option<&Balance>,
        shared: &mut SharedViews,
        later: &[Planned],
    ) -> Result<Inputs> {
        let catalog = self.build_catalog_with(Visibility::Committed, &shared.all).await?;
        let balance = match balance.and_then(|b| Some((b.covers_from(&self.plan, planned)?, b))) {
            None => None,
            Some((from, balance)) => {
                let mut tables = shared.balance.clone();
                tables.extend(balance.tables.clone());
                let catalog = self.build_catalog_with(Visibility::Committed, &tables).await?;
                Some(((from, balance.until), catalog))
            }
        };
        let inputs = Inputs { catalog, balance, watermarks: self.watermarks.for_tables(&planned.roots) };
        shared.hand_on(&inputs, &self.plan, later);
        Ok(inputs)
    }

    /// Opening balances, if this process can keep them: in a shared lake, other processes have the
    /// open jobs of their partitions in memory.
    async fn balance(&mut self) -> Result<Option<Balance>> {
        // Of a process that has just started nothing is known yet, and without a watermark there is
        // no balance: the windows would be computed from all history.
        self.watermarks.update(&self.plan, &self.stores).await?;
        let watermark = self.watermarks.latest();
        let opens = self.plan.stored_joined().any(|planned| planned.pipeline.opening);
        let (Sharing::Exclusive, true, Some(watermark)) = (self.sharing, opens, watermark) else {
            return Ok(None);
        };
        Ok(Some(self.opening.update(&self.plan, &self.stores, &self.states, watermark).await?))
    }

    /// Refuses to get ahead of another joined table that this one reads: what that table lacks now
    /// would never be added here.
    async fn check_inputs(&self, planned: &Planned, progress: &[(u32, u64)]) -> Result<()> {
        let joined: Vec<&Planned> = self.plan.stored_joined().collect();
        for input in self.stored_inputs(planned) {
            let Some(input) = joined.iter().find(|p| p.spec.name == input && input != planned.spec.name)
            else {
                continue;
            };
            for (number, version) in progress {
                let reads = input.roots.contains(&raw_tables()[*number as usize].spec.name);
                let has = self.stores[&input.spec.name].committed_progress(*number).await?;
                if reads && has < *version {
                    let raw = &raw_tables()[*number as usize].spec.name;
                    return Err(LakeError::Refused(format!(
                        "{} has version {has} of {raw}, but {} needs it at version {version}; nothing was committed: \
                         restart, and report this if it happens again",
                        input.spec.name, planned.spec.name
                    )));
                }
            }
        }
        Ok(())
    }

    /// In a shared lake: makes this process the only one that commits to joined tables.
    pub(super) async fn claim_joined(&mut self) -> Result<()> {
        let all: Vec<u32> = (0..).zip(raw_tables()).map(|(number, _)| number).collect();
        for planned in self.plan.stored_joined().cloned().collect::<Vec<_>>() {
            self.store_mut(&planned.spec.name).claim(&all).await?;
        }
        Ok(())
    }

    /// Topic and log partition whose owner updates joined tables in a shared lake. While it has no
    /// owner they are not updated.
    pub fn joined_owner() -> (&'static str, u32) {
        (SchemaId::JobEvent.topic(), OWNER.1)
    }

    /// Versions of the raw tables that joined tables read, as of the last snapshot. Pass them to
    /// [`Self::joined_reached`].
    pub fn joined_targets(&self) -> Vec<(u32, u64)> {
        let groups = (0..).zip(raw_tables()).filter_map(|(number, raw)| {
            let group = self.plan.groups.iter().find(|group| group.raw.spec.name == raw.spec.name)?;
            Some((number, group))
        });
        groups.map(|(number, group)| (number, self.anchor_version(group))).collect()
    }

    /// Whether all joined tables are up to date with these versions, as of the last snapshot, in
    /// this process or another.
    pub async fn joined_reached(&self, targets: &[(u32, u64)]) -> Result<bool> {
        let raw: Vec<String> = raw_tables().into_iter().map(|raw| raw.spec.name.clone()).collect();
        for planned in self.plan.stored_joined() {
            for (number, version) in targets {
                let reads = planned.roots.contains(&raw[*number as usize]);
                let store = &self.stores[&planned.spec.name];
                if reads && store.committed_progress(*number).await? < *version {
                    return Ok(false);
                }
            }
            if !self.stores[&planned.spec.name].pending().await?.spans.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Version of the table that a group commits last, plus one.
    fn anchor_version(&self, group: &Group) -> u64 {
        let anchor = group.commit_order().pop().expect("a group has a raw table");
        self.stores[&anchor.name].version().unsigned_abs() + 1
    }

    /// The time in which a joined table has windows that can be recomputed.
    async fn extent(&mut self, planned: &Planned, inputs: &Inputs) -> Result<Extent> {
        let watermark = inputs.watermarks.values().copied().max();
        let last = self.last_window(planned, inputs).await?;
        Ok(Extent {
            begin: self.first_window(planned, inputs).await?,
            end: watermark.map(|watermark| last.map_or(watermark, |last| watermark.min(last))),
            final_before: self.final_before(planned).await?,
        })
    }

    /// Spans invalidated since the table was last updated, and the versions that invalidated them.
    async fn invalidated_since(&mut self, planned: &Planned) -> Result<(Vec<Span>, Vec<(u32, u64)>)> {
        let (mut spans, mut progress) = (Vec::new(), Vec::new());
        for (number, raw) in (0..).zip(raw_tables()) {
            let name = &raw.spec.name;
            let Some(group) = self.plan.groups.iter().find(|group| group.raw.spec.name == *name) else {
                continue;
            };
            if !planned.roots.contains(name) {
                continue;
            }
            let anchor = group.commit_order().pop().expect("a group has a raw table").name.clone();
            let now = self.anchor_version(group);
            let done = self.store_mut(&planned.spec.name).progress(number).await?;
            if done < now {
                // If the log of a version is gone, its spans are not known: recompute everything.
                let invalidated = self.stores[&anchor].invalidated_since(done as i64 - 1).await?;
                match invalidated {
                    Some(InvalidatedSpans { all, waits }) => {
                        spans.extend(all);
                        spans.extend(waits.into_iter().filter(|_| planned.pipeline.wait_outcome));
                    }
                    None => spans.push((i64::MIN, i64::MAX)),
                }
                progress.push((number, now));
            }
        }
        Ok((spans, progress))
    }

    /// Start of the first window that can be recomputed: rows that earlier windows are made of were
    /// dropped.
    async fn final_before(&mut self, planned: &Planned) -> Result<i64> {
        let mut kept_from = i64::MIN;
        for table in self.stored_inputs(planned) {
            kept_from = self.store_mut(&table).kept_from().await?.unwrap_or(i64::MIN).max(kept_from);
        }
        let width = width_us(planned);
        Ok(if kept_from == i64::MIN { i64::MIN } else { floor_to(kept_from + width - 1, width) })
    }

    /// The table itself, and the stored tables it is computed from. What those were computed from
    /// does not matter: they keep their rows when their own inputs are dropped.
    fn stored_inputs(&self, planned: &Planned) -> BTreeSet<String> {
        let mut stored = BTreeSet::from([planned.spec.name.clone()]);
        let mut open = planned.pipeline.sources.clone();
        while let Some(table) = open.pop() {
            if self.stores.contains_key(&table) {
                stored.insert(table);
                continue;
            }
            let step = self.plan.joined.iter().chain(&self.plan.views).find(|step| step.spec.name == table);
            open.extend(step.iter().flat_map(|step| step.pipeline.sources.clone()));
        }
        stored
    }

    /// Start of a pipeline's first window, µs; `None` if there is none yet.
    async fn first_window(&self, planned: &Planned, inputs: &Inputs) -> Result<Option<i64>> {
        let Shape::Joined { since: Some(since), extents, .. } = &planned.pipeline.shape else {
            return Ok(Some(i64::MIN));
        };
        // The first agent of a cluster is in the opening balance too.
        let catalog = inputs.balance.as_ref().map_or(&inputs.catalog, |(_, balance)| balance);
        Ok(self.starts_of(since, &extents[since], catalog).await?.into_values().min())
    }

    /// Start of a pipeline's last window, µs; `None` if there is no end to them.
    async fn last_window(&self, planned: &Planned, inputs: &Inputs) -> Result<Option<i64>> {
        let Shape::Joined { until: Some(until), extents, .. } = &planned.pipeline.shape else {
            return Ok(None);
        };
        let ends = self.starts_of(until, &extents[until], &inputs.catalog).await?;
        if !inputs.watermarks.keys().all(|cluster| ends.contains_key(cluster)) {
            return Ok(None);
        }
        // A late event may have moved the end back, and what is after it is not right any more.
        let files = self.stores[&planned.spec.name].files()?;
        let committed = files.iter().filter_map(|file| file.time_range(WINDOW_START).1).max();
        Ok(ends.into_values().max().max(committed))
    }

    /// Start of the first row of a source, by cluster, µs.
    async fn starts_of(
        &self,
        source: &str,
        extent: &SourceExtent,
        catalog: &Catalog,
    ) -> Result<BTreeMap<String, i64>> {
        let SourceExtent::Interval { from, .. } = extent else {
            unreachable!("checked when the header is parsed")
        };
        let Some(rows) = catalog.tables.get(source) else { return Ok(BTreeMap::new()) };
        first_times(&self.session(), rows, from).await
    }

    /// Time of the first event of all, µs, by the statistics of files. Dead letters without a time
    /// are of 1970.
    fn first_event(&self) -> Option<i64> {
        let joined = self.plan.groups.iter().filter(|group| group.feeds_joined);
        let stores = joined.filter_map(|group| self.stores.get(&group.raw.spec.name));
        stores
            .filter_map(|store| store.files().ok())
            .flatten()
            .filter_map(|file| file.earliest("event_time"))
            .min()
    }
}
