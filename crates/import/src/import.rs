//! Runs an import: reads rows, writes events and dead letters, and counts both.

use std::collections::BTreeMap;

use chrono::DateTime;
use chrono_tz::Tz;
use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::{EventLog, TopicConfig};

use crate::duplicates::{Duplicates, RowCheck};
use crate::error::{ImportError, Reject, RejectCode};
use crate::fields::{ColumnBinder, Row, RowContext};
use crate::fleet::Fleet;
use crate::jobs::JobScratch;
use crate::mapping::Mapping;
use crate::outbox::Outbox;
use crate::row_mapper::RowMapper;
use crate::rows::csv::Dialect;
use crate::rows::open::{Source, open};
use crate::rows::{Next, Rows};
use crate::time::TimeReader;

const PROGRESS_EVERY_ROWS: u64 = 4096;

/// Options beside the mapping.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// Cluster of all rows; overrides the file.
    pub cluster: Option<String>,
    /// Time zone of wall times; overrides the mapping.
    pub timezone: Option<Tz>,
    /// Layout of topics that the log lacks.
    pub topics: TopicConfig,
    /// Nodes declared for a history without node events.
    pub fleet: Fleet,
}

impl Default for ImportOptions {
    fn default() -> Self {
        let topics = TopicConfig { partitions: 8, retain_ms: None, retain_bytes: None };
        Self { cluster: None, timezone: None, topics, fleet: Fleet::default() }
    }
}

/// Progress of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read of the file on disk, and its size if known.
    pub bytes_read: u64,
    /// See `bytes_read`.
    pub bytes_total: Option<u64>,
    /// Rows read.
    pub rows: u64,
}

/// Counts of an import: `rows_read` = accepted + duplicates + skipped + all rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// Rows read.
    pub rows_read: u64,
    /// Rows that became events.
    pub rows_accepted: u64,
    /// Rows that repeat an earlier row of the file exactly.
    pub rows_duplicate: u64,
    /// Rows that the mapping skips (`[[skip]]`).
    pub rows_skipped: u64,
    /// Rows written as dead letters, by [`RejectCode::as_str`].
    pub rows_rejected: BTreeMap<&'static str, u64>,
    /// Rows beyond the memory limit of the duplicate check; 0 except for giant files.
    pub rows_not_checked_for_duplicates: u64,
    /// Events appended, dead letters included, and events that an earlier import had already
    /// appended.
    pub events_written: u64,
    /// See `events_written`.
    pub events_already_present: u64,
    /// First and last time of each cluster, ms since the epoch.
    pub clusters: BTreeMap<String, (i64, i64)>,
}

impl ImportSummary {
    /// Number of rows written as dead letters.
    pub fn rejected(&self) -> u64 {
        self.rows_rejected.values().sum()
    }
}

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
    let mut rows = open(source, dialect)?;
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
        times: TimeReader::new(zone(mapping, options), base_ms(mapping)),
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
            progress(run.progress(rows.as_ref()));
        }
    }
    progress(run.progress(rows.as_ref()));
    options.fleet.register(&run.summary.clusters, &mut run.out)?;
    run.finish(matches!(plan, RowMapper::Jobs(_)))
}

/// Zone and base were validated when the mapping was loaded.
fn zone(mapping: &Mapping, options: &ImportOptions) -> Tz {
    let stated = mapping.time.zone.as_ref().and_then(|zone| zone.parse().ok());
    options.timezone.or(stated).unwrap_or(Tz::UTC)
}

fn base_ms(mapping: &Mapping) -> i64 {
    let base = mapping.time.base.as_ref().and_then(|base| DateTime::parse_from_rfc3339(base).ok());
    base.map_or(0, |base| base.timestamp_millis())
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
        self.out.drop_row();
        *self.summary.rows_rejected.entry(reject.code.as_str()).or_default() += 1;
        let letter = v1::DeadLetter {
            envelope: Some(v1::Envelope {
                cluster: self.cluster.clone(),
                event_time_ms: self.last_ms,
                ..v1::Envelope::default()
            }),
            origin: self.origin.clone(),
            line: Some(rows.line()),
            code: reject.code.as_str().to_owned(),
            reason: reject.reason,
            raw: rows.raw(),
            ..v1::DeadLetter::default()
        };
        // A dead letter has everything an event needs, so adding it cannot fail.
        if self.out.add(&mut Event::DeadLetter(letter)).is_err() {
            self.out.drop_row();
        }
        self.out.accept_row()
    }

    fn progress(&self, rows: &dyn Rows) -> Progress {
        let (bytes_read, bytes_total) = rows.progress();
        Progress { bytes_read, bytes_total, rows: self.summary.rows_read }
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
