//! State of one group in one log partition: what was absorbed and is not committed yet.
//!
//! [`GroupState`] holds what all groups share: offsets, watermarks, and which windows are dirty.
//! The rows are in one of two types. [`KeyedState`] holds events until their key is finished and
//! folds them through keyed pipelines. [`SamplesState`] holds GPU samples until the next commit.

mod bloom;
pub mod dedup;
mod invalidation;
mod keyed;
mod known;
mod recent;
mod samples;
mod watermarks;

use std::collections::BTreeSet;

use arrow::array::RecordBatch;
use datafusion::prelude::SessionContext;
use tidegate_events::SchemaId;

pub use self::bloom::SealedKeys;
use self::invalidation::Invalidation;
pub use self::keyed::KeyedState;
pub use self::known::{FoundKeys, KnownKeys};
pub use self::recent::{RecentKeys, SEAL_AFTER_MS, recent_day};
pub(crate) use self::samples::LONG_RUN_ROWS;
pub use self::samples::SamplesState;
use self::watermarks::Watermarks;
use crate::batch::concat;
use crate::batch::sort::sorted;
use crate::error::Result;
use crate::pipeline::plan::Group;
use crate::raw::facts::{EventId, Facts, facts_from_rows};
use crate::raw::samples::SampleChunk;
use crate::raw::table::RawTable;
use crate::table::Layout;
use crate::window::{InvalidatedSpans, Span};

/// State of one group in one log partition.
#[derive(Debug)]
pub struct GroupState {
    /// The raw table, and the pipelines that are computed from it.
    pub group: Group,
    /// Log partition.
    pub partition: u32,
    /// Everything below this offset is committed in every table of the group.
    pub committed: u64,
    /// Everything below this offset is absorbed.
    pub absorbed: u64,
    /// Something was absorbed that is not committed.
    pub changed: bool,
    /// Watermark at the last commit, µs. A window had closed by then if its end plus lateness is
    /// not after it.
    pub closed_before: Option<i64>,
    /// Where an interrupted flush ended: a crash came between its commits. The next flush must end
    /// there too.
    pub recover_to: Option<u64>,
    /// Segments to recompute, one set for each of [`Group::recomputed`].
    pub dirty: Vec<BTreeSet<i64>>,
    rows: Rows,
    watermarks: Watermarks,
    /// Only where joined tables are computed from this group.
    invalidation: Option<Invalidation>,
}

/// The rows a group holds in memory.
#[derive(Debug)]
enum Rows {
    Keyed(KeyedState),
    Samples(SamplesState),
}

impl GroupState {
    /// State without rows, whose tables are committed up to `committed`.
    pub fn new(group: Group, partition: u32, committed: u64, recover_to: Option<u64>) -> Self {
        Self {
            partition,
            committed,
            absorbed: committed,
            changed: false,
            closed_before: None,
            recover_to,
            dirty: vec![BTreeSet::new(); group.recomputed().count()],
            rows: match group.raw.spec.layout {
                Layout::Samples => Rows::Samples(SamplesState::default()),
                _ => {
                    let mut keyed = KeyedState::new(&group.raw);
                    if group.feeds_joined && !group.keyed.is_empty() {
                        keyed.keep_recent();
                    }
                    Rows::Keyed(keyed)
                }
            },
            watermarks: Watermarks::default(),
            invalidation: group.feeds_joined.then(Invalidation::default),
            group,
        }
    }

    /// The group's raw table.
    pub fn raw(&self) -> &RawTable {
        &self.group.raw
    }

    /// Held events; `None` for a group of samples.
    pub fn keyed(&self) -> Option<&KeyedState> {
        match &self.rows {
            Rows::Keyed(keyed) => Some(keyed),
            Rows::Samples(_) => None,
        }
    }

    /// Held samples; `None` for any other group.
    pub fn samples(&self) -> Option<&SamplesState> {
        match &self.rows {
            Rows::Samples(samples) => Some(samples),
            Rows::Keyed(_) => None,
        }
    }

    /// As [`Self::samples`].
    pub fn samples_mut(&mut self) -> Option<&mut SamplesState> {
        match &mut self.rows {
            Rows::Samples(samples) => Some(samples),
            Rows::Keyed(_) => None,
        }
    }

    /// The latest watermark of any cluster, µs.
    pub fn watermark(&self) -> Option<i64> {
        self.watermarks.latest()
    }

    /// On start: restores a cluster's watermark, µs.
    pub fn restore_watermark(&mut self, cluster: &str, time: i64) {
        let index = self.watermarks.index(cluster);
        self.watermarks.advance(index, time);
        self.closed_before = self.watermark();
    }

    /// On start: restores a key that the lake holds, open or sealed.
    pub fn restore_key(&mut self, key: i64) {
        if let Rows::Keyed(keyed) = &mut self.rows {
            keyed.restore_key(key);
        }
    }

