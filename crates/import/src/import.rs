//! Runs an import: reads rows, writes events and dead letters, and counts both.

use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::EventLog;

use crate::duplicates::{Duplicates, RowCheck};
use crate::error::{ImportError, Reject, RejectCode};
use crate::fields::{ColumnBinder, Row, RowContext};
use crate::jobs::JobScratch;
use crate::mapping::{Kind, Mapping};
use crate::options::{FileFormat, ImportOptions, time_reader};
use crate::outbox::{Outbox, Place};
use crate::row_mapper::RowMapper;
use crate::rows::csv::Dialect;
use crate::rows::exposition::ExpositionRows;
use crate::rows::open::{Source, open, open_lines};
use crate::rows::{Next, Rows};
use crate::samples;
use crate::summary::{ImportSummary, PROGRESS_EVERY_ROWS, Progress};
use crate::time::TimeReader;

/// Imports a file into a log.
///
/// A row that cannot be used becomes a dead letter and the import continues. Importing the same
/// file again, even after a kill halfway, writes only what is missing. After the rows of a jobs
/// file follow the declared nodes, at the first time of their cluster in the file, and one
/// `OBSERVED` event per cluster in every partition, with its largest time. `progress` is called
/// every few thousand rows and at the end.
///
/// # Errors
/// [`ImportError`] if the file cannot be read, lacks a column of the mapping (then nothing is
/// written), or the log fails.
pub fn import(
    source: Source,
    mapping: &Mapping,
    options: &ImportOptions,
    log: &dyn EventLog,
    progress: &mut dyn FnMut(Progress),
) -> Result<ImportSummary, ImportError> {
    let origin = source.name();
    // The mapping's check admits only an ASCII delimiter.
    let dialect = Dialect { delimiter: mapping.csv.delimiter as u8, quoted: mapping.csv.quoted };
    let mut rows = match options.format {
        FileFormat::Table => open(source, dialect)?,
        FileFormat::DcgmText => Box::new(ExpositionRows::new(open_lines(source)?)),
    };
    if mapping.kind == Kind::GpuSamples {
        if !options.fleet.is_empty() {
            return Err(ImportError::NodesWithoutJobs { mapping: mapping.name.clone() });
        }
        return samples::file::import(rows.as_mut(), origin, mapping, options, log, progress);
    }
    let binder = ColumnBinder { mapping, file: &origin, columns: rows.columns() };
    let context = binder.context()?;
    let plan = RowMapper::new(&binder, options.cluster.as_deref())?;
    let mut out = Outbox::new(log, &mapping.name, options.topics);
    out.prepare(plan.schema())?;
    out.prepare(SchemaId::DeadLetter)?;
    if !options.fleet.is_empty() {
        if !matches!(plan, RowMapper::Jobs(_)) {
            return Err(ImportError::NodesWithoutJobs { mapping: mapping.name.clone() });
        }
        out.prepare(SchemaId::NodeEvent)?;
    }
    let mut run = Run {
        origin,
        cluster: options.cluster.clone().unwrap_or_default(),
        context,
        times: time_reader(mapping, options),
        scratch: JobScratch::default(),
        duplicates: Duplicates::default(),
        out,
        summary: ImportSummary::default(),
        last_ms: 0,
    };
    loop {
        match rows.next()? {
            Next::End => break,
            Next::Bad(reject) => run.reject(rows.as_ref(), reject)?,
            Next::Row => run.row(&plan, rows.as_ref())?,
        }
        run.summary.rows_read += 1;
        if run.summary.rows_read.is_multiple_of(PROGRESS_EVERY_ROWS) {
            progress(Progress::of(rows.as_ref(), run.summary.rows_read));
        }
    }
    progress(Progress::of(rows.as_ref(), run.summary.rows_read));
    options.fleet.register(&run.summary.clusters, &mut run.out)?;
    run.finish(matches!(plan, RowMapper::Jobs(_)))
}

/// An import in progress.
struct Run<'a> {
    origin: String,
    /// Cluster of dead letters: an unreadable row does not name one.
    cluster: String,
    context: RowContext,
    times: TimeReader,
    scratch: JobScratch,
    duplicates: Duplicates,
    out: Outbox<'a>,
    summary: ImportSummary,
    /// Largest time of the rows so far.
    last_ms: i64,
}

impl Run<'_> {
    fn row(&mut self, plan: &RowMapper, rows: &dyn Rows) -> Result<(), ImportError> {
        if self.context.skips(rows) {
            self.summary.rows_skipped += 1;
            return Ok(());
        }
        let row = Row { context: &self.context, rows };
        let facts = match plan.row(row, &mut self.times, &mut self.scratch, &mut self.out) {
            Ok(facts) => facts,
            Err(reject) => return self.reject(rows, reject),
        };
        match self.duplicates.check(facts.identity, self.out.row_fingerprint()) {
            RowCheck::Repeated => {
                self.summary.rows_duplicate += 1;
                self.out.drop_row();
                return Ok(());
            }
            RowCheck::Conflicting if facts.unique => {
                let reason = "an earlier row has the same id and other values; on_duplicate_id = \"attempt\" in \
                              the mapping makes such rows attempts of one job";
                return self.reject(rows, Reject::new(RejectCode::DuplicateId, reason));
            }
            RowCheck::New | RowCheck::Conflicting => {}
        }
        self.summary.rows_accepted += 1;
        self.last_ms = self.last_ms.max(facts.last_ms);
        match self.summary.clusters.get_mut(facts.cluster.as_ref()) {
            Some(span) => *span = (span.0.min(facts.first_ms), span.1.max(facts.last_ms)),
            None => {
                self.summary.clusters.insert(facts.cluster.into_owned(), (facts.first_ms, facts.last_ms));
            }
        }
        self.out.accept_row()
    }

    /// Writes the row as a dead letter. Its own time is unknown; the largest time before it keeps
    /// the log's times close together and is the same in every import of the file.
    fn reject(&mut self, rows: &dyn Rows, reject: Reject) -> Result<(), ImportError> {
        *self.summary.rows_rejected.entry(reject.code.as_str()).or_default() += 1;
        let place = Place {
            cluster: &self.cluster,
            origin: &self.origin,
            line: Some(rows.line()),
            at_ms: self.last_ms,
            raw: rows.raw(),
        };
        self.out.dead_letter(reject, place)
    }

    fn finish(mut self, jobs: bool) -> Result<ImportSummary, ImportError> {
        for (cluster, (_, last_ms)) in self.summary.clusters.iter().filter(|_| jobs) {
            self.out.broadcast(&mut Event::Job(v1::JobEvent {
                envelope: Some(v1::Envelope {
                    cluster: cluster.clone(),
                    event_time_ms: *last_ms,
                    ..v1::Envelope::default()
                }),
                kind: v1::JobEventKind::Observed.into(),
                ..v1::JobEvent::default()
            }))?;
        }
        self.out.flush_all()?;
        self.summary.rows_not_checked_for_duplicates = self.duplicates.unchecked;
        self.summary.events_written = self.out.written;
        self.summary.events_already_present = self.out.already_present;
        Ok(self.summary)
    }
}
