//! Windows of several raw tables: put together after each of those is committed.
//!
//! Every commit of a group notes the times that it touched. A joined table's progress is, for each
//! raw table it comes from, the version of that group's anchor up to which it has computed those
//! times anew. It is a function of what the tables hold then, so it does not matter how often, or
//! in which order, groups are committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::TimestampMicrosecondType;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::error::DataFusionError;
use tidegate_events::SchemaId;

use super::show::{Rows, split_segments};
use super::{Flushed, Lake, Sharing};
use crate::batch::{concat, conform};
use crate::catalog::Catalog;
use crate::delta::{Change, DataFile};
use crate::error::{LakeError, Result};
use crate::exec::{first_time, run_joined};
use crate::pipeline::{Extent, Shape};
use crate::plan::{Group, Planned};
use crate::raw::raw_tables;
use crate::revision::revise;
use crate::sorted::sorted;
use crate::table::{PARTITION, SEGMENT};
use crate::window::{MICROS_PER_MS, Segment, Span, floor_to, merged};

/// Segments that are computed and committed together.
const SEGMENTS_AT_ONCE: usize = 24;
/// Joined tables are of no log partition; they are whoever's that keeps this one.
pub(super) const KEEPER: (&str, u32) = ("job_events", 0);

/// Windows to be computed anew, and what they are the news of.
struct Behind {
    /// First and last window start, in order and apart.
    spans: Vec<Span>,
    /// Number of a raw table, and the version of its group's anchor plus one.
    progress: Vec<(u32, u64)>,
}

/// What windows are computed from: the committed tables, of the versions that the progress names.
struct Inputs {
    catalog: Catalog,
    /// Up to when each cluster was observed, µs.
    observed: BTreeMap<String, i64>,
}

impl Lake {
    /// Puts together what is committed and was not yet. A crash in between costs only the work.
    pub async fn assemble(&mut self) -> Result<Flushed> {
        let mut flushed = Flushed::default();
        let keeps = self.states.contains_key(&(KEEPER.0.to_owned(), KEEPER.1));
        // While an interrupted flush is repaired, the tables of its group stand at two offsets.
        let repairs = self.states.values().any(|state| state.recover_to.is_some());
        if repairs || (self.sharing == Sharing::Shared && !keeps) {
            return Ok(flushed);
        }
        self.observed.update(&self.plan, &self.stores).await?;
        let joined = self.states.values().filter(|state| state.group.is_joined);
        let watermark = joined.filter_map(|state| state.watermark()).max();
        for planned in self.plan.stored_joined().cloned().collect::<Vec<_>>() {
            let inputs = self.inputs(&planned).await?;
            let Some(behind) = self.behind(&planned, &inputs).await? else { continue };
            self.check_inputs(&planned, &behind).await?;
            self.assemble_one(&planned, behind, &inputs, &mut flushed).await?;
        }
        if flushed.commits > 0 {
            self.publish().await?;
        }
        self.assembled_to = watermark;
        Ok(flushed)
    }

    /// Of what is committed now: what lies in memory is not of any version.
    async fn inputs(&self, planned: &Planned) -> Result<Inputs> {
        let catalog = self.catalog_of(Rows::Committed).await?;
        Ok(Inputs { catalog, observed: self.observed.by(&planned.roots) })
    }

    /// A table is never further than those it is computed from: what they lack now, nobody would
    /// add to it later.
    async fn check_inputs(&self, planned: &Planned, behind: &Behind) -> Result<()> {
        let joined: Vec<&Planned> = self.plan.stored_joined().collect();
        for input in self.made_of(planned) {
            let Some(input) = joined.iter().find(|p| p.spec.name == input && input != planned.spec.name)
            else {
                continue;
            };
            for (number, version) in &behind.progress {
                let is_of_it = input.roots.contains(&raw_tables()[*number as usize].spec.name);
                let has = self.stores[&input.spec.name].committed_progress(*number).await?;
                if is_of_it && has < *version {
                    let raw = &raw_tables()[*number as usize].spec.name;
                    return Err(LakeError::Refused(format!(
                        "{} has version {has} of {raw} and {} would be computed from it as of version {version}; nothing was \
                         committed: start again, and report this if it comes back",
                        input.spec.name, planned.spec.name
                    )));
                }
            }
        }
        Ok(())
    }

