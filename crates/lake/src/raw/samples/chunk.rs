//! Samples in memory, in columns: the values of many messages, metric by metric.
//!
//! Labels are stored once per message or device and not per sample, so a sample takes 8 bytes per
//! collected metric.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use tidegate_events::v1::GpuSampleBatch;
use tidegate_events::v1::gpu_sample_batch::{Column, MissingReason};

use super::metrics::{METRICS, REASONS, is_ratio, metric_index};
use super::processes;
use crate::raw::facts::{EventId, key_hash};
use crate::window::MICROS_PER_MS;

/// Index into [`SampleChunk::texts`].
pub(crate) type TextId = u32;

/// What all samples of a message share.
#[derive(Debug)]
pub(crate) struct Message {
    pub offset: u64,
    pub id: EventId,
    pub cluster: TextId,
    pub node: TextId,
    pub source: TextId,
    pub epoch: i64,
    pub seq: i64,
    /// Earliest and latest tick, µs.
    pub span: (i64, i64),
}

/// The samples of one device in one message, in tick order: adjacent rows of the chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub message: u32,
    pub first_row: u32,
    pub ticks: u32,
    /// Index of its first tick in [`SampleChunk::ticks`].
    pub first_tick: u32,
    pub uuid: TextId,
    pub model: TextId,
    pub mig: Option<TextId>,
    pub index: i64,
    /// Its number in the chunk.
    pub number: u32,
}

/// Values of one metric, by row. Rows beyond the end were not collected.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub values: Vec<i64>,
    /// Ranges of rows whose value is not known, sorted and disjoint.
    pub unknown: Vec<(u32, u32)>,
    /// Of a counter, by number of the run: how much it grew up to the run's first value. Negative,
    /// or beyond the end, means not known.
    pub first_growth: Vec<i64>,
}

impl Values {
    /// Marks rows as not known. `from` must not be before rows marked earlier.
    fn mark(&mut self, from: u32, to: u32) {
        match self.unknown.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ if from < to => self.unknown.push((from, to)),
            _ => {}
        }
    }

    /// The values from a row on, without end; `None` if one is not known.
    pub fn known_from(&self, row: u32) -> impl Iterator<Item = Option<i64>> {
        let mut next = self.unknown.partition_point(|(_, to)| *to <= row);
        (row..).map(move |row| {
            while self.unknown.get(next).is_some_and(|(_, to)| *to <= row) {
                next += 1;
            }
            let unknown = self.unknown.get(next).is_some_and(|(from, _)| *from <= row);
            if unknown { None } else { self.values.get(row as usize).copied() }
        })
    }

    /// The values of the rows if all of them are known.
    pub fn all_known(&self, rows: &std::ops::Range<usize>) -> Option<&[i64]> {
        let next = self.unknown.partition_point(|(_, to)| *to as usize <= rows.start);
        let unknown = self.unknown.get(next).is_some_and(|(from, _)| (*from as usize) < rows.end);
        if unknown { None } else { self.values.get(rows.clone()) }
    }

    fn push_growth(&mut self, first_run: u32, growth: &[i64]) {
        if !growth.is_empty() {
            self.first_growth.resize(first_run as usize, -1);
            self.first_growth.extend_from_slice(growth);
        }
    }
}

/// Samples of one stretch of a log partition.
#[derive(Debug)]
pub struct SampleChunk {
    pub(crate) texts: Vec<String>,
    places: HashMap<String, TextId>,
    pub(crate) messages: Vec<Message>,
    pub(crate) runs: Vec<Run>,
    /// Times of the ticks of each message, µs.
    pub(crate) ticks: Vec<i64>,
    /// By index in [`METRICS`].
    pub(crate) metrics: Vec<Values>,
    /// Text of `missing` by range of rows, sorted. Other rows have none.
    pub(crate) missing: Vec<(u32, u32, TextId)>,
    /// For each text of `missing`, by index in [`Self::texts`]: how many values it names for each
    /// of [`REASONS`].
    pub(crate) unread: HashMap<TextId, [i64; REASONS.len()]>,
    /// Text of `other_metrics` by row, sorted.
    pub(crate) others: Vec<(u32, String)>,
    /// Text of `processes` by row, sorted.
    pub(crate) processes: Vec<(u32, String)>,
    rows: u32,
    /// Ratios are rounded to multiples of this, see
    /// [`RawTable::ratio_step_ppm`](crate::raw::table::RawTable::ratio_step_ppm).
    ratio_step: i64,
}

