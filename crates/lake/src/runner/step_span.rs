//! The span of a step that may commit.

use tracing::Instrument;
use tracing::field::Empty;

use crate::error::Result;
use crate::lake::CommitStats;
use crate::spans::note_error;

/// Runs a step that may commit to several tables within a span of that name. A step that commits
/// nothing leaves no span.
pub(super) async fn step(
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
