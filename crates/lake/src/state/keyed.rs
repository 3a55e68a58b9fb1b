//! Keyed state: the events of all keys that may still change, and what they fold to.
//!
//! Only *open* keys are here: jobs that wait or run, and those that ended less than
//! [`SEAL_AFTER_MS`] ago. A finished key is sealed: its rows stay in the lake and leave memory. A
//! later event of it brings its committed events back ([`KeyedState::revive`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray,
};
use arrow::compute::{filter_record_batch, not};
use arrow::datatypes::{Field, Int64Type, Schema, TimestampMicrosecondType};
use datafusion::prelude::SessionContext;
use hashbrown::{HashMap, HashSet};

use super::bloom::SealedKeys;
use super::dedup::DedupWindow;
use super::known::{KnownKeys, first_offset};
use super::recent::{RecentKeys, SEAL_AFTER_MS, recent_day};
use super::watermarks::Watermarks;
use crate::batch::{compact, concat};
use crate::error::Result;
use crate::exec::run::run_keyed;
use crate::pipeline::plan::{AS_OF, Group, Planned};
use crate::raw::facts::{EventId, Facts, facts_from_rows, key_hash};
use crate::raw::table::RawTable;
use crate::table::{KEY, OFFSET, timestamp_type};
use crate::window::Span;

/// Summary of an open key.
#[derive(Debug, Clone, Copy)]
struct KeyState {
    /// Event time of its first and last event, µs.
    first: i64,
    last: i64,
    /// Time, attempt and [`Facts::terminal`] of its last event. One attempt may start and end and
    /// the next one start at a single instant, so a later attempt sorts after an earlier one, and
    /// an attempt's end after its start.
    latest: (i64, i64, bool),
    /// Index of its cluster in [`Watermarks`].
    cluster: u32,
}

impl KeyState {
    /// No further event is expected: the last one says so, or no event ever said that more would
    /// come. The latter is a job with only steps or device holds, as those of a pod.
    fn terminal(&self) -> bool {
        self.latest.2 || self.latest.0 == i64::MIN
    }
}

/// How events that were committed before are recognised.
#[derive(Debug)]
enum Dedup {
    /// By key, for ever: the key's committed events are read back.
    SealedKeys(SealedKeys),
    /// By event, within a window of offsets.
    Window(DedupWindow),
}

/// Events of open keys in one log partition.
#[derive(Debug)]
pub struct KeyedState {
    /// Events of open keys, full raw schema.
    events: Vec<RecordBatch>,
    /// Identities of these events.
    seen: HashSet<EventId>,
    keys: HashMap<i64, KeyState>,
    dedup: Dedup,
    /// Events whose keys may be sealed in the lake, full raw schema.
    waiting: Vec<(RecordBatch, Vec<Facts>)>,
    /// Keys that were sealed and are open again: their sealed rows are to be replaced.
    revived: HashSet<i64>,
    /// Of keys that were sealed lately; `None` where nobody asks.
    recent: Option<Box<RecentKeys>>,
    /// Result of the last fold, per keyed pipeline; public columns.
    outputs: Vec<Vec<RecordBatch>>,
}

/// Events that were absorbed: all that were handed in, less repeats.
#[derive(Debug)]
pub(super) struct Absorbed {
    pub batch: RecordBatch,
    pub facts: Vec<Facts>,
    /// Their keys that were open before, and not finished.
    were_open: HashSet<i64>,
}

impl KeyedState {
    pub(super) fn new(raw: &RawTable) -> Self {
        Self {
            events: Vec::new(),
            seen: HashSet::new(),
            keys: HashMap::new(),
            dedup: match raw.has_dedup_window {
                true => Dedup::Window(DedupWindow::default()),
                false => Dedup::SealedKeys(SealedKeys::default()),
            },
            waiting: Vec::new(),
            revived: HashSet::new(),
            recent: None,
            outputs: Vec::new(),
        }
    }

