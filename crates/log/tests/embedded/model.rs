//! Random histories of a partition, against a list in memory.

use proptest::prelude::*;
use tidegate_log::{Appended, EmbeddedLog, EmbeddedOptions, EventLog, LogError, Record, StoredRecord};

use crate::support::{ONE_PARTITION, at, noise_batch, noise_record, reopened};

#[derive(Debug, Clone)]
enum Step {
    /// Source, how far back from its next number it starts, how many records, how large.
    Append(u64, u64, u64, usize),
    /// From where, as a fraction of what is readable, and how much.
    Read(f64, usize),
    FindTime(u64),
    Trim(f64),
    Verify,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_u64, 0..4_u64, 0..12_u64, 0..300_usize).prop_map(|(s, b, n, z)| Step::Append(s, b, n, z)),
        6 => (0.0..1.0, 0..3000_usize).prop_map(|(from, bytes)| Step::Read(from, bytes)),
        2 => (0..60_u64).prop_map(Step::FindTime),
        1 => (0.0..1.0).prop_map(Step::Trim),
        1 => Just(Step::Verify),
        1 => Just(Step::Reopen),
    ]
}

/// What the partition should hold: every record ever written, where batches begin, and how far each
/// source got.
#[derive(Default)]
struct Model {
    records: Vec<Record>,
    batch_starts: Vec<u64>,
    next_seq: [u64; 3],
    start: u64,
}

impl Model {
    fn end(&self) -> u64 {
        self.records.len() as u64
    }

    fn append(&mut self, source: u64, first_seq: u64, count: u64, bytes: usize) -> Appended {
        let next = &mut self.next_seq[source as usize];
        let duplicates = (*next - first_seq).min(count);
        let appended =
            Appended { first_offset: self.records.len() as u64, written: count - duplicates, duplicates };
        if appended.written > 0 {
            self.batch_starts.push(appended.first_offset);
            self.records.extend((*next..first_seq + count).map(|seq| noise_record(source, seq, bytes)));
            *next = first_seq + count;
        }
        appended
    }

    fn read(&self, from: u64, max_bytes: usize) -> Vec<StoredRecord> {
        let mut bytes = 0;
        let fits = |(i, record): &(usize, &Record)| {
            bytes += record.payload.len();
            *i == 0 || bytes <= max_bytes
        };
        let records = self.records[from as usize..].iter().enumerate().take_while(fits);
        records.map(|(i, record)| StoredRecord { offset: from + i as u64, record: record.clone() }).collect()
    }

    fn find_time(&self, event_time_ms: i64) -> u64 {
        let readable = (self.start..).zip(&self.records[self.start as usize..]);
        readable
            .into_iter()
            .find(|(_, r)| r.event_time_ms >= event_time_ms)
            .map_or(self.end(), |(offset, _)| offset)
    }

    fn trim(&mut self, before: u64) {
        let whole = self.batch_starts.iter().rev().find(|start| **start <= before).copied().unwrap_or(0);
        self.start = self.start.max(if before >= self.end() { self.end() } else { whole });
    }

    fn offset(&self, fraction: f64) -> u64 {
        self.start + (fraction * (self.end() - self.start + 1) as f64) as u64
    }
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { segment_batches: 3, memory_table_bytes: 4096, ..Default::default() };
    let mut log = EmbeddedLog::open(dir.path(), options).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    let (at, mut model) = (at("t", 0), Model::default());
    for step in steps {
        match step {
            Step::Append(source, back, count, bytes) => {
                let first_seq = model.next_seq[source as usize].saturating_sub(back);
                let appended = log.append(&at, noise_batch(source, first_seq, count, bytes)).unwrap();
                prop_assert_eq!(appended, model.append(source, first_seq, count, bytes));
            }
            Step::Read(fraction, max_bytes) => {
                let from = model.offset(fraction);
                prop_assert_eq!(log.read(&at, from, max_bytes).unwrap(), model.read(from, max_bytes));
            }
            Step::FindTime(seq) => {
                prop_assert_eq!(log.offset_for_time(&at, seq as i64).unwrap(), model.find_time(seq as i64));
            }
            Step::Trim(fraction) => {
                let before = model.offset(fraction);
                model.trim(before);
                log.trim(&at, before).unwrap();
                let below = model.start.checked_sub(1).map(|below| log.read(&at, below, 1));
                let refused = below.is_none_or(|read| matches!(read, Err(LogError::OffsetOutOfRange { .. })));
                prop_assert!(refused, "records below the start are readable");
            }
            Step::Verify => {
                prop_assert_eq!(log.verify().unwrap().records, model.end() - model.start);
            }
            Step::Reopen => {
                drop(log);
                log = reopened(dir.path(), options);
            }
        }
        let extent = log.extent(&at).unwrap();
        prop_assert_eq!((extent.start, extent.end), (model.start, model.end()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_history_reads_back_as_it_was_written(steps in prop::collection::vec(step(), 1..60)) {
        run(steps)?;
    }
}
