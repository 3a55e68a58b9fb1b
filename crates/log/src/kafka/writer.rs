//! A transactional producer, and the outcomes of its transactions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::client::{Cluster, STALLED};
use super::client_errors::is_passing;
use super::deadline::Deadline;
use super::delivery::Wait;
use super::producer_context::{Delivered, ProducerContext, Role};
use crate::LogError;
use crate::check::lock;

/// How long an abort may take before the producer is abandoned; the next one with its id aborts for
/// it.
const ABORT: Duration = Duration::from_secs(5);

/// Why a transaction was not committed. None of it will be readable, except where noted.
pub(super) enum Failure {
    /// A retry would fail in the same way.
    Refused(LogError),
    /// This producer may retry.
    Aborted(String),
    /// This producer is unusable. Whether the transaction was committed is known once another
    /// producer has taken its id.
    Lost(String),
    /// As `Lost`, because another process took the transactional id.
    Taken(String),
}

/// A transactional producer. Until another process takes its transactional id, no other transaction
/// of that id is open or can be committed.
pub(super) struct Writer {
    producer: BaseProducer<ProducerContext>,
    /// Cleared when a transaction could not be aborted.
    usable: AtomicBool,
}

impl Writer {
    /// Takes the transactional id over: an unfinished transaction of its former holder is finished
    /// or given up by then.
    pub fn take(cluster: &Cluster, transactional_id: &str, deadline: Deadline) -> Result<Self, LogError> {
        let config = cluster.options.producer(transactional_id);
        let doing = "opening a producer";
        loop {
            let context = ProducerContext { errors: cluster.errors.clone(), delivered: Mutex::default() };
            let producer: BaseProducer<ProducerContext> =
                BaseProducer::from_config_and_context(&config, context)
                    .map_err(|error| cluster.error(doing, &error, Duration::ZERO))?;
            let since = Instant::now();
            while since.elapsed() < STALLED {
                match producer.init_transactions(deadline.request()) {
                    Ok(()) => return Ok(Self { producer, usable: AtomicBool::new(true) }),
                    Err(error) if retriable(&error) && !deadline.passed() => producer.poll(Duration::ZERO),
                    Err(error) => return Err(cluster.error(doing, &error, cluster.options.timeout)),
                }
            }
        }
    }

    /// Whether another transaction may be tried.
    pub fn is_usable(&self) -> bool {
        self.usable.load(Ordering::Relaxed)
    }

    /// Messages that wait for Kafka.
    pub fn queued(&self) -> u64 {
        u64::try_from(self.producer.in_flight_count()).unwrap_or(0)
    }

    /// Runs a transaction: `send` sends the messages; `check` runs once all of them are in the log,
    /// and may refuse.
    pub fn transact(
        &self,
        cluster: &Cluster,
        deadline: Deadline,
        send: impl FnOnce(&Self) -> Result<(), KafkaError>,
        check: impl FnOnce(&Delivered) -> Result<(), LogError>,
    ) -> Result<Delivered, Failure> {
        *lock(&self.producer.context().delivered) = Delivered::default();
        if let Err(error) = self.producer.begin_transaction() {
            return Err(self.lost(&error));
        }
        let sent = send(self).and_then(|()| self.flush(deadline));
        if let Err(error @ KafkaError::Flush(_)) = &sent
            && !deadline.passed()
        {
            return Err(self.lost(error));
        }
        let delivered = lock(&self.producer.context().delivered).clone();
        // The error of a message says more than the error of its transaction.
        if let Some(error) = delivered.failed.as_ref().or(sent.as_ref().err()) {
            return Err(self.give_up(cluster, error, deadline));
        }
        if let Err(refused) = check(&delivered) {
            self.abort(deadline);
            return Err(Failure::Refused(refused));
        }
        self.commit(cluster, deadline)?;
        Ok(delivered)
    }

    /// Queues a message; waits while the queue is full.
    pub fn send(
        &self,
        (topic, partition): (&str, u32),
        (key, payload): (&[u8], &[u8]),
        (role, timestamp, headers): (Role, Option<i64>, Option<OwnedHeaders>),
        deadline: Deadline,
    ) -> Result<(), KafkaError> {
        let mut message =
            BaseRecord::with_opaque_to(topic, role as usize).partition(partition as i32).key(key);
        message = message.payload(payload);
        (message.timestamp, message.headers) = (timestamp, headers);
        let wait = Wait::begin();
        loop {
            match self.producer.send(message) {
                Ok(()) => return Ok(()),
                Err((error, again))
                    if error.rdkafka_error_code() == Some(Code::QueueFull) && !deadline.passed() =>
                {
                    message = again;
                    wait.step(&self.producer);
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// Waits until every message is delivered or lost; an error where none was for [`STALLED`]. The
    /// client's own flush sleeps in steps of 100 ms.
    fn flush(&self, deadline: Deadline) -> Result<(), KafkaError> {
        let wait = Wait::begin();
        let (mut open, mut since) = (i32::MAX, Instant::now());
        loop {
            let left = self.producer.in_flight_count();
            match left {
                ..=0 => return Ok(()),
                left if left < open => (open, since) = (left, Instant::now()),
                _ => {}
            }
            if deadline.passed() || since.elapsed() >= STALLED {
                return Err(KafkaError::Flush(Code::OperationTimedOut));
            }
            wait.step(&self.producer);
        }
    }

    fn commit(&self, cluster: &Cluster, deadline: Deadline) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            let error = match self.producer.commit_transaction(deadline.request()) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match &error {
                KafkaError::Transaction(inner) if inner.txn_requires_abort() => {
                    return Err(self.give_up(cluster, &error, deadline));
                }
                error if retriable(error) && !deadline.passed() && since.elapsed() < STALLED => {
                    thread::sleep(Duration::from_millis(5));
                }
                error => return Err(self.lost(error)),
            }
        }
    }

    fn lost(&self, error: &KafkaError) -> Failure {
        match self.producer.client().fatal_error() {
            Some((Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch, reason)) => {
                Failure::Taken(reason)
            }
            _ => Failure::Lost(error.to_string()),
        }
    }

    fn give_up(&self, cluster: &Cluster, error: &KafkaError, deadline: Deadline) -> Failure {
        let aborted = self.abort(deadline);
        let fenced = self.producer.client().fatal_error().is_some();
        match error.rdkafka_error_code() {
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
                Failure::Refused(LogError::UnknownTopic(String::new()))
            }
            Some(_) if !fenced && !is_passing(error) => {
                Failure::Refused(cluster.error("an append", error, Duration::ZERO))
            }
            _ if aborted && !fenced => Failure::Aborted(error.to_string()),
            _ => self.lost(error),
        }
    }

    /// Whether the producer may begin another transaction.
    fn abort(&self, deadline: Deadline) -> bool {
        let deadline = Deadline::after(ABORT.min(deadline.left().max(Duration::from_millis(100))));
        let wait = Wait::begin();
        loop {
            match self.producer.abort_transaction(deadline.left().max(Duration::from_millis(1))) {
                Ok(()) => return true,
                Err(error) if retriable(&error) && !deadline.passed() => {
                    wait.step(&self.producer);
                }
                Err(error) => {
                    tracing::debug!(target: "kafka", %error, "a transaction could not be aborted");
                    self.usable.store(false, Ordering::Relaxed);
                    return false;
                }
            }
        }
    }
}

fn retriable(error: &KafkaError) -> bool {
    match error {
        KafkaError::Transaction(error) => error.is_retriable() && !error.is_fatal(),
        KafkaError::Flush(_) => true,
        _ => false,
    }
}