    /// On start: restores what was saved of keys.
    pub fn restore_known(&mut self, known: KnownKeys) {
        for (cluster, time) in &known.watermarks {
            self.restore_watermark(cluster, *time);
        }
        if let Rows::Keyed(keyed) = &mut self.rows {
            keyed.restore_known(known.keys);
        }
    }

    /// Whether a key may have committed rows.
    pub fn may_know(&self, key: i64) -> bool {
        self.keyed().is_some_and(|keyed| keyed.may_know(key))
    }

    /// What a start from the committed offset has to know of all keys. `None` if something was
    /// absorbed that is not committed, or if repeats are recognised within a window.
    pub fn known_keys(&mut self) -> Option<KnownKeys> {
        if self.changed || self.recover_to.is_some() {
            return None;
        }
        match &mut self.rows {
            Rows::Keyed(keyed) => keyed.known_keys(self.committed, &self.watermarks),
            Rows::Samples(_) => None,
        }
    }

    /// On start: fills the dedup window with recent events, each with its offset, in any order and
    /// with repeats.
    pub fn restore_recent(&mut self, events: Vec<(u64, EventId)>) {
        match &mut self.rows {
            Rows::Samples(samples) => samples.restore_recent(events),
            Rows::Keyed(keyed) => keyed.restore_recent(events),
        }
    }

    /// On start: restores what the committed events of open keys said, so that the next ones
    /// invalidate no more than they would have without the restart.
    pub fn restore_histories(&mut self, events: &[RecordBatch]) -> Result<()> {
        let Some(invalidation) = &mut self.invalidation else { return Ok(()) };
        if self.group.raw.schema == SchemaId::JobEvent {
            let rows = concat(&self.group.raw.spec.full_schema(), events)?;
            let rows = sorted(&rows, &["event_time".to_owned()])?;
            invalidation.restore_jobs(&rows, &facts_from_rows(&rows, true));
        }
        Ok(())
    }

    /// Whether windows are invalidated since the last step of a job.
    pub fn follows_steps(&self) -> bool {
        self.group.raw.schema == SchemaId::StepReport && self.invalidation.is_some()
    }

    /// On start: restores until when the committed steps of a job reach, µs.
    pub fn restore_step(&mut self, cluster: &str, job_id: &str, reach: i64) {
        self.invalidation.iter_mut().for_each(|of| of.restore_step(cluster, job_id, reach));
    }

    /// On start: restores the committed events of keys that are still open.
    pub fn restore_open(&mut self, batch: RecordBatch) {
        if let Rows::Keyed(keyed) = &mut self.rows {
            keyed.restore(batch, &self.group, &mut self.watermarks);
        }
    }

    /// On start: restores the committed events of keys that were sealed in the days since `from`,
    /// µs.
    pub fn restore_recent_keys(&mut self, events: RecordBatch, from: i64) -> Result<()> {
        let watermark = self.watermark().unwrap_or(i64::MIN);
        match &mut self.rows {
            Rows::Keyed(keyed) => keyed.restore_recent_keys(events, from, watermark),
            Rows::Samples(_) => Ok(()),
        }
    }

    /// Whether events wait for the committed events of their keys.
    pub fn has_waiting(&self) -> bool {
        self.keyed().is_some_and(KeyedState::has_waiting)
    }

    /// Absorbs events. `batch` has the full raw schema; there is one fact per row.
    ///
    /// An event whose key may be sealed in the lake waits until [`Self::absorb_waiting`], so that
    /// one read of the lake serves all of them.
    pub fn absorb(&mut self, batch: RecordBatch, facts: Vec<Facts>) -> Result<()> {
        let Rows::Keyed(keyed) = &mut self.rows else { unreachable!("events are of keyed groups") };
        let (batch, facts) = keyed.admit(batch, facts)?;
        self.absorb_admitted(&batch, &facts)
    }

    /// Absorbs the events that waited. `committed` is what the lake holds of their keys.
    pub fn absorb_waiting(&mut self, committed: Vec<RecordBatch>) -> Result<()> {
        let Rows::Keyed(keyed) = &mut self.rows else { return Ok(()) };
        for batch in committed {
            keyed.revive(batch, &self.group, &mut self.watermarks)?;
        }
        for (batch, facts) in keyed.take_waiting() {
            self.absorb_admitted(&batch, &facts)?;
        }
        Ok(())
    }

    /// Absorbs events of keys that are open or new. Repeats are dropped.
    fn absorb_admitted(&mut self, batch: &RecordBatch, facts: &[Facts]) -> Result<()> {
        let Rows::Keyed(keyed) = &mut self.rows else { return Ok(()) };
        let before = self.watermarks.snapshot();
        let Some(absorbed) = keyed.absorb(batch, facts, &mut self.watermarks)? else { return Ok(()) };
        if let Some(invalidation) = &mut self.invalidation {
            let row_clusters = self.watermarks.indexes(&absorbed.batch);
            let watermark = |index: &u32| before.get(*index as usize).copied().unwrap_or(i64::MIN);
            let watermarks: Vec<i64> = row_clusters.iter().map(watermark).collect();
            let (schema, first) = (self.group.raw.schema, |key| keyed.first_event_time(key));
            invalidation.record(schema, &absorbed.batch, &absorbed.facts, &watermarks, first);
        }
        // Asked of each key that is held, for every batch: only where windows need it.
        let mut spans = match self.dirty.is_empty() {
            true => Vec::new(),
            false => keyed.changed_spans(&absorbed, &self.watermarks, &before),
        };
        spans.extend(self.passed_spans(&before));
        self.mark_dirty(&spans);
        self.changed = true;
        Ok(())
    }