impl Default for SampleChunk {
    fn default() -> Self {
        Self {
            texts: Vec::new(),
            places: HashMap::new(),
            messages: Vec::new(),
            runs: Vec::new(),
            ticks: Vec::new(),
            metrics: METRICS.iter().map(|_| Values::default()).collect(),
            missing: Vec::new(),
            unread: HashMap::new(),
            others: Vec::new(),
            processes: Vec::new(),
            rows: 0,
            ratio_step: 1,
        }
    }
}

impl SampleChunk {
    /// Without samples yet. Ratios are rounded to multiples of `ppm` millionths.
    pub fn with_ratio_step(ppm: u32) -> Self {
        Self { ratio_step: i64::from(ppm.max(1)), ..Self::default() }
    }

    /// Rows written so far, including those of messages dropped since.
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Adds a message that [`tidegate_events::Event::validate`] accepts.
    pub fn push(&mut self, offset: u64, batch: &GpuSampleBatch) {
        let message = self.messages.len() as u32;
        let (first_row, first_tick) = (self.rows, self.ticks.len() as u32);
        let ticks = batch.tick_delta_ms.len() as u32 + 1;
        let first_run = self.runs.len() as u32;
        let span = self.push_ticks(batch);
        self.push_message(offset, batch, span);
        for (device, info) in batch.devices.iter().enumerate() {
            let run = Run {
                message,
                first_row: first_row + device as u32 * ticks,
                ticks,
                first_tick,
                uuid: self.text(&info.uuid),
                model: self.text(&info.model),
                mig: info.mig_uuid.as_ref().map(|mig| self.text(mig)),
                index: i64::from(info.index),
                number: first_run + device as u32,
            };
            self.runs.push(run);
        }
        self.rows += batch.devices.len() as u32 * ticks;
        let mut others: Vec<&Column> = Vec::new();
        for column in batch.columns.iter().filter(|column| !column.value_delta.is_empty()) {
            match metric_index(&column.name) {
                Some(place) => {
                    self.push_values(place, first_row, column, ticks as usize);
                    self.metrics[place].push_growth(first_run, &column.first_growth);
                }
                None => others.push(column),
            }
        }
        self.push_others(first_row, others, ticks as usize);
        self.push_missing(first_row, batch);
        self.processes.extend(processes::texts(batch, first_row));
    }

    fn push_ticks(&mut self, batch: &GpuSampleBatch) -> (i64, i64) {
        let mut at_ms = batch.first_tick_ms;
        let mut span = (i64::MAX, i64::MIN);
        for delta in std::iter::once(&0).chain(&batch.tick_delta_ms) {
            at_ms += delta;
            let at = at_ms * MICROS_PER_MS;
            span = (span.0.min(at), span.1.max(at));
            self.ticks.push(at);
        }
        span
    }

    fn push_message(&mut self, offset: u64, batch: &GpuSampleBatch, span: (i64, i64)) {
        let envelope = batch.envelope.clone().unwrap_or_default();
        let id = envelope.event_id.first_chunk().map_or(0, |head| i64::from_le_bytes(*head));
        let message = Message {
            offset,
            id: (key_hash(&envelope.cluster, &batch.node), id),
            cluster: self.text(&envelope.cluster),
            node: self.text(&batch.node),
            source: self.text(&envelope.source),
            epoch: i64::try_from(envelope.epoch).unwrap_or(i64::MAX),
            seq: i64::try_from(envelope.seq).unwrap_or(i64::MAX),
            span,
        };
        self.messages.push(message);
    }

    fn push_values(&mut self, place: usize, first_row: u32, column: &Column, ticks: usize) {
        let metric = &mut self.metrics[place];
        let step = if is_ratio(place) { self.ratio_step } else { 1 };
        // Earlier messages did not collect it.
        metric.mark(metric.values.len() as u32, first_row);
        metric.values.resize(first_row as usize, 0);
        for device in column.value_delta.chunks(ticks) {
            let mut value = 0_i64;
            metric.values.extend(device.iter().map(|delta| {
                value = value.wrapping_add(*delta);
                if step == 1 { value } else { value.saturating_add(step / 2).div_euclid(step) * step }
            }));
        }
        let mut runs: Vec<_> = column.missing.iter().map(|m| (first_row + m.first, m.count)).collect();
        runs.sort_unstable();
        runs.into_iter().for_each(|(from, count)| metric.mark(from, from + count));
    }

