//! Imports a file of GPU samples.

use std::hash::Hasher;

use tidegate_log::EventLog;
use xxhash_rust::xxh3::Xxh3;

use super::held::{HOUR_MS, HeldSamples, TooManyDevices};
use super::mapper::{SampleMapper, SampleRow};
use super::writer::SampleWriter;
use crate::duplicates::{Duplicates, RowCheck};
use crate::error::{ImportError, Reject, RejectCode};
use crate::fields::{ColumnBinder, Row, RowContext, cluster_field};
use crate::mapping::Mapping;
use crate::options::{ImportOptions, time_reader};
use crate::outbox::Place;
use crate::rows::{Next, Rows};
use crate::summary::{ImportSummary, PROGRESS_EVERY_ROWS, Progress};
use crate::time::TimeReader;

/// Most values held at once; about 250 MiB.
const MOST_VALUES: usize = 6_000_000;

/// Imports the rows of a file. Hours are written when the file ends. Where it has more values than
/// are held at once, the oldest hours are written before, and a later row of these is a dead
/// letter: a file of any size can be read if it is ordered by time.
pub(crate) fn import(
    rows: &mut dyn Rows,
    origin: String,
    mapping: &Mapping,
    options: &ImportOptions,
    log: &dyn EventLog,
    progress: &mut dyn FnMut(Progress),
) -> Result<ImportSummary, ImportError> {
    let binder = ColumnBinder { mapping, file: &origin, columns: rows.columns() };
    let context = binder.context()?;
    let mapper = SampleMapper::new(&binder, cluster_field(&binder, options.cluster.as_deref())?)?;
    let mut run = Run {
        origin: &origin,
        cluster: options.cluster.as_deref().unwrap_or_default(),
        interval_ms: i64::try_from(options.interval_ms.or(mapping.interval_ms).unwrap_or_default())
            .unwrap_or(i64::MAX),
        context,
        mapper,
        times: time_reader(mapping, options),
        duplicates: Duplicates::default(),
        held: HeldSamples::default(),
        writer: SampleWriter::new(log, &mapping.name, options.topics)?,
        summary: ImportSummary::default(),
        closed_ms: i64::MIN,
        last_ms: 0,
    };
    loop {
        match rows.next()? {
            Next::End => break,
            Next::Bad(reject) => run.reject(rows, reject)?,
            Next::Row => run.row(rows)?,
        }
        run.summary.rows_read += 1;
        if run.summary.rows_read.is_multiple_of(PROGRESS_EVERY_ROWS) {
            progress(Progress::of(rows, run.summary.rows_read));
        }
    }
    progress(Progress::of(rows, run.summary.rows_read));
    run.finish()
}

struct Run<'a> {
    origin: &'a str,
    /// Cluster of dead letters: an unreadable row does not name one.
    cluster: &'a str,
    interval_ms: i64,
    context: RowContext,
    mapper: SampleMapper,
    times: TimeReader,
    duplicates: Duplicates,
    held: HeldSamples,
    writer: SampleWriter<'a>,
    summary: ImportSummary,
    /// Hours before this one are written.
    closed_ms: i64,
    /// Largest time so far.
    last_ms: i64,
}

impl Run<'_> {
    fn row(&mut self, rows: &dyn Rows) -> Result<(), ImportError> {
        if self.context.skips(rows) {
            self.summary.rows_skipped += 1;
            return Ok(());
        }
        let row = match self.mapper.row(Row { context: &self.context, rows }, &mut self.times) {
            Ok(Some(row)) => row,
            Ok(None) => {
                self.summary.rows_skipped += 1;
                return Ok(());
            }
            Err(reject) => return self.reject(rows, reject),
        };
        if row.tick_ms < self.closed_ms {
            let reason = "the samples of its hour are written already: the file is too large to be read in any \
                          order; order it by time, and import it again into a new data folder";
            return self.reject(rows, Reject::new(RejectCode::OutOfOrder, reason));
        }
        match row.identity.map_or(RowCheck::New, |id| self.duplicates.check(id, fingerprint(&row))) {
            RowCheck::Repeated => {
                self.summary.rows_duplicate += 1;
                return Ok(());
            }
            RowCheck::Conflicting => {
                let reason = "an earlier row has the same GPU, time and metric, and other values";
                return self.reject(rows, Reject::new(RejectCode::DuplicateId, reason));
            }
            RowCheck::New => {}
        }
        for (what, value) in &row.values {
            if let Err(TooManyDevices) = self.held.add(&row.node, &row.device, (row.tick_ms, *what, *value)) {
                let reason = "its node has more GPUs and MIG instances than a node can have";
                return self.reject(rows, Reject::new(RejectCode::TooManyGpus, reason));
            }
        }
        self.summary.rows_accepted += 1;
        self.last_ms = self.last_ms.max(row.tick_ms);
        if self.held.len() > MOST_VALUES { self.make_room() } else { Ok(()) }
    }

    /// Writes the oldest hours, until half of what may be held is there.
    fn make_room(&mut self) -> Result<(), ImportError> {
        let hours: Vec<i64> = self.held.hours().collect();
        let [older @ .., _] = hours.as_slice() else { return Ok(()) };
        if older.is_empty() {
            return Err(ImportError::Span(format!(
                "{} has more than {MOST_VALUES} values of one hour; split it by node",
                self.origin
            )));
        }
        for hour_ms in older {
            if self.held.len() <= MOST_VALUES / 2 {
                break;
            }
            self.writer.hour(&mut self.held, *hour_ms, self.interval_ms, false)?;
            self.closed_ms = hour_ms + HOUR_MS;
        }
        Ok(())
    }

    fn reject(&mut self, rows: &dyn Rows, reject: Reject) -> Result<(), ImportError> {
        let place = Place {
            cluster: self.cluster,
            origin: self.origin,
            line: Some(rows.line()),
            at_ms: self.last_ms,
            raw: rows.raw(),
        };
        self.writer.reject(reject, place)
    }

    fn finish(mut self) -> Result<ImportSummary, ImportError> {
        let hours: Vec<i64> = self.held.hours().collect();
        for hour_ms in hours {
            self.writer.hour(&mut self.held, hour_ms, self.interval_ms, false)?;
        }
        (self.summary.events_written, self.summary.events_already_present) = self.writer.finish()?;
        self.summary.rows_rejected = self.writer.rejected;
        self.summary.clusters = self.writer.clusters;
        self.summary.rows_not_checked_for_duplicates = self.duplicates.unchecked;
        Ok(self.summary)
    }
}

fn fingerprint(row: &SampleRow) -> u32 {
    let mut hash = Xxh3::new();
    for (what, value) in &row.values {
        hash.write(format!("{what:?} {value:?}").as_bytes());
    }
    hash.finish() as u32
}
