//! The story of the demo: what its tables say, chapter by chapter.

mod chapters;

use std::time::Duration;

use chrono::{DateTime, Utc};
use tidegate_demo::Times;
use tidegate_server::QueryService;
use tokio::sync::watch;

use chapters::Chapter;

/// Time between two queries for the rows of a chapter.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long to wait for missing chapters once the site runs in the present: signals may be off.
const PATIENCE: Duration = Duration::from_secs(120);
/// What somebody who has read the story asks next.
const NEXT_QUESTION: &str = "SELECT job_id, state, node, rank, class, evidence FROM stragglers";

/// How far the site has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Its past is made.
    Past,
    /// Its past is on the log, and comes into the tables.
    Tabled,
    /// Its last hours are passed in fast motion.
    Fast,
    /// It is now.
    Present,
}

/// Prints each chapter as soon as the tables have its rows, until the site ends.
pub async fn narrate(
    service: QueryService,
    times: Times,
    mut phase: watch::Receiver<Phase>,
    url: String,
    data: String,
    over: watch::Receiver<bool>,
) {
    let fast = phase.wait_for(|phase| matches!(phase, Phase::Fast | Phase::Present));
    if before(&over, fast).await.is_none_or(|seen| seen.is_err()) {
        return;
    }
    say!("\nThe past is made, from {} UTC on; its last two hours pass in fast motion.", date(times.start_ms));
    let mut missing = Chapter::ALL.to_vec();
    let patience = async {
        let present = phase.wait_for(|phase| *phase == Phase::Present).await.is_ok();
        if present {
            tokio::time::sleep(PATIENCE).await;
        }
    };
    let printed = before(&over, async {
        tokio::select! {
            () = print_chapters(&mut missing, &service) => {}
            () = patience => {}
        }
    });
    if printed.await.is_none() {
        return;
    }
    for chapter in missing {
        tracing::warn!("the tables have no answer yet to: {}", chapter.question());
    }
    let present = before(&over, phase.wait_for(|phase| *phase == Phase::Present)).await;
    if present.is_some_and(|seen| seen.is_ok()) {
        say!("\n{}", what_next(&url, &data));
    }
}

/// The result, unless all is over before.
async fn before<T>(over: &watch::Receiver<bool>, what: impl Future<Output = T>) -> Option<T> {
    let mut over = over.clone();
    tokio::select! {
        done = what => Some(done),
        _ = over.wait_for(|over| *over) => None,
    }
}

/// Prints each chapter once the tables have its rows. A query that fails is run again.
async fn print_chapters(missing: &mut Vec<Chapter>, service: &QueryService) {
    while !missing.is_empty() {
        for chapter in missing.clone() {
            match chapter.lines(service).await {
                Ok(Some(lines)) => {
                    say!("\n{}", lines.join("\n"));
                    missing.retain(|other| *other != chapter);
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a chapter of the demo has no rows yet"),
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn date(ms: i64) -> String {
    let at: DateTime<Utc> = DateTime::from_timestamp_millis(ms).unwrap_or_default();
    at.format("%Y-%m-%d").to_string()
}

fn what_next(url: &str, data: &str) -> String {
    format!(
        "It is now; the site goes on by the clock, until Ctrl-C. Try next:\n  \
         curl --data '{NEXT_QUESTION}' {url}/v1/sql\n  \
         tidegate explain job 4711 --data {data}\n  \
         tidegate plan why serve --data {data}\n  \
         docs/reference/questions.md has a question for every table"
    )
}