    /// Spans over which time passed while a key of the cluster was open: an open key reaches up to
    /// the watermark.
    fn passed_spans(&mut self, watermarks_before: &[i64]) -> Vec<Span> {
        let mut spans = Vec::new();
        for (index, now) in (0..).zip(self.watermarks.snapshot()) {
            let before = watermarks_before.get(index as usize).copied().unwrap_or(i64::MIN);
            if now <= before {
                continue;
            }
            // A cluster costs money even while nothing changes. If it is new to this group, other
            // groups may have known it for any length of time.
            if let Some(invalidation) = &mut self.invalidation {
                invalidation.add((before, now));
            }
            // As above.
            if !self.dirty.is_empty() && self.keyed().is_some_and(|keyed| keyed.has_open_key(index)) {
                spans.push((if before == i64::MIN { now } else { before }, now));
            }
        }
        spans
    }

    fn mark_dirty(&mut self, spans: &[Span]) {
        for (planned, dirty) in self.group.recomputed().zip(&mut self.dirty) {
            let segment = planned.pipeline.shape.segment().expect("windowed pipelines have segments");
            spans.iter().for_each(|(from, to)| segment.mark(*from, *to, dirty));
        }
    }

    /// Absorbs samples. Batches in the dedup window are dropped; each of the others makes the
    /// windows of its own times dirty.
    pub fn absorb_samples(&mut self, chunk: SampleChunk) {
        let Rows::Samples(samples) = &mut self.rows else { unreachable!("samples are of their own group") };
        let Some(chunk) = samples.absorb(chunk) else { return };
        for (cluster, (first, last)) in chunk.spans() {
            let index = self.watermarks.index(cluster);
            let before = self.watermarks.of(index);
            self.watermarks.advance(index, last);
            if let Some(invalidation) = &mut self.invalidation {
                invalidation.add((first.min(before), last));
            }
            self.mark_dirty(&[(first, last)]);
        }
        self.changed = true;
    }

    /// Spans invalidated since the last commit; `None` where no joined table reads this group.
    pub fn invalidated(&self) -> Option<InvalidatedSpans> {
        self.invalidation.as_ref().map(Invalidation::spans)
    }

    /// Folds the held events through the keyed pipelines.
    pub async fn fold(&mut self, ctx: &SessionContext) -> Result<()> {
        match &mut self.rows {
            Rows::Keyed(keyed) => keyed.fold(ctx, &self.group, &self.watermarks).await,
            Rows::Samples(_) => Ok(()),
        }
    }

    /// Held rows of the raw table from `offset` on, full schema. Samples are not among them.
    pub fn raw_rows_from(&self, offset: u64) -> Result<Vec<RecordBatch>> {
        self.keyed().map_or(Ok(Vec::new()), |keyed| keyed.raw_rows_from(offset))
    }

    /// The fold of one keyed pipeline in the table's file schema: rows of keys that stay open, and
    /// rows to seal.
    pub fn split_output(&self, index: usize) -> Result<(Vec<RecordBatch>, Vec<RecordBatch>)> {
        let Some(keyed) = self.keyed() else { return Ok((Vec::new(), Vec::new())) };
        keyed.split_output(index, &self.group, &self.watermarks)
    }

    /// The fold of one keyed pipeline with every bookkeeping column, all rows as open; `None`
    /// before the first fold.
    pub fn open_output(&self, index: usize) -> Result<Option<Vec<RecordBatch>>> {
        self.keyed().map_or(Ok(None), |keyed| keyed.open_output(index, &self.group, self.partition))
    }

    /// After everything was committed: drops samples and finished keys from memory.
    pub fn seal(&mut self) -> Result<()> {
        match &mut self.rows {
            Rows::Keyed(keyed) => keyed.seal(&self.group, &self.watermarks)?,
            Rows::Samples(samples) => samples.clear(),
        }
        self.dirty.iter_mut().for_each(BTreeSet::clear);
        if let Some(invalidation) = &mut self.invalidation {
            let keyed = match &self.rows {
                Rows::Keyed(keyed) => Some(keyed),
                Rows::Samples(_) => None,
            };
            invalidation.clear_committed(|key| keyed.is_some_and(|k| k.holds(key)), self.group.raw.schema);
        }
        self.committed = self.absorbed;
        self.recover_to = None;
        self.changed = false;
        self.closed_before = self.watermark();
        Ok(())
    }
}
