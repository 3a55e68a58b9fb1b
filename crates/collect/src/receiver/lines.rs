//! JSON lines on the Unix socket: each line is answered, in order, once its record is safe.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use super::batch::{Batch, Outcome};
use super::connection::{READ_BYTES, write};
use super::limits::Peer;
use super::{Counts, Shared};

/// Longest pause imposed at once on a peer that exceeds its rate.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Serves one connection, whose first bytes are in `buffer`.
pub(super) async fn serve(shared: Arc<Shared>, peer: Peer, mut stream: UnixStream, mut buffer: Vec<u8>) {
    let limits = shared.peers.limits;
    let mut answered = 0_u64;
    let mut partial_since = Instant::now();
    loop {
        if let Some(end) = buffer.iter().rposition(|&byte| byte == b'\n') {
            let rest = buffer.split_off(end + 1);
            let answers = take(&shared, &peer, &buffer, &mut answered).await;
            buffer = rest;
            partial_since = Instant::now();
            let Some(answers) = answers else { return };
            if !write(&mut stream, &shared, &answers).await {
                return;
            }
        }
        if buffer.len() > limits.line_bytes {
            Counts::add(&shared.counts.refused_lines, 1);
            let what = format!("line {} is longer than {} bytes", answered + 1, limits.line_bytes);
            write(&mut stream, &shared, &answer(&json!({"rejected": answered + 1, "error": what}))).await;
            return;
        }
        // A client may be silent between lines, but not within one.
        let deadline = match buffer.is_empty() {
            true => Instant::now() + limits.idle,
            false => partial_since + limits.patience,
        };
        buffer.reserve(READ_BYTES);
        match timeout_at(deadline, stream.read_buf(&mut buffer)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => return,
            Err(_) => return Counts::add(&shared.counts.timed_out, 1),
        }
    }
}

/// Handles the complete lines of a text. Returns their answers, or `None` if the records could not
/// be made safe.
async fn take(shared: &Arc<Shared>, peer: &Peer, text: &[u8], answered: &mut u64) -> Option<Vec<u8>> {
    let batch = Batch::of_lines(shared, peer, text, *answered);
    let wait = peer.spend(batch.cost());
    if !wait.is_zero() {
        Counts::add(&shared.counts.slowed, 1);
        tokio::time::sleep(wait.min(LONGEST_WAIT)).await;
    }
    let mut answers = Vec::with_capacity(batch.len() * 16);
    for outcome in batch.deliver(shared).await? {
        *answered += 1;
        let value = match outcome {
            Outcome::Taken { ignored } if ignored.is_empty() => json!({"acked": *answered}),
            Outcome::Taken { ignored } => json!({"acked": *answered, "ignored": ignored}),
            Outcome::Refused(what) => json!({"rejected": *answered, "error": what}),
        };
        answers.extend_from_slice(&answer(&value));
    }
    Some(answers)
}

fn answer(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}
