//! Imports step reports of training jobs, one JSON object a line as the agent's socket takes them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::{EventLog, TopicConfig};
use tidegate_readings::step;

use crate::duplicates::{Duplicates, RowCheck};
use crate::error::{ImportError, Reject, RejectCode};
use crate::outbox::{Outbox, Place};
use crate::rows::open::{Source, open_lines};
use crate::summary::{ImportSummary, PROGRESS_EVERY_ROWS, Progress};

/// Longest line, bytes; as the agent's.
const LINE_BYTES: usize = 16 << 10;
/// Most names of unknown fields that are shown.
const MOST_IGNORED: usize = 20;

/// What lines do not say.
#[derive(Debug, Clone)]
pub struct StepOptions {
    /// Cluster of all reports.
    pub cluster: String,
    /// Node of reports that name none.
    pub node: Option<String>,
    /// Layout of topics that the log lacks.
    pub topics: TopicConfig,
}

/// Imports step reports. A line that is none becomes a dead letter. Returns the counts, and names
/// of fields that nothing here knows.
///
/// Importing the same file again writes only what is missing.
///
/// # Errors
/// [`ImportError`] if the file cannot be read or the log fails.
pub fn import_steps(
    source: Source,
    options: &StepOptions,
    log: &dyn EventLog,
    progress: &mut dyn FnMut(Progress),
) -> Result<(ImportSummary, BTreeSet<String>), ImportError> {
    let origin = source.name();
    let mut lines = open_lines(source)?;
    let mut out = Outbox::new(log, "steps", options.topics);
    out.prepare(SchemaId::StepReport)?;
    out.prepare(SchemaId::DeadLetter)?;
    let mut summary = ImportSummary::default();
    let (mut duplicates, mut ignored, mut last_ms) = (Duplicates::default(), BTreeSet::new(), 0);
    while let Some(line) = lines.read(LINE_BYTES)? {
        let report = match line {
            Ok(line) if line.trim().is_empty() => continue,
            Ok(line) => report(line, options.node.as_deref()),
            Err(reject) => Err(reject),
        };
        summary.rows_read += 1;
        match report.and_then(|(report, unknown)| {
            ignored.extend(unknown.into_iter().take(MOST_IGNORED.saturating_sub(ignored.len())));
            add(report, &options.cluster, &mut out, &mut duplicates)
        }) {
            Ok(None) => {
                summary.rows_duplicate += 1;
                out.drop_row();
            }
            Ok(Some(at_ms)) => {
                summary.rows_accepted += 1;
                last_ms = last_ms.max(at_ms);
                let span = summary.clusters.entry(options.cluster.clone()).or_insert((at_ms, at_ms));
                *span = (span.0.min(at_ms), span.1.max(at_ms));
                out.accept_row()?;
            }
            Err(reject) => {
                *summary.rows_rejected.entry(reject.code.as_str()).or_default() += 1;
                let (line, raw) = (Some(lines.number()), lines.raw());
                let place = Place { cluster: &options.cluster, origin: &origin, line, at_ms: last_ms, raw };
                out.dead_letter(reject, place)?;
            }
        }
        if summary.rows_read.is_multiple_of(PROGRESS_EVERY_ROWS) {
            progress(Progress::new(lines.progress(), summary.rows_read));
        }
    }
    progress(Progress::new(lines.progress(), summary.rows_read));
    out.flush_all()?;
    summary.rows_not_checked_for_duplicates = duplicates.unchecked;
    (summary.events_written, summary.events_already_present) = (out.written, out.already_present);
    Ok((summary, ignored))
}

/// Parses a line, of the node that it names, or else of the given one.
fn report(line: &str, node: Option<&str>) -> Result<(v1::StepReport, Vec<String>), Reject> {
    let bad = |what: String| Reject::new(RejectCode::BadReport, what);
    let fields: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| bad(format!("the line is no JSON object: {error}")))?;
    let named = match fields.get("node") {
        Some(Value::String(named)) => named.clone(),
        Some(Value::Number(named)) => named.to_string(),
        _ => node.unwrap_or_default().to_owned(),
    };
    // What was observed is not known: the outbox takes the step's time.
    step::from_json(fields, &named, 0).map_err(bad)
}

/// Adds a report; `None` if it repeats an earlier one, else its time.
fn add(
    report: v1::StepReport,
    cluster: &str,
    out: &mut Outbox<'_>,
    duplicates: &mut Duplicates,
) -> Result<Option<i64>, Reject> {
    let mut event = Event::Step(report);
    event.envelope_mut().cluster = cluster.to_owned();
    out.add(&mut event)?;
    let id = &event.envelope_mut().event_id;
    let identity = id.iter().take(8).fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    match duplicates.check(identity, out.row_fingerprint()) {
        RowCheck::New => Ok(Some(event.event_time_ms())),
        RowCheck::Repeated | RowCheck::Conflicting => Ok(None),
    }
}
