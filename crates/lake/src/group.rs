//! State of one group in one log partition: the events of all keys that may still change, and what
//! they fold to.
//!
//! Only *open* keys live here (jobs that wait or run, and those that ended less than
//! [`SEAL_AFTER_MS`] ago). When a key is sealed its rows stay in the lake for good; a later event
//! of it brings its events back ([`GroupState::revive`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray,
};
use arrow::compute::{filter_record_batch, not};
use arrow::datatypes::{Field, Int64Type, Schema, TimestampMicrosecondType};
use datafusion::prelude::SessionContext;
use hashbrown::{HashMap, HashSet};

use crate::batch::{compact, concat};
use crate::error::Result;
use crate::exec::run_keyed;
use crate::plan::{AS_OF, Group, Planned};
use crate::raw::{Facts, RawTable, goes_on, key_hash, says_whether_done};
use crate::samples::{BatchId, HeldSamples, Recent, SampleChunk};
use crate::seen::SeenKeys;
use crate::table::{EVENT, KEY, Layout, OFFSET, timestamp_type};
use crate::touched::Touched;
use crate::window::Span;

/// How long after its last event a finished key stays open for stragglers, in event time.
pub const SEAL_AFTER_MS: i64 = 3_600_000;

/// What is known of an open key.
#[derive(Debug, Clone, Copy)]
struct KeyState {
    /// Event time of its first and last event, µs.
    first: i64,
    last: i64,
    /// Time, attempt and [`Facts::terminal`] of its last event. At one instant an attempt may start
    /// and end, and the next one start, so a later attempt comes after an earlier one, and the end
    /// of an attempt after its start.
    latest: (i64, i64, bool),
    /// Index into `clusters`.
    cluster: u32,
}

impl KeyState {
    /// Nothing more is expected: its last event says so, or no event ever said that something is.
    /// That is a job of which only steps or held devices are known, as that of a pod.
    fn terminal(&self) -> bool {
        self.latest.2 || self.latest.0 == i64::MIN
    }
}

/// State of one group in one log partition.
#[derive(Debug)]
pub struct GroupState {
    pub group: Group,
    pub partition: u32,
    /// Everything below this offset is committed in every table of the group.
    pub committed: u64,
    /// Everything below this offset has been absorbed.
    pub absorbed: u64,
    /// Something was taken in that the lake does not have yet.
    pub changed: bool,
    /// Watermark at the last commit, µs: windows that end before it (and their lateness) had
    /// closed.
    pub closed_before: Option<i64>,
    /// After a crash between the commits of one flush: where that flush ended. The next flush must
    /// end there too.
    pub recover_to: Option<u64>,
    /// Samples that are not committed, in a group of samples: it has no keys, and nothing of what
    /// follows for them.
    pub samples: HeldSamples,
    /// Events of open keys, full raw schema.
    events: Vec<RecordBatch>,
    seen_events: HashSet<(i64, i64)>,
    keys: HashMap<i64, KeyState>,
    sealed: SeenKeys,
    /// Instead of `sealed`, where only repeats that come soon are known.
    recent: Recent,
    /// Events whose keys may be sealed in the lake, full raw schema.
    waiting: Vec<(RecordBatch, Vec<Facts>)>,
    /// Keys that were sealed in the lake and are open again; their sealed rows are to be replaced.
    pub revived: HashSet<i64>,
    /// Up to when each cluster was observed, µs.
    clusters: Vec<(String, i64)>,
    /// Fold of the open keys, per keyed pipeline; public columns.
    pub outputs: Vec<Vec<RecordBatch>>,
    /// Segments that must be recomputed of each windowed pipeline that is computed anew.
    pub dirty: Vec<BTreeSet<i64>>,
    /// `None` where nothing is put together from it.
    touched: Option<Touched>,
}

impl GroupState {
    pub fn new(group: Group, partition: u32, committed: u64, recover_to: Option<u64>) -> Self {
        let dirty = vec![BTreeSet::new(); group.computed_anew().count()];
        let touched = group.is_joined.then(Touched::default);
        Self {
            group,
            partition,
            committed,
            absorbed: committed,
            changed: false,
            closed_before: None,
            recover_to,
            samples: HeldSamples::default(),
            events: Vec::new(),
            seen_events: HashSet::new(),
            keys: HashMap::new(),
            sealed: SeenKeys::default(),
            recent: Recent::default(),
            waiting: Vec::new(),
            revived: HashSet::new(),
            clusters: Vec::new(),
            outputs: Vec::new(),
            dirty,
            touched,
        }
    }

    pub fn raw(&self) -> &RawTable {
        &self.group.raw
    }