    /// Keys that were sealed and are open again since the last commit.
    pub fn revived(&self) -> &HashSet<i64> {
        &self.revived
    }

    /// Keeps events of keys that are sealed from now on.
    pub(super) fn keep_recent(&mut self) {
        self.recent = Some(Box::default());
    }

    /// Events of keys that were sealed lately.
    pub fn recent(&self) -> Option<&RecentKeys> {
        self.recent.as_deref()
    }

    /// On start: events of keys that were sealed in the days since `from`, µs.
    pub(super) fn restore_recent_keys(
        &mut self,
        events: RecordBatch,
        from: i64,
        watermark: i64,
    ) -> Result<()> {
        let Some(recent) = &mut self.recent else { return Ok(()) };
        recent.forget_before(from);
        let mut last = HashMap::new();
        let times = events.column_by_name("event_time").expect("raw rows have a time");
        let times = times.as_primitive::<TimestampMicrosecondType>().values();
        for (key, time) in int_column(&events, KEY).values().iter().zip(times) {
            let last = last.entry(*key).or_insert(*time);
            *last = (*time).max(*last);
        }
        recent.add(events, last, watermark)
    }

    /// Keys of the events that wait.
    pub fn waiting_keys(&self) -> BTreeSet<i64> {
        self.waiting.iter().flat_map(|(_, facts)| facts).map(|f| f.key).collect()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn take_waiting(&mut self) -> Vec<(RecordBatch, Vec<Facts>)> {
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn restore_key(&mut self, key: i64) {
        if let Dedup::SealedKeys(sealed) = &mut self.dedup {
            sealed.insert(key);
        }
    }

    pub(super) fn restore_known(&mut self, keys: SealedKeys) {
        if let Dedup::SealedKeys(sealed) = &mut self.dedup {
            *sealed = keys;
        }
    }

    pub(super) fn may_know(&self, key: i64) -> bool {
        match &self.dedup {
            Dedup::SealedKeys(sealed) => sealed.contains(key),
            Dedup::Window(_) => true,
        }
    }

    /// What a start at `offset`, with nothing absorbed since, has to know.
    pub(super) fn known_keys(&mut self, offset: u64, watermarks: &Watermarks) -> Option<KnownKeys> {
        let Dedup::SealedKeys(sealed) = &mut self.dedup else { return None };
        if !self.waiting.is_empty() {
            return None;
        }
        // A key that is open now may be sealed by then, without an event of its own.
        self.keys.keys().for_each(|key| sealed.insert(*key));
        let recent = self.recent.iter();
        let held_from = first_offset(self.events.iter().chain(recent.clone().flat_map(|r| r.events())));
        let watermarks = watermarks.by_name().into_iter().filter(|(_, time)| *time > i64::MIN);
        Some(KnownKeys {
            offset,
            watermarks: watermarks.map(|(cluster, time)| (cluster.to_owned(), time)).collect(),
            held: self.keys.keys().copied().chain(recent.flat_map(|r| r.keys())).collect(),
            held_from: held_from.unwrap_or(offset),
            keys: sealed.clone(),
        })
    }

    pub(super) fn restore_recent(&mut self, events: Vec<(u64, EventId)>) {
        if let Dedup::Window(window) = &mut self.dedup {
            window.restore(events);
        }
    }

    /// Holds committed events of keys that never were sealed.
    pub(super) fn restore(&mut self, batch: RecordBatch, group: &Group, watermarks: &mut Watermarks) {
        let facts = facts_from_rows(&batch, !group.keyed.is_empty());
        self.seen.extend(facts.iter().map(Facts::id));
        self.hold(batch, &facts, watermarks);
    }

    /// Holds committed events of sealed keys, which are open again.
    pub(super) fn revive(
        &mut self,
        batch: RecordBatch,
        group: &Group,
        watermarks: &mut Watermarks,
    ) -> Result<()> {
        let facts = facts_from_rows(&batch, !group.keyed.is_empty());
        self.seen.extend(facts.iter().map(Facts::id));
        self.revived.extend(facts.iter().map(|f| f.key));
        self.hold(batch, &facts, watermarks);
        match &mut self.recent {
            Some(recent) => recent.remove(&self.revived),
            None => Ok(()),
        }
    }

    /// Returns the events that can be absorbed now. Repeats within the dedup window are dropped;
    /// events whose key may be sealed are put aside.
    pub(super) fn admit(
        &mut self,
        batch: RecordBatch,
        facts: Vec<Facts>,
    ) -> Result<(RecordBatch, Vec<Facts>)> {
        let (keys, dedup) = (&self.keys, &mut self.dedup);
        let (admitted, waits): (BooleanArray, bool) = match dedup {
            Dedup::Window(window) => {
                let offsets = int_column(&batch, OFFSET).values();
                let is_new = |(fact, offset): (&Facts, &i64)| Some(window.insert(*offset as u64, fact.id()));
                (facts.iter().zip(offsets).map(is_new).collect(), false)
            }
            Dedup::SealedKeys(sealed) => {
                let is_open = |f: &Facts| Some(keys.contains_key(&f.key) || !sealed.contains(f.key));
                (facts.iter().map(is_open).collect(), true)
            }
        };
        if admitted.true_count() == facts.len() {
            return Ok((batch, facts));
        }
        let pick = |wanted: bool| {
            let picked = facts.iter().zip(&admitted).filter(move |(_, a)| *a == Some(wanted));
            picked.map(|(fact, _)| *fact).collect::<Vec<_>>()
        };
        if waits {
            self.waiting.push((filter_record_batch(&batch, &not(&admitted)?)?, pick(false)));
        }
        Ok((filter_record_batch(&batch, &admitted)?, pick(true)))
    }

    /// Holds events of keys that are open or new; `None` if all of them are repeats.
    pub(super) fn absorb(
        &mut self,
        batch: &RecordBatch,
        facts: &[Facts],
        watermarks: &mut Watermarks,
    ) -> Result<Option<Absorbed>> {
        let keep: BooleanArray = facts.iter().map(|f| Some(self.seen.insert(f.id()))).collect();
        if keep.true_count() == 0 {
            return Ok(None);
        }
        let kept: Vec<Facts> =
            facts.iter().zip(&keep).filter(|(_, k)| *k == Some(true)).map(|(f, _)| *f).collect();
        let batch =
            if keep.true_count() == facts.len() { batch.clone() } else { filter_record_batch(batch, &keep)? };
        let is_open = |fact: &&Facts| self.keys.get(&fact.key).is_some_and(|key| !key.terminal());
        let were_open = kept.iter().filter(is_open).map(|fact| fact.key).collect();
        self.hold(batch.clone(), &kept, watermarks);
        Ok(Some(Absorbed { batch, facts: kept, were_open }))
    }

    fn hold(&mut self, batch: RecordBatch, facts: &[Facts], watermarks: &mut Watermarks) {
        let clusters = watermarks.indexes(&batch);
        for (fact, cluster) in facts.iter().zip(clusters) {
            watermarks.advance(cluster, fact.observed);
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

    /// Event time of a key's first event, µs; `i64::MIN` if it is not open.
    pub(super) fn first_event_time(&self, key: i64) -> i64 {
        self.keys.get(&key).map_or(i64::MIN, |state| state.first)
    }

    /// Whether a cluster has a key for which more events are expected.
    pub(super) fn has_open_key(&self, cluster: u32) -> bool {
        self.keys.values().any(|key| key.cluster == cluster && !key.terminal())
    }

    /// Whether the key is in memory.
    pub fn holds(&self, key: i64) -> bool {
        self.keys.contains_key(&key)
    }

    /// The span of each key that changed.
    ///
    /// A key that was open reached to its cluster's watermark until now, even if it turns out to
    /// have ended long before: the windows in between hold rows that must go.
    pub(super) fn changed_spans(
        &self,
        absorbed: &Absorbed,
        watermarks: &Watermarks,
        watermarks_before: &[i64],
    ) -> Vec<Span> {
        let changed: HashSet<i64> = absorbed.facts.iter().map(|f| f.key).collect();
        let span = |key: i64| {
            let state = &self.keys[&key];
            let reached = match (state.terminal(), absorbed.were_open.contains(&key)) {
                (false, _) => watermarks.of(state.cluster),
                (true, true) => watermarks_before.get(state.cluster as usize).copied().unwrap_or(i64::MIN),
                (true, false) => i64::MIN,
            };
            (state.first, state.last.max(reached))
        };
        changed.into_iter().map(span).collect()
    }

    pub(super) async fn fold(
        &mut self,
        ctx: &SessionContext,
        group: &Group,
        watermarks: &Watermarks,
    ) -> Result<()> {
        if group.keyed.is_empty() {
            return Ok(());
        }
        let raw = self
            .events
            .iter()
            .map(|batch| with_as_of(batch, group, watermarks))
            .collect::<Result<Vec<_>>>()?;
        let mut tables = vec![(group.raw.spec.name.clone(), raw)];
        for planned in &group.keyed {
            let output = run_keyed(ctx, planned, &tables).await?;
            tables.push((planned.spec.name.clone(), output));
        }
        self.outputs = tables.into_iter().skip(1).map(|(_, rows)| rows).collect();
        Ok(())
    }

    pub(super) fn raw_rows_from(&self, offset: u64) -> Result<Vec<RecordBatch>> {
        let fresh = |batch: &RecordBatch| -> BooleanArray {
            int_column(batch, OFFSET).iter().map(|o| Some(o.is_some_and(|o| o as u64 >= offset))).collect()
        };
        let rows = self.events.iter().map(|batch| {
            let fresh = fresh(batch);
            // A copy of all that is new, each second, is what a flood must not cost.
            Ok(if fresh.true_count() == batch.num_rows() {
                batch.clone()
            } else {
                filter_record_batch(batch, &fresh)?
            })
        });
        rows.collect::<Result<Vec<_>>>()
    }

    pub(super) fn split_output(
        &self,
        index: usize,
        group: &Group,
        watermarks: &Watermarks,
    ) -> Result<(Vec<RecordBatch>, Vec<RecordBatch>)> {
        let (mut stay, mut seal) = (Vec::new(), Vec::new());
        for rows in &self.outputs[index] {
            let rows = with_key(group, &group.keyed[index], rows)?;
            let open: BooleanArray = int_column(&rows, KEY)
                .iter()
                .map(|k| Some(k.is_some_and(|k| !self.is_finished(k, group, watermarks))))
                .collect();
            stay.push(filter_record_batch(&rows, &open)?);
            seal.push(filter_record_batch(&rows, &not(&open)?)?);
        }
        Ok((stay, seal))
    }

    pub(super) fn open_output(
        &self,
        index: usize,
        group: &Group,
        partition: u32,
    ) -> Result<Option<Vec<RecordBatch>>> {
        let planned = &group.keyed[index];
        let public = planned.spec.columns.len();
        let full = |rows: &RecordBatch| {
            let rows = with_key(group, planned, rows)?;
            let mut columns = rows.columns()[..public].to_vec();
            columns.push(Arc::new(Int32Array::from_value(partition as i32, rows.num_rows())));
            columns.push(Arc::new(BooleanArray::from(vec![true; rows.num_rows()])));
            columns.push(Arc::clone(&rows.columns()[public]));
            Ok(RecordBatch::try_new(planned.spec.full_schema(), columns)?)
        };
        self.outputs.get(index).map(|output| output.iter().map(full).collect()).transpose()
    }

    /// Drops finished keys from memory.
    pub(super) fn seal(&mut self, group: &Group, watermarks: &Watermarks) -> Result<()> {
        let finished = |key: &i64| self.is_finished(*key, group, watermarks);
        let finished: HashSet<i64> = self.keys.keys().copied().filter(finished).collect();
        self.remember_recent(&finished, watermarks)?;
        self.keys.retain(|key, _| !finished.contains(key));
        self.seen.retain(|(key, _)| !finished.contains(key));
        if let Dedup::SealedKeys(sealed) = &mut self.dedup {
            finished.iter().for_each(|key| sealed.insert(*key));
        }
        let stay = |batch: &RecordBatch| -> BooleanArray {
            int_column(batch, KEY).iter().map(|k| Some(k.is_some_and(|k| !finished.contains(&k)))).collect()
        };
        let kept = self.events.iter().map(|batch| Ok(filter_record_batch(batch, &stay(batch))?));
        let kept = concat(&group.raw.spec.full_schema(), &kept.collect::<Result<Vec<_>>>()?)?;
        // Few rows stay of many batches. One batch with buffers of its own frees all the others.
        self.events = if kept.num_rows() == 0 { Vec::new() } else { vec![compact(&kept)?] };
        self.outputs.clear();
        self.revived.clear();
        Ok(())
    }

    /// Keeps events of keys that are to be sealed.
    fn remember_recent(&mut self, finished: &HashSet<i64>, watermarks: &Watermarks) -> Result<()> {
        let (Some(recent), Some(watermark)) = (&mut self.recent, watermarks.latest()) else { return Ok(()) };
        let day = recent_day(watermark);
        let last = |key: &i64| Some((*key, self.keys.get(key)?.last)).filter(|(_, last)| *last >= day);
        let last: HashMap<i64, i64> = finished.iter().filter_map(last).collect();
        let mut events = Vec::new();
        for batch in self.events.iter().filter(|_| !last.is_empty()) {
            let is_kept: BooleanArray =
                int_column(batch, KEY).values().iter().map(|key| Some(last.contains_key(key))).collect();
            events.push(filter_record_batch(batch, &is_kept)?);
        }
        let Some(first) = events.first() else {
            return match self.events.first() {
                Some(batch) => recent.add(batch.slice(0, 0), last, watermark),
                None => Ok(()),
            };
        };
        let events = compact(&concat(&first.schema(), &events)?)?;
        recent.add(events, last, watermark)
    }

    fn is_finished(&self, key: i64, group: &Group, watermarks: &Watermarks) -> bool {
        self.keys.get(&key).is_none_or(|state| {
            state.terminal()
                && (group.keyed.is_empty()
                    || state.last + SEAL_AFTER_MS * 1_000 <= watermarks.of(state.cluster))
        })
    }
}

/// Raw rows as keyed pipelines see them: public columns, and the watermark of each row's cluster.
fn with_as_of(raw: &RecordBatch, group: &Group, watermarks: &Watermarks) -> Result<RecordBatch> {
    let observed = watermarks.by_name();
    let clusters = raw.column_by_name("cluster").expect("raw tables have a cluster").as_string_view();
    let as_of: TimestampMicrosecondArray =
        clusters.iter().map(|c| observed.get(c.unwrap_or_default()).copied()).collect();
    let spec = &group.raw.spec;
    let mut fields: Vec<Field> = spec.public_schema().fields().iter().map(|f| f.as_ref().clone()).collect();
    fields.push(Field::new(AS_OF, timestamp_type(), true));
    let mut columns: Vec<ArrayRef> = raw.columns()[..spec.columns.len()].to_vec();
    columns.push(Arc::new(as_of.with_timezone("UTC")));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// Output of a keyed pipeline with the hash of its key, in the table's file schema.
fn with_key(group: &Group, planned: &Planned, output: &RecordBatch) -> Result<RecordBatch> {
    let per = &group.raw.spec.key;
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

fn int_column<'a>(batch: &'a RecordBatch, name: &str) -> &'a Int64Array {
    batch.column_by_name(name).expect("bookkeeping column").as_primitive::<Int64Type>()
}