    /// In a shared lake: nobody else puts together from now on.
    pub(super) async fn claim_joined(&mut self) -> Result<()> {
        let all: Vec<u32> = (0..).zip(raw_tables()).map(|(number, _)| number).collect();
        for planned in self.plan.stored_joined().cloned().collect::<Vec<_>>() {
            self.store_mut(&planned.spec.name).claim(&all).await?;
        }
        Ok(())
    }

    /// Topic and partition of the log whose keeper puts windows together in a shared lake. Without
    /// it nobody does.
    pub fn keeper() -> (&'static str, u32) {
        (SchemaId::JobEvent.topic(), KEEPER.1)
    }

    /// How far each raw table that windows are put together of has come, as last looked at: what
    /// [`Self::is_assembled`] asks for.
    pub fn to_assemble(&self) -> Vec<(u32, u64)> {
        let groups = (0..).zip(raw_tables()).filter_map(|(number, raw)| {
            let group = self.plan.groups.iter().find(|group| group.raw.spec.name == raw.spec.name)?;
            Some((number, group))
        });
        groups.map(|(number, group)| (number, self.anchor_version(group))).collect()
    }

    /// Whether all windows are put together of at least this much, as last looked at, whoever did
    /// it.
    pub async fn is_assembled(&self, of: &[(u32, u64)]) -> Result<bool> {
        let raw: Vec<String> = raw_tables().into_iter().map(|raw| raw.spec.name.clone()).collect();
        for planned in self.plan.stored_joined() {
            for (number, version) in of {
                let is_of_it = planned.roots.contains(&raw[*number as usize]);
                let store = &self.stores[&planned.spec.name];
                if is_of_it && store.committed_progress(*number).await? < *version {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Version of the table that a group commits last, plus one.
    fn anchor_version(&self, group: &Group) -> u64 {
        let anchor = group.commit_order().pop().expect("a group has a raw table");
        self.stores[&anchor.name].version().unsigned_abs() + 1
    }

    /// What a joined table lacks; `None` if nothing.
    async fn behind(&mut self, planned: &Planned, inputs: &Inputs) -> Result<Option<Behind>> {
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
            let known = self.store_mut(&planned.spec.name).progress(number).await?;
            if known < now {
                // Without the log of a version nobody knows what it touched: then all of it.
                let touched = self.stores[&anchor].touched_since(known as i64 - 1).await?;
                spans.extend(touched.unwrap_or_else(|| vec![(i64::MIN, i64::MAX)]));
                progress.push((number, now));
            }
        }
        if progress.is_empty() {
            return Ok(None);
        }
        let begin = self.begin(planned, inputs).await?;
        let bounds = self.bounds(&spans, inputs).filter(|_| begin.is_some());
        let width = width(planned);
        let final_below = self.final_below(planned).await?;
        let bounds = bounds.map(|(low, high)| (low.max(begin.unwrap_or(low)).max(final_below), high));
        let inside = |(from, to): &Span| {
            let (low, high) = bounds?;
            let (from, to) = (low.max(*from), high.min(*to));
            (from <= to).then(|| (floor_to(from, width), floor_to(to, width)))
        };
        let spans = merged(spans.iter().filter_map(inside).collect(), width);
        Ok(Some(Behind { spans, progress }))
    }

    /// Start of the first window that can be computed anew: of those before, rows were dropped that
    /// they are made of.
    async fn final_below(&mut self, planned: &Planned) -> Result<i64> {
        let mut kept_from = i64::MIN;
        for table in self.made_of(planned) {
            kept_from = self.store_mut(&table).kept_from().await?.unwrap_or(i64::MIN).max(kept_from);
        }
        let width = width(planned);
        Ok(if kept_from == i64::MIN { i64::MIN } else { floor_to(kept_from + width - 1, width) })
    }

    /// The table itself and those that are stored of what it is made of. What those came from does
    /// not matter: they stay as they are when it goes.
    fn made_of(&self, planned: &Planned) -> BTreeSet<String> {
        let mut stored = BTreeSet::from([planned.spec.name.clone()]);
        let mut to_look_at = planned.pipeline.sources.clone();
        while let Some(table) = to_look_at.pop() {
            if self.stores.contains_key(&table) {
                stored.insert(table);
                continue;
            }
            let made = self.plan.joined.iter().chain(&self.plan.views).find(|made| made.spec.name == table);
            to_look_at.extend(made.iter().flat_map(|made| made.pipeline.sources.clone()));
        }
        stored
    }

    /// Where the windows of a pipeline begin; `None`: there are none yet.
    async fn begin(&self, planned: &Planned, inputs: &Inputs) -> Result<Option<i64>> {
        let Shape::Joined { since: Some(since), extents, .. } = &planned.pipeline.shape else {
            return Ok(Some(i64::MIN));
        };
        let Extent::Interval { from, .. } = &extents[since] else { unreachable!("checked where it is read") };
        let Some(rows) = inputs.catalog.tables.get(since) else { return Ok(None) };
        first_time(&self.session(), rows, from).await
    }

    /// From the first touched time to the last one that was observed: nothing is computed after it.
    /// What holds from a time on says nothing of that time having been observed: a price, or a
    /// reservation, may be of a year to come.
    fn bounds(&self, spans: &[Span], inputs: &Inputs) -> Option<Span> {
        let high = inputs.observed.values().copied().max()?;
        let low = spans.iter().map(|(from, _)| *from).min()?;
        let low = if low == i64::MIN { self.first_time()? } else { low };
        Some((low, high))
    }

    /// The first time that any event is of, by the statistics of files. Dead letters without a time
    /// are of 1970.
    fn first_time(&self) -> Option<i64> {
        let joined = self.plan.groups.iter().filter(|group| group.is_joined);
        let stores = joined.filter_map(|group| self.stores.get(&group.raw.spec.name));
        stores
            .filter_map(|store| store.files().ok())
            .flatten()
            .filter_map(|file| file.earliest("event_time"))
            .min()
    }

    async fn assemble_one(
        &mut self,
        planned: &Planned,
        behind: Behind,
        inputs: &Inputs,
        flushed: &mut Flushed,
    ) -> Result<()> {
        let segment = planned.pipeline.shape.segment().expect("joined pipelines have segments");
        let mut pieces: BTreeMap<i64, Vec<Span>> = BTreeMap::new();
        for (from, to) in &behind.spans {
            let mut start = segment.start(*from);
            while start <= *to {
                let next = segment.next(start);
                pieces.entry(start).or_default().push((start.max(*from), (next - 1).min(*to)));
                start = next;
            }
        }
        let pieces: Vec<(i64, Vec<Span>)> = pieces.into_iter().collect();
        let mut batches = pieces.chunks(SEGMENTS_AT_ONCE).peekable();
        while let Some(batch) = batches.next() {
            let (adds, removes) = self.recompute(planned, segment, batch, inputs).await?;
            // What is known to be done is said with the last of it.
            let progress = if batches.peek().is_none() { behind.progress.clone() } else { Vec::new() };
            self.commit_joined(planned, Change { progress, adds, removes, ..Change::default() }, flushed)
                .await?;
        }
        if pieces.is_empty() {
            let change = Change { progress: behind.progress, ..Change::default() };
            self.commit_joined(planned, change, flushed).await?;
        }
        Ok(())
    }

    async fn commit_joined(
        &mut self,
        planned: &Planned,
        change: Change,
        flushed: &mut Flushed,
    ) -> Result<()> {
        if change.progress.is_empty() && change.adds.is_empty() && change.removes.is_empty() {
            return Ok(());
        }
        self.count_commit()?;
        flushed.commits += 1;
        flushed.files_added += change.adds.len() as u64;
        flushed.bytes_added += change.adds.iter().map(|file| file.size as u64).sum::<u64>();
        self.store_mut(&planned.spec.name).commit(change).await
    }

    /// Files of segments in which the windows of these spans are computed anew.
    async fn recompute(
        &self,
        planned: &Planned,
        segment: Segment,
        pieces: &[(i64, Vec<Span>)],
        inputs: &Inputs,
    ) -> Result<(Vec<DataFile>, Vec<DataFile>)> {
        let width = width(planned);
        let spans = merged(pieces.iter().flat_map(|(_, spans)| spans.clone()).collect(), width);
        let mut computed: BTreeMap<i64, Vec<RecordBatch>> = BTreeMap::new();
        for (from, to) in &spans {
            let bounds = (floor_to(*from, width), floor_to(*to, width) + width);
            let touched: BTreeSet<i64> = pieces.iter().map(|(start, _)| *start).collect();
            for rows in self.windows_within_memory(planned, bounds, inputs).await? {
                let here = touched.range(segment.start(*from)..=*to).copied();
                for (start, rows) in split_segments(&rows, segment, here) {
                    computed.entry(start).or_default().push(rows);
                }
            }
        }
        let (mut adds, mut removes) = (Vec::new(), Vec::new());
        let store = &self.stores[&planned.spec.name];
        let mut committed: BTreeMap<String, Vec<DataFile>> = BTreeMap::new();
        for file in store.files()? {
            let name = file.partition_value(SEGMENT).unwrap_or_default().to_owned();
            committed.entry(name).or_default().push(file);
        }
        for (start, spans) in pieces {
            let name = segment.name(*start);
            let old_files = committed.remove(&name).unwrap_or_default();
            let mut old = Vec::new();
            for file in &old_files {
                old.extend(store.read_file(file).await?);
            }
            let mut rows = computed.remove(start).unwrap_or_default();
            for batch in &old {
                rows.push(outside(&conform(batch, &planned.spec.public_schema())?, spans, width)?);
            }
            let rows = sorted(&concat(&planned.spec.public_schema(), &rows)?, &planned.spec.key)?;
            let shape = &planned.pipeline.shape;
            let Some(rows) = revise(shape, &planned.spec, &rows, &old, self.assembled_to)? else { continue };
            let values = vec![(PARTITION, "0".to_owned()), (SEGMENT, name)];
            adds.extend(store.write(values, &[rows]).await?);
            removes.extend(old_files);
        }
        Ok((adds, removes))
    }

    /// Rows of the windows that begin in `[low, high)`, in as many pieces as memory asks for: a day
    /// of a large fleet may be too much at once, and how much that is nobody knows beforehand.
    async fn windows_within_memory(
        &self,
        planned: &Planned,
        (low, high): Span,
        inputs: &Inputs,
    ) -> Result<Vec<RecordBatch>> {
        let (mut pieces, mut left) = (Vec::new(), vec![(low, high)]);
        while let Some((low, high)) = left.pop() {
            let middle = low + floor_to((high - low) / 2, width(planned));
            match self.windows_of(planned, (low, high), inputs).await {
                Err(LakeError::Query(e)) if is_out_of_memory(&e) && middle > low => {
                    tracing::debug!(table = planned.spec.name, low, high, "too much at once: halved");
                    left.extend([(middle, high), (low, middle)]);
                }
                rows => pieces.push(rows?),
            }
        }
        Ok(pieces)
    }

    /// Rows of the windows that begin in `[low, high)`. The steps on the way are computed first,
    /// each once.
    async fn windows_of(&self, planned: &Planned, bounds: Span, inputs: &Inputs) -> Result<RecordBatch> {
        let mut wanted: BTreeSet<&str> = planned.pipeline.sources.iter().map(String::as_str).collect();
        let steps = self.plan.joined.iter().rev().filter(|step| {
            let is_wanted = !step.pipeline.stored && wanted.contains(step.spec.name.as_str());
            if is_wanted {
                wanted.extend(step.pipeline.sources.iter().map(String::as_str));
            }
            is_wanted
        });
        let steps: Vec<&Planned> = steps.collect();
        let mut computed: BTreeMap<&str, Arc<dyn TableProvider>> = BTreeMap::new();
        for step in steps.into_iter().rev().chain([planned]) {
            let mut sources = Vec::new();
            for name in &step.pipeline.sources {
                let table = computed
                    .get(name.as_str())
                    .or_else(|| inputs.catalog.tables.get(name))
                    .ok_or_else(|| {
                        LakeError::Refused(format!(
                            "{name} cannot be read, so {} cannot be put together",
                            step.spec.name
                        ))
                    })?;
                sources.push((name.as_str(), Arc::clone(table)));
            }
            let rows = run_joined(&self.session(), step, &sources, bounds, &inputs.observed).await?;
            if step.spec.name == planned.spec.name {
                return Ok(rows);
            }
            let table = MemTable::try_new(rows.schema(), vec![vec![rows]])?;
            computed.insert(&step.spec.name, Arc::new(table));
        }
        unreachable!("the last one is the pipeline itself")
    }
}

fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Width of a joined pipeline's windows, µs.
fn width(planned: &Planned) -> i64 {
    let Shape::Joined { width_ms, .. } = planned.pipeline.shape else { unreachable!("planned as joined") };
    width_ms * MICROS_PER_MS
}

/// The rows whose windows begin in none of the spans.
fn outside(rows: &RecordBatch, spans: &[Span], width: i64) -> Result<RecordBatch> {
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>().values();
    let is_outside =
        |start: &i64| !spans.iter().any(|(from, to)| floor_to(*from, width) <= *start && start <= to);
    let keep: BooleanArray = starts.iter().map(|start| Some(is_outside(start))).collect();
    Ok(filter_record_batch(rows, &keep)?)
}
