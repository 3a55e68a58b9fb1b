//! Notifies a Slack-compatible webhook of what needs attention: decisions that wait for approval,
//! stragglers, bad nodes, trouble with the autopilot's journal.
//!
//! A finding is a table row that is true now. Each round queries all findings, drops those already
//! sent, and sends the rest, oldest first. There is no queue: if the webhook is down, the next
//! round finds the same rows again, as long as they are still true. Nothing waits for a round.

mod address;
mod delivery;
mod finding;
mod sent;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_server::{Encoded, Format, Metrics, Overrides, QueryService};
use tokio::sync::watch;

use crate::commands::CommandError;
pub use address::Address;
use delivery::Delivery;
use finding::{Finding, QUESTIONS, Question};
use sent::SentFindings;

/// Time between rounds.
const EVERY: Duration = Duration::from_secs(10);
/// First wait after a failure. It doubles with each further one, up to the longest.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_MOST: Duration = Duration::from_secs(600);
/// Findings of one message.
const IN_MESSAGE: usize = 10;
/// Time limit of one question.
const ANSWER: Duration = Duration::from_secs(30);

/// A webhook, and what was sent to it.
pub struct Webhook {
    delivery: Arc<Delivery>,
    sent: SentFindings,
    service: QueryService,
    metrics: Arc<Metrics>,
}

impl Webhook {
    /// `data` is the folder that remembers what was sent.
    pub fn new(address: Address, data: &Path, service: &QueryService, metrics: &Arc<Metrics>) -> Self {
        Self {
            delivery: Arc::new(Delivery::to(address)),
            sent: SentFindings::read(data),
            service: service.clone(),
            metrics: Arc::clone(metrics),
        }
    }

    /// Sends until `stopped`. A message that is under way then is repeated at the next start.
    pub async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut failures = 0;
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => return,
                () = tokio::time::sleep(wait(failures)) => {}
            }
            let round = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => return,
                round = self.round() => round,
            };
            match round {
                Ok(()) => failures = 0,
                Err(why) => {
                    if failures == 0 {
                        tracing::warn!(
                            "the webhook could not be notified: {why}; tidegate_webhook_failed counts further failures"
                        );
                    }
                    failures += 1;
                    self.metrics.count_webhook_failed();
                }
            }
        }
    }

    /// Queries what holds now, and sends what is new.
    async fn round(&mut self) -> Result<(), String> {
        let mut found = Vec::new();
        for question in &QUESTIONS {
            match self.ask(question).await {
                Ok(rows) => found.extend(rows),
                // A failed query says nothing about the others.
                Err(error) => {
                    tracing::warn!(finding = question.kind, %error, "findings for the webhook could not be queried")
                }
            }
        }
        let mut new: Vec<Finding> = found.into_iter().filter(|one| !self.sent.has(&one.id)).collect();
        new.sort_by(|one, other| (&one.at, &one.id).cmp(&(&other.at, &other.id)));
        self.metrics.observe_webhook_waiting(new.len());
        while !new.is_empty() {
            let rest = new.split_off(new.len().min(IN_MESSAGE));
            let lines: Vec<&str> = new.iter().map(|one| one.text.as_str()).collect();
            let (delivery, text) = (Arc::clone(&self.delivery), lines.join("\n"));
            let sent = tokio::task::spawn_blocking(move || delivery.send(&text)).await;
            sent.map_err(|error| error.to_string())??;
            self.metrics.count_webhook_sent(new.len(), rest.len());
            self.sent.add(new.into_iter().map(|one| one.id));
            new = rest;
        }
        Ok(())
    }

    async fn ask(&self, question: &Question) -> Result<Vec<Finding>, CommandError> {
        let overrides = Overrides { rows_max: None, time_max: Some(ANSWER) };
        let rows = self.service.query(question.sql, overrides).await?;
        let mut encoded = Encoded::new(rows, Format::Jsonl)?;
        let mut bytes = Vec::new();
        while let Some(piece) = encoded.next().await? {
            bytes.extend(piece);
        }
        let rows = serde_json::Deserializer::from_slice(&bytes).into_iter();
        rows.map(|row| Ok(question.finding(&row?))).collect()
    }
}

/// The wait before the next round, after so many failures in a row.
fn wait(failures: u32) -> Duration {
    match failures.checked_sub(1) {
        None => EVERY,
        Some(before) => RETRY.saturating_mul(2_u32.saturating_pow(before)).min(RETRY_MOST),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::wait;

    #[test]
    fn failures_are_waited_for_longer_and_longer() {
        let waits: Vec<u64> = [0, 1, 2, 3, 8, 40].map(|failures| wait(failures).as_secs()).to_vec();
        assert_eq!(waits, [10, 5, 10, 20, 600, 600]);
        assert!(wait(u32::MAX) <= Duration::from_secs(600));
    }
}
