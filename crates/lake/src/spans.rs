//! Spans of what a pipeline commits. They are exported where the program exports its spans, and
//! cost nothing elsewhere.

use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::error::{LakeError, Result};
use crate::lake::CommitStats;

/// Runs a step that may commit to several tables within a span of that name. A step that commits
/// nothing leaves no span.
pub(crate) async fn step(
    name: &'static str,
    step: impl Future<Output = Result<CommitStats>>,
) -> Result<CommitStats> {
    let span = tracing::info_span!(
        target: "otlp",
        "pipeline",
        otel.name = name,
        otlp.skip = Empty,
        tidegate.commits = Empty,
        tidegate.files = Empty,
        tidegate.bytes = Empty,
        error.type = Empty,
    );
    let done = step.instrument(span.clone()).await;
    match &done {
        Ok(CommitStats { commits: 0, .. }) => {
            span.record("otlp.skip", true);
        }
        Ok(stats) => {
            span.record("tidegate.commits", stats.commits);
            span.record("tidegate.files", stats.files_added);
            span.record("tidegate.bytes", stats.bytes_added);
        }
        Err(error) => note_error(&span, error),
    }
    done
}

/// Runs a commit to a table, which adds so many files, within a span.
pub(crate) async fn commit(
    table: &str,
    files: usize,
    commit: impl Future<Output = Result<()>>,
) -> Result<()> {
    let span = tracing::info_span!(
        target: "otlp",
        "commit",
        tidegate.table = table,
        tidegate.files = files,
        error.type = Empty,
    );
    let done = commit.instrument(span.clone()).await;
    done.inspect_err(|error| note_error(&span, error))
}

fn note_error(span: &Span, error: &LakeError) {
    let kind = match error {
        LakeError::Fenced { .. } => "fenced",
        LakeError::Log(_) => "log",
        LakeError::Delta { .. } | LakeError::Store(_) | LakeError::Io(..) => "storage",
        _ => "failed",
    };
    span.record("error.type", kind);
}
