//! Spans of commits. They are exported where the program exports its spans, and
//! cost nothing elsewhere.

use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::error::{LakeError, Result};

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

/// Notes in a span what kind of error ended it.
pub(crate) fn note_error(span: &Span, error: &LakeError) {
    let kind = match error {
        LakeError::Fenced { .. } => "fenced",
        LakeError::Log(_) => "log",
        LakeError::Delta { .. } | LakeError::Store(_) | LakeError::Io(..) => "storage",
        _ => "failed",
    };
    span.record("error.type", kind);
}
