//! The queue between those whose spans end and the thread that sends them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};

use opentelemetry_proto::tonic::trace::v1::Span;

use crate::sampler::Sampler;

/// The queue of this process, while it exports.
static ACTIVE: RwLock<Option<Arc<Queue>>> = RwLock::new(None);

static SENT: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static METRICS_FAILED: AtomicU64 = AtomicU64::new(0);

/// What became of spans and figures since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Spans that the collector took.
    pub sent_spans: u64,
    /// Spans that found the queue full.
    pub dropped_spans: u64,
    /// Spans that the collector did not take.
    pub lost_spans: u64,
    /// Exports of metrics that the collector did not take.
    pub failed_metrics: u64,
}

/// What became of spans and figures so far.
pub fn counts() -> Counts {
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Counts {
        sent_spans: load(&SENT),
        dropped_spans: load(&DROPPED),
        lost_spans: load(&LOST),
        failed_metrics: load(&METRICS_FAILED),
    }
}

pub(crate) fn count_sent(spans: u64) {
    SENT.fetch_add(spans, Ordering::Relaxed);
}

pub(crate) fn count_lost(spans: u64) {
    LOST.fetch_add(spans, Ordering::Relaxed);
}

pub(crate) fn count_failed_metrics() {
    METRICS_FAILED.fetch_add(1, Ordering::Relaxed);
}

/// A bounded queue of spans, and what is decided before a span enters it.
#[derive(Debug)]
pub(crate) struct Queue {
    sender: SyncSender<Message>,
    pub sampler: Sampler,
    /// Whether spans hold the text of queries.
    pub query_texts: bool,
}

#[derive(Debug)]
pub(crate) enum Message {
    Ended(Box<Span>),
    /// Nothing comes any more.
    Stop,
}

impl Queue {
    pub fn new(spans: usize, sampler: Sampler, query_texts: bool) -> (Self, Receiver<Message>) {
        let (sender, receiver) = sync_channel(spans);
        (Self { sender, sampler, query_texts }, receiver)
    }

    /// Adds a span, unless the queue is full: nobody waits for it.
    pub fn push(&self, span: Span) {
        if self.sender.try_send(Message::Ended(Box::new(span))).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells the thread that nothing comes any more. A full queue is seen by that thread anyway.
    pub fn stop(&self) {
        self.sender.try_send(Message::Stop).ok();
    }
}

/// The queue that spans of this process go to.
pub(crate) fn active() -> Option<Arc<Queue>> {
    ACTIVE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Opens the queue of this process, or closes it. Spans that begin from now on see it.
pub(crate) fn set_active(queue: Option<Arc<Queue>>) {
    *ACTIVE.write().unwrap_or_else(PoisonError::into_inner) = queue;
    tracing::callsite::rebuild_interest_cache();
}
