//! Arrival of reports: after a moment, late, twice, or never.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::message::{Message, MessageBody};
use super::plan::Plan;
use crate::straggler::random::child;

/// 1 % of the reports are lost and 1 % late: half of them singly, half as all reports of a node's
/// step.
const HALF_LOST: f64 = 0.005;
const HALF_LATE: f64 = 0.005;
const TWICE: f64 = 0.005;
/// µs.
const LATEST: i64 = 60_000_000;
const LEAST: i64 = 60_000;
const USUAL: std::ops::Range<i64> = LEAST..500_000;

/// Fate of a report.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    Lost,
    /// Arrives after this delay, µs.
    After(i64),
}

/// Messages on their way, by arrival.
#[derive(Debug)]
pub(crate) struct Arrivals {
    rng: ChaCha8Rng,
    /// Arrival, order of sending, index into `held`.
    order: BinaryHeap<Reverse<(i64, u64, usize)>>,
    held: Vec<Option<MessageBody>>,
    free: Vec<usize>,
    sent: u64,
}

impl Arrivals {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            rng: child(plan.seed, plan.regime.letter(), "arrivals"),
            order: BinaryHeap::new(),
            held: Vec::new(),
            free: Vec::new(),
            sent: 0,
        }
    }

    /// Draws a common fate for all reports of a node's step, if there is one.
    pub(crate) fn together(&mut self) -> Option<Fate> {
        let draw: f64 = self.rng.random();
        if draw < HALF_LOST {
            return Some(Fate::Lost);
        }
        (draw < HALF_LOST + HALF_LATE).then(|| Fate::After(self.rng.random_range(1_000_000..LATEST)))
    }

    /// Sends a report that ends now.
    pub(crate) fn report(&mut self, body: MessageBody, now_us: i64, together: Option<Fate>) {
        let draw: f64 = self.rng.random();
        let usual = self.rng.random_range(USUAL);
        let after = match together {
            Some(Fate::Lost) => return,
            Some(Fate::After(after)) => after + usual,
            None if draw < HALF_LOST => return,
            None if draw < HALF_LOST + HALF_LATE => self.rng.random_range(1_000_000..LATEST),
            None => usual,
        };
        if draw > 1.0 - TWICE {
            let again = now_us + after + self.rng.random_range(0..LATEST / 2);
            self.send(body.clone(), again);
        }
        self.send(body, now_us + after);
    }

    /// Sends a message that is never lost: shapes, device windows, faults.
    pub(crate) fn sure(&mut self, body: MessageBody, now_us: i64) {
        let after = self.rng.random_range(USUAL);
        self.send(body, now_us + after);
    }

    pub(crate) fn send(&mut self, body: MessageBody, arrival_us: i64) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.held[at] = Some(body);
        self.order.push(Reverse((arrival_us, self.sent, at)));
        self.sent += 1;
    }

    /// The next message, if it arrives before anything sent after `now_us` can.
    pub(crate) fn next(&mut self, now_us: i64) -> Option<Message> {
        let &Reverse((arrival_us, _, at)) = self.order.peek()?;
        if arrival_us > now_us {
            return None;
        }
        self.order.pop();
        self.free.push(at);
        self.held[at].take().map(|body| Message { arrival_us, body })
    }
}