    /// Metrics without a column of their own, as a JSON object per row.
    fn push_others(&mut self, first_row: u32, mut others: Vec<&Column>, ticks: usize) {
        others.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut texts: BTreeMap<u32, String> = BTreeMap::new();
        for column in others {
            let mut known = vec![true; column.value_delta.len()];
            for missing in &column.missing {
                known[missing.first as usize..][..missing.count as usize].fill(false);
            }
            let mut value = 0_i64;
            for (at, (delta, known)) in column.value_delta.iter().zip(known).enumerate() {
                value = if at % ticks == 0 { *delta } else { value.wrapping_add(*delta) };
                if known {
                    let text = texts.entry(first_row + at as u32).or_insert_with(|| "{".into());
                    let comma = if text.len() > 1 { "," } else { "" };
                    // Names hold letters, digits and underscores only.
                    text.push_str(&format!("{comma}\"{}\":{value}", column.name));
                }
            }
        }
        self.others.extend(texts.into_iter().map(|(row, text)| (row, text + "}")));
    }

    /// Splits the rows of a message where a range of unread values begins or ends. All rows in
    /// between have the same text.
    fn push_missing(&mut self, first_row: u32, batch: &GpuSampleBatch) {
        // Row, whether a range begins there, and its part of the text. Ends sort before beginnings.
        let mut borders: Vec<(u32, bool, String)> = Vec::new();
        for column in &batch.columns {
            for missing in column.missing.iter().filter(|missing| missing.count > 0) {
                let part = format!("{}:{}", column.name, reason(missing.reason));
                borders.push((first_row + missing.first, true, part.clone()));
                borders.push((first_row + missing.first + missing.count, false, part));
            }
        }
        borders.sort_unstable();
        let mut unread: BTreeSet<String> = BTreeSet::new();
        let mut borders = borders.into_iter().peekable();
        while let Some((row, begins, part)) = borders.next() {
            match begins {
                true => drop(unread.insert(part)),
                false => drop(unread.remove(&part)),
            }
            if let Some((next, ..)) = borders.peek()
                && *next > row
                && !unread.is_empty()
            {
                let next = *next;
                let text = self.text(&unread.iter().map(String::as_str).collect::<Vec<_>>().join(","));
                self.unread.entry(text).or_insert_with(|| by_reason(&unread));
                self.missing.push((row, next, text));
            }
        }
    }

    fn text(&mut self, text: &str) -> TextId {
        if let Some(place) = self.places.get(text) {
            return *place;
        }
        let place = self.texts.len() as TextId;
        self.texts.push(text.to_owned());
        self.places.insert(text.to_owned(), place);
        place
    }

    /// Frees what was reserved for further messages.
    pub(crate) fn close(&mut self) {
        self.places = HashMap::new();
        self.metrics.iter_mut().for_each(|metric| metric.values.shrink_to_fit());
        self.runs.shrink_to_fit();
        self.messages.shrink_to_fit();
    }

    /// Drops the messages for which `keep` returns false. It is called in order of offset.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u64, EventId) -> bool) {
        let kept: Vec<bool> = self.messages.iter().map(|m| keep(m.offset, m.id)).collect();
        if kept.contains(&false) {
            self.runs.retain(|run| kept[run.message as usize]);
        }
    }

    /// Cluster, and earliest and latest time (µs), of each message that was not dropped.
    pub fn spans(&self) -> impl Iterator<Item = (&str, (i64, i64))> {
        let mut last = None;
        self.runs.iter().filter(move |run| last.replace(run.message) != Some(run.message)).map(|run| {
            let message = &self.messages[run.message as usize];
            (self.texts[message.cluster as usize].as_str(), message.span)
        })
    }
}

/// A run together with its chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunRef<'a> {
    pub chunk: &'a SampleChunk,
    pub run: Run,
}

impl<'a> RunRef<'a> {
    pub fn message(&self) -> &'a Message {
        &self.chunk.messages[self.run.message as usize]
    }

    pub fn text(&self, place: u32) -> &'a str {
        &self.chunk.texts[place as usize]
    }

    pub(crate) fn rows(&self) -> std::ops::Range<usize> {
        let first = self.run.first_row as usize;
        first..first + self.run.ticks as usize
    }
}

/// How often each reason is named in the parts of a `missing` text.
fn by_reason(parts: &BTreeSet<String>) -> [i64; REASONS.len()] {
    REASONS.map(|reason| parts.iter().filter(|part| part.rsplit(':').next() == Some(reason)).count() as i64)
}

/// Name of a reason in `missing`.
fn reason(number: i32) -> Cow<'static, str> {
    match MissingReason::try_from(number) {
        Ok(MissingReason::Unspecified) => "UNSPECIFIED".into(),
        Ok(reason) => reason.as_str_name().into(),
        // A reason of a newer producer: its number is better than nothing.
        Err(_) => format!("REASON_{number}").into(),
    }
}