    /// Latest time up to which any cluster was observed, µs.
    pub fn watermark(&self) -> Option<i64> {
        self.clusters.iter().map(|(_, time)| *time).max()
    }

    /// On start: remembers a sealed or open key of the lake.
    pub fn remember_key(&mut self, key: i64) {
        self.sealed.insert(key);
    }

    /// On start: how far a cluster was observed.
    pub fn remember_watermark(&mut self, cluster: &str, time: i64) {
        let index = self.cluster_index(cluster);
        self.clusters[index as usize].1 = self.clusters[index as usize].1.max(time);
        self.closed_before = self.watermark();
    }

    /// Whether events wait for what the lake holds of their keys.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn waiting_keys(&self) -> BTreeSet<i64> {
        self.waiting.iter().flat_map(|(_, facts)| facts).map(|f| f.key).collect()
    }

    /// Takes back the committed events of keys that are open again (`was_open`: they never were
    /// sealed).
    pub fn revive(&mut self, batch: RecordBatch, was_open: bool) {
        let facts = self.facts_of_rows(&batch);
        self.seen_events.extend(facts.iter().map(|f| (f.key, f.event)));
        if !was_open {
            self.revived.extend(facts.iter().map(|f| f.key));
        }
        self.hold(batch, &facts);
    }

    /// Takes new events in. `batch` has the full raw schema, one fact per row.
    ///
    /// An event of a key that may be sealed in the lake waits until [`Self::absorb_waiting`]: one
    /// look into the lake serves all that came since the last.
    pub fn absorb(&mut self, batch: RecordBatch, facts: Vec<Facts>) -> Result<()> {
        if self.raw().knows_lately {
            return self.absorb_unless_lately(&batch, &facts);
        }
        let waits: BooleanArray = facts
            .iter()
            .map(|f| Some(!self.keys.contains_key(&f.key) && self.sealed.contains(f.key)))
            .collect();
        if waits.true_count() == 0 {
            return self.absorb_fresh(&batch, &facts);
        }
        let pick = |wanted: bool| {
            let picked = facts.iter().zip(&waits).filter(move |(_, w)| *w == Some(wanted));
            picked.map(|(fact, _)| *fact).collect::<Vec<_>>()
        };
        self.waiting.push((filter_record_batch(&batch, &waits)?, pick(true)));
        self.absorb_fresh(&filter_record_batch(&batch, &not(&waits)?)?, &pick(false))
    }

    fn absorb_unless_lately(&mut self, batch: &RecordBatch, facts: &[Facts]) -> Result<()> {
        let offsets = int_column(batch, OFFSET).values();
        let recent = &mut self.recent;
        let new: BooleanArray = facts
            .iter()
            .zip(offsets)
            .map(|(fact, offset)| Some(recent.insert(*offset as u64, (fact.key, fact.event))))
            .collect();
        let facts: Vec<Facts> =
            facts.iter().zip(&new).filter(|(_, new)| *new == Some(true)).map(|(fact, _)| *fact).collect();
        self.absorb_fresh(&filter_record_batch(batch, &new)?, &facts)
    }

    /// On start: remembers events that came lately, each with its offset, in any order and as often
    /// as they come.
    pub fn remember_lately(&mut self, events: Vec<(u64, BatchId)>) {
        match self.raw().spec.layout {
            Layout::Samples => self.samples.remember(events),
            _ => self.recent.remember(events),
        }
    }

    /// Takes new samples in, but for batches that came lately. Each touches the windows of its own
    /// times.
    pub fn absorb_samples(&mut self, chunk: SampleChunk) {
        let Some(chunk) = self.samples.absorb(chunk) else { return };
        for (cluster, (first, last)) in chunk.spans() {
            let index = self.cluster_index(cluster) as usize;
            let before = self.clusters[index].1;
            self.clusters[index].1 = before.max(last);
            if let Some(touched) = &mut self.touched {
                touched.add((first.min(before), last));
            }
            for (planned, dirty) in self.group.computed_anew().zip(&mut self.dirty) {
                let segment = planned.pipeline.shape.segment().expect("windowed pipelines have segments");
                segment.mark(first, last, dirty);
            }
        }
        self.changed = true;
    }

    /// Takes in the events that waited; `committed` is what the lake holds of their keys.
    pub fn absorb_waiting(&mut self, committed: Vec<RecordBatch>) -> Result<()> {
        committed.into_iter().for_each(|batch| self.revive(batch, false));
        for (batch, facts) in std::mem::take(&mut self.waiting) {
            self.absorb_fresh(&batch, &facts)?;
        }
        Ok(())
    }

    /// Takes in events of keys that are open or new; duplicates are dropped.
    fn absorb_fresh(&mut self, batch: &RecordBatch, facts: &[Facts]) -> Result<()> {
        let keep: BooleanArray =
            facts.iter().map(|f| Some(self.seen_events.insert((f.key, f.event)))).collect();
        if keep.true_count() == 0 {
            return Ok(());
        }
        let kept: Vec<Facts> =
            facts.iter().zip(&keep).filter(|(_, k)| *k == Some(true)).map(|(f, _)| *f).collect();
        let batch =
            if keep.true_count() == facts.len() { batch.clone() } else { filter_record_batch(batch, &keep)? };
        let before: Vec<i64> = self.clusters.iter().map(|(_, time)| *time).collect();
        let is_open = |fact: &&Facts| self.keys.get(&fact.key).is_some_and(|key| !key.terminal());
        let open: HashSet<i64> = kept.iter().filter(is_open).map(|fact| fact.key).collect();
        self.hold(batch.clone(), &kept);
        self.note_touched(&batch, &kept, &before);
        self.mark_dirty(&kept, &before, &open);
        self.changed = true;
        Ok(())
    }

    fn note_touched(&mut self, batch: &RecordBatch, facts: &[Facts], watermarks_before: &[i64]) {
        if self.touched.is_none() {
            return;
        }
        let of_row = self.cluster_indexes(batch).into_iter();
        let watermarks: Vec<i64> =
            of_row.map(|index| watermarks_before.get(index as usize).copied().unwrap_or(i64::MIN)).collect();
        let first = |key| self.keys.get(&key).map_or(i64::MIN, |state| state.first);
        if let Some(touched) = &mut self.touched {
            touched.note(self.group.raw.schema, batch, facts, &watermarks, first);
        }
    }

    fn hold(&mut self, batch: RecordBatch, facts: &[Facts]) {
        let clusters = self.cluster_indexes(&batch);
        for (fact, cluster) in facts.iter().zip(clusters) {
            let watermark = &mut self.clusters[cluster as usize].1;
            *watermark = (*watermark).max(fact.observed);
            let key = self.keys.entry(fact.key).or_insert(KeyState {
                first: fact.time,
                last: i64::MIN,
                latest: (i64::MIN, -1, false),
                cluster,
            });
            key.first = key.first.min(fact.time);
            if let Some(terminal) = fact.terminal {
                key.latest = key.latest.max((fact.time, fact.attempt, terminal));
            }
            key.last = key.last.max(fact.reach);
        }
        self.events.push(batch);
    }

    /// Marks the windows that a changed key touches, and those that time passed over while keys are
    /// open. A key that was open reached to its cluster's watermark until now, even if it turns out
    /// to have ended long before: those windows hold rows that are to go.
    fn mark_dirty(&mut self, facts: &[Facts], watermarks_before: &[i64], were_open: &HashSet<i64>) {
        let changed: HashSet<i64> = facts.iter().map(|f| f.key).collect();
        let mut spans: Vec<(i64, i64)> = Vec::with_capacity(changed.len());
        for key in changed {
            let state = &self.keys[&key];
            let cluster = state.cluster as usize;
            let reached = match (state.terminal(), were_open.contains(&key)) {
                (false, _) => self.clusters[cluster].1,
                (true, true) => watermarks_before.get(cluster).copied().unwrap_or(i64::MIN),
                (true, false) => i64::MIN,
            };
            spans.push((state.first, state.last.max(reached)));
        }
        for (index, (_, now)) in self.clusters.iter().enumerate() {
            let before = watermarks_before.get(index).copied().unwrap_or(i64::MIN);
            if *now <= before {
                continue;
            }
            // While nothing changes there is still a cluster that is paid for: of one that is new
            // here, from whenever others knew it.
            if let Some(touched) = &mut self.touched {
                touched.add((before, *now));
            }
            let before = if before == i64::MIN { *now } else { before };
            if self.keys.values().any(|k| k.cluster as usize == index && !k.terminal()) {
                spans.push((before, *now));
            }
        }
        for (planned, dirty) in self.group.computed_anew().zip(&mut self.dirty) {
            let segment = planned.pipeline.shape.segment().expect("windowed pipelines have segments");
            spans.iter().for_each(|(from, to)| segment.mark(*from, *to, dirty));
        }
    }

    /// Times whose windows may be others for what was taken in since the last commit; `None` where
    /// nobody asks.
    pub fn touched(&self) -> Option<Vec<Span>> {
        self.touched.as_ref().map(Touched::spans)
    }

    /// Folds all held events through the keyed pipelines.
    pub async fn fold(&mut self, ctx: &SessionContext) -> Result<()> {
        if self.group.keyed.is_empty() {
            return Ok(());
        }
        let raw = self.events.iter().map(|batch| self.with_as_of(batch)).collect::<Result<Vec<_>>>()?;
        let mut tables = vec![(self.raw().spec.name.clone(), raw)];
        for planned in &self.group.keyed {
            let output = run_keyed(ctx, planned, &tables).await?;
            tables.push((planned.spec.name.clone(), output));
        }
        self.outputs = tables.into_iter().skip(1).map(|(_, rows)| rows).collect();
        Ok(())
    }

    /// Held rows of the raw table from `offset` on, full schema.
    pub fn raw_rows_from(&self, offset: u64) -> Result<Vec<RecordBatch>> {
        let fresh = |batch: &RecordBatch| -> BooleanArray {
            int_column(batch, OFFSET).iter().map(|o| Some(o.is_some_and(|o| o as u64 >= offset))).collect()
        };
        let rows = self.events.iter().map(|batch| Ok(filter_record_batch(batch, &fresh(batch))?));
        rows.collect::<Result<Vec<_>>>()
    }

    /// The fold of one keyed pipeline in the table's file schema, as (rows of keys that stay open,
    /// rows to seal).
    pub fn split_output(&self, index: usize) -> Result<(Vec<RecordBatch>, Vec<RecordBatch>)> {
        let planned = &self.group.keyed[index];
        let (mut stay, mut seal) = (Vec::new(), Vec::new());
        for rows in &self.outputs[index] {
            let rows = self.with_key(planned, rows)?;
            let open: BooleanArray = int_column(&rows, KEY)
                .iter()
                .map(|k| Some(k.is_some_and(|k| !self.is_finished(k))))
                .collect();
            stay.push(filter_record_batch(&rows, &open)?);
            seal.push(filter_record_batch(&rows, &not(&open)?)?);
        }
        Ok((stay, seal))
    }

    /// The fold of one keyed pipeline with every bookkeeping column, all rows as open.
    pub fn open_output(&self, index: usize) -> Result<Vec<RecordBatch>> {
        let planned = &self.group.keyed[index];
        let public = planned.spec.columns.len();
        let full = |rows: &RecordBatch| {
            let rows = self.with_key(planned, rows)?;
            let mut columns = rows.columns()[..public].to_vec();
            columns.push(Arc::new(Int32Array::from_value(self.partition as i32, rows.num_rows())));
            columns.push(Arc::new(BooleanArray::from(vec![true; rows.num_rows()])));
            columns.push(Arc::clone(&rows.columns()[public]));
            Ok(RecordBatch::try_new(planned.spec.full_schema(), columns)?)
        };
        self.outputs[index].iter().map(full).collect()
    }

    /// After a commit of everything: finished keys leave memory.
    pub fn seal(&mut self) -> Result<()> {
        let finished: HashSet<i64> = self.keys.keys().copied().filter(|key| self.is_finished(*key)).collect();
        self.keys.retain(|key, _| !finished.contains(key));
        self.seen_events.retain(|(key, _)| !finished.contains(key));
        if !self.raw().knows_lately {
            finished.iter().for_each(|key| self.sealed.insert(*key));
        }
        let stay = |batch: &RecordBatch| -> BooleanArray {
            int_column(batch, KEY).iter().map(|k| Some(k.is_some_and(|k| !finished.contains(&k)))).collect()
        };
        let schema = self.raw().spec.full_schema();
        let kept = self.events.iter().map(|batch| Ok(filter_record_batch(batch, &stay(batch))?));
        let kept = concat(&schema, &kept.collect::<Result<Vec<_>>>()?)?;
        // Few rows stay of many batches: one batch with buffers of its own lets go of all the
        // others.
        self.events = if kept.num_rows() == 0 { Vec::new() } else { vec![compact(&kept)?] };
        self.samples.clear();
        self.outputs.clear();
        self.revived.clear();
        self.dirty.iter_mut().for_each(BTreeSet::clear);
        if let Some(touched) = &mut self.touched {
            touched.committed(|key| self.keys.contains_key(&key), self.group.raw.schema);
        }
        self.committed = self.absorbed;
        self.recover_to = None;
        self.changed = false;
        self.closed_before = self.watermark();
        Ok(())
    }

    fn is_finished(&self, key: i64) -> bool {
        self.keys.get(&key).is_none_or(|state| {
            let observed = self.clusters[state.cluster as usize].1;
            state.terminal()
                && (self.group.keyed.is_empty() || state.last + SEAL_AFTER_MS * 1_000 <= observed)
        })
    }

    fn with_as_of(&self, raw: &RecordBatch) -> Result<RecordBatch> {
        let observed: HashMap<&str, i64> =
            self.clusters.iter().map(|(name, time)| (name.as_str(), *time)).collect();
        let clusters = raw.column_by_name("cluster").expect("raw tables have a cluster").as_string_view();
        let as_of: TimestampMicrosecondArray =
            clusters.iter().map(|c| observed.get(c.unwrap_or_default()).copied()).collect();
        let public = self.raw().spec.columns.len();
        let mut fields: Vec<Field> =
            self.raw().spec.public_schema().fields().iter().map(|f| f.as_ref().clone()).collect();
        fields.push(Field::new(AS_OF, timestamp_type(), true));
        let mut columns: Vec<ArrayRef> = raw.columns()[..public].to_vec();
        columns.push(Arc::new(as_of.with_timezone("UTC")));
        Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
    }

    fn with_key(&self, planned: &Planned, output: &RecordBatch) -> Result<RecordBatch> {
        let per = &self.raw().spec.key;
        let part = |i: usize| {
            output.column_by_name(&per[i]).expect("checked: keyed outputs hold their key").as_string_view()
        };
        let (cluster, name) = (part(0), part(1));
        let keys: Int64Array = cluster
            .iter()
            .zip(name)
            .map(|(c, n)| Some(key_hash(c.unwrap_or_default(), n.unwrap_or_default())))
            .collect();
        let mut columns = output.columns().to_vec();
        columns.push(Arc::new(keys));
        Ok(RecordBatch::try_new(planned.spec.file_schema(), columns)?)
    }

    /// Facts of committed rows, read back from their columns.
    fn facts_of_rows(&self, batch: &RecordBatch) -> Vec<Facts> {
        let text = |name: &str| batch.column_by_name(name).map(|c| c.as_string_view().clone());
        let (kind, state, step) = (text("kind"), text("final_state"), text("step_id"));
        let attempt = batch.column_by_name("attempt_id").map(|c| c.as_primitive::<Int64Type>().clone());
        let (keys, events) = (int_column(batch, KEY), int_column(batch, EVENT));
        let times = batch
            .column_by_name("event_time")
            .expect("raw tables have event_time")
            .as_primitive::<TimestampMicrosecondType>();
        let terminal = |row: usize| match (&kind, &state, &step) {
            (Some(kind), Some(state), Some(step)) => says_whether_done(kind.value(row), step.is_null(row))
                .then(|| {
                    let goes_on = goes_on(state.is_valid(row).then(|| state.value(row)));
                    (kind.value(row) == "ENDED" && !goes_on) || kind.value(row) == "OBSERVED"
                }),
            _ => Some(self.group.keyed.is_empty()),
        };
        let entered =
            batch.column_by_name("entered_time").map(|c| c.as_primitive::<TimestampMicrosecondType>());
        let observed = |row: usize| match entered {
            Some(entered) if entered.is_valid(row) => entered.value(row).min(times.value(row)),
            _ => times.value(row),
        };
        let fact = |row: usize| Facts {
            key: keys.value(row),
            event: events.value(row),
            time: times.value(row),
            reach: times.value(row),
            observed: observed(row),
            attempt: attempt.as_ref().map_or(-1, |a| if a.is_valid(row) { a.value(row) } else { -1 }),
            terminal: terminal(row),
        };
        (0..batch.num_rows()).map(fact).collect()
    }

    fn cluster_indexes(&mut self, batch: &RecordBatch) -> Vec<u32> {
        let clusters =
            batch.column_by_name("cluster").expect("raw tables have a cluster").as_string_view().clone();
        // Rows of one cluster follow each other.
        let mut last = ("", None);
        let mut indexes = Vec::with_capacity(batch.num_rows());
        for cluster in &clusters {
            let cluster = cluster.unwrap_or_default();
            let index = match last {
                (name, Some(index)) if name == cluster => index,
                _ => self.cluster_index(cluster),
            };
            last = (cluster, Some(index));
            indexes.push(index);
        }
        indexes
    }

    fn cluster_index(&mut self, cluster: &str) -> u32 {
        let index = self.clusters.iter().position(|(name, _)| name == cluster).unwrap_or_else(|| {
            self.clusters.push((cluster.to_owned(), i64::MIN));
            self.clusters.len() - 1
        });
        index as u32
    }
}

fn int_column<'a>(batch: &'a RecordBatch, name: &str) -> &'a Int64Array {
    batch.column_by_name(name).expect("bookkeeping column").as_primitive::<Int64Type>()
}
