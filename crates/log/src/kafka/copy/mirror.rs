//! The copy that keeps offsets.
//!
//! Transactions take offsets of their own, so the records are written without them, by an
//! idempotent producer that is the partition's only writer: what it sends stands in one piece, in
//! order, and begins at the end of what was there. Where Kafka put each message is checked against
//! where it belongs.
//!
//! A source that was trimmed begins beyond 0, and Kafka has no way to begin there. So a new
//! partition gets empty messages up to that offset, which are removed again before the first record
//! is written.
//!
//! A run that follows a killed one finds where it was by the end of the partition alone.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};

use super::compare::{compare, filler};
use super::{CopyLease, CopyProgress, CopyReport, CopyStep, OnProgress, no_copy, partitions};
use crate::check::lock;
use crate::embedded::StoredBatch;
use crate::kafka::client_errors::ClientErrors;
use crate::kafka::delivery::Wait;
use crate::kafka::record::{headers, offset, timestamp};
use crate::kafka::state::{key, value};
use crate::kafka::value::frame;
use crate::{EmbeddedLog, EventLog, Extent, LogError, TopicConfig, TopicPartition};

/// Stored bytes of the source that are read at once.
const READ_BYTES: usize = 1 << 20;
/// Filler messages between two progress reports.
const FILL: u64 = 10_000;
/// Sources whose progress is written in one transaction.
const PROGRESS: usize = 5_000;

/// Copies a topic's partitions, one after the other.
pub(super) fn copy(
    from: &EmbeddedLog,
    lease: &CopyLease<'_>,
    (topic, config): (&str, TopicConfig),
    report: &mut CopyReport,
    on_progress: OnProgress<'_>,
) -> Result<(), LogError> {
    let writer = Dense::new(lease)?;
    for at in partitions(topic, config.partitions) {
        let source = from.extent(&at)?;
        let found = settled(lease, &at)?;
        refuse(&at, source, found, config)?;
        compare(from, lease, &at, found.start..found.end, source.start, on_progress)?;
        fill(&writer, lease, &at, source.start, found, on_progress)?;
        let copied = found.end.max(source.start);
        send(&writer, from, lease, &at, copied..source.end, on_progress)?;
        let start = lease.to.extent(&at)?.start;
        compare(from, lease, &at, copied.max(start)..source.end, source.start, on_progress)?;
        report.records += source.end - source.start;
        report.written += source.end - copied;
    }
    Ok(())
}

/// The partition's extent once no transaction is open in it.
fn settled(lease: &CopyLease<'_>, at: &TopicPartition) -> Result<Extent, LogError> {
    let (cluster, deadline) = (&lease.to.cluster, lease.deadline());
    let name = cluster.name(&at.topic);
    let end = cluster.high_watermark(&name, at.partition, deadline)?;
    cluster.wait_until_settled(&name, at.partition, end, deadline)
}

fn refuse(at: &TopicPartition, source: Extent, found: Extent, config: TopicConfig) -> Result<(), LogError> {
    if found.end > source.end {
        let what = format!(
            "on Kafka it holds more, up to {}: it is in use already, or another log's; copy to another prefix",
            found.end
        );
        return Err(no_copy(at, source.end, what));
    }
    // The broker itself drops what is over the bytes that the topic may have.
    if found.start > source.start && config.retain_bytes.is_none() {
        let what = format!(
            "on Kafka it begins at {} only, as if it had been trimmed; copy to another prefix",
            found.start
        );
        return Err(no_copy(at, source.start, what));
    }
    Ok(())
}

/// Makes the partition begin where the source does.
fn fill(
    writer: &Dense<'_>,
    lease: &CopyLease<'_>,
    at: &TopicPartition,
    start: u64,
    found: Extent,
    on_progress: OnProgress<'_>,
) -> Result<(), LogError> {
    if found.start >= start {
        return Ok(());
    }
    let name = lease.to.cluster.name(&at.topic);
    let (empty, stamp) = (filler(), timestamp(&filler()));
    for next in found.end..start {
        if (next - found.end).is_multiple_of(FILL) {
            lease.check()?;
            on_progress(CopyProgress { step: CopyStep::Filling, at: at.clone(), offset: next, end: start });
        }
        writer.send(&name, at, (&empty.key, &empty.payload), (stamp, None), next)?;
    }
    writer.finish(at)?;
    lease.to.cluster.delete_records(&name, at.partition, start, lease.deadline())?;
    lease.to.readers.forget(&name, at.partition);
    Ok(())
}

fn send(
    writer: &Dense<'_>,
    from: &EmbeddedLog,
    lease: &CopyLease<'_>,
    at: &TopicPartition,
    offsets: std::ops::Range<u64>,
    on_progress: OnProgress<'_>,
) -> Result<(), LogError> {
    let name = lease.to.cluster.name(&at.topic);
    let (mut next, end) = (offsets.start, offsets.end);
    let mut framed = Vec::new();
    while next < end {
        lease.check()?;
        on_progress(CopyProgress { step: CopyStep::Copying, at: at.clone(), offset: next, end });
        for StoredBatch { producer, first_seq, records } in from.batches(at, next, READ_BYTES)? {
            for (seq, stored) in (first_seq..).zip(&records).filter(|(_, s)| (next..end).contains(&s.offset))
            {
                let record = &stored.record;
                let beside = (timestamp(record), Some(headers(&producer, seq, record)));
                frame(record.schema, &record.payload, &mut framed);
                writer.send(&name, at, (&record.key, &framed), beside, stored.offset)?;
            }
            next = records.last().map_or(end, |last| last.offset + 1);
        }
    }
    writer.finish(at)
}

/// Copies progress: producers continue with the next number, consumer groups at their offsets.
pub(super) fn carry_over(
    from: &EmbeddedLog,
    lease: &CopyLease<'_>,
    topics: &[(String, TopicConfig)],
    report: &mut CopyReport,
) -> Result<(), LogError> {
    for at in topics.iter().flat_map(|(topic, config)| partitions(topic, config.partitions)) {
        let state = &lease.to.state;
        let message = |(source, progress): (String, _)| {
            (state.partition_of(&source), key(&at, &source), value(progress))
        };
        let messages: Vec<_> = from.producers(&at)?.into_iter().map(message).collect();
        messages.chunks(PROGRESS).try_for_each(|some| lease.write(some))?;
        report.producers += messages.len() as u64;
        for (group, offset) in from.groups(&at)? {
            // A copy that is run again after groups moved over takes nothing back.
            if lease.to.committed_offset(&group, &at)?.is_none_or(|further| further < offset) {
                lease.to.commit_offset(&group, &at, offset)?;
            }
            report.groups += 1;
        }
    }
    Ok(())
}

/// Delivery of the messages sent so far.
#[derive(Default)]
struct Deliveries {
    delivered: u64,
    /// Expected and actual offset of the first misplaced message.
    misplaced: Option<(u64, u64)>,
    failed: Option<KafkaError>,
}

struct Context {
    errors: ClientErrors,
    deliveries: Mutex<Deliveries>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.errors.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.errors.record(&error, reason);
    }
}

impl ProducerContext for Context {
    /// The offset at which the message belongs.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, belongs: usize) {
        let deliveries = &mut *lock(&self.deliveries);
        match result {
            Ok(message) => {
                let (belongs, stands) = (belongs as u64, offset(message.offset()));
                if belongs != stands {
                    deliveries.misplaced.get_or_insert((belongs, stands));
                }
                deliveries.delivered += 1;
            }
            Err((error, _)) => drop(deliveries.failed.get_or_insert_with(|| error.clone())),
        }
    }
}

/// Writes messages in order and checks that each gets its expected offset.
struct Dense<'a> {
    lease: &'a CopyLease<'a>,
    producer: BaseProducer<Context>,
}

impl<'a> Dense<'a> {
    fn new(lease: &'a CopyLease<'a>) -> Result<Self, LogError> {
        let cluster = &lease.to.cluster;
        let context = Context { errors: cluster.errors.clone(), deliveries: Mutex::default() };
        let producer = BaseProducer::from_config_and_context(&cluster.options.dense_producer(), context)
            .map_err(|error| cluster.error("opening a producer", &error, Duration::ZERO))?;
        Ok(Self { lease, producer })
    }

    fn send(
        &self,
        name: &str,
        at: &TopicPartition,
        (key, payload): (&[u8], &[u8]),
        (timestamp, headers): (i64, Option<OwnedHeaders>),
        belongs: u64,
    ) -> Result<(), LogError> {
        let partition = at.partition as i32;
        let mut message = BaseRecord::with_opaque_to(name, belongs as usize).partition(partition).key(key);
        message = message.payload(payload).timestamp(timestamp);
        message.headers = headers;
        loop {
            match self.producer.send(message) {
                Ok(()) => return Ok(()),
                Err((error, again)) if error.rdkafka_error_code() == Some(Code::QueueFull) => {
                    message = again;
                    let full = self.producer.in_flight_count();
                    self.wait_while(at, |waiting| waiting >= full)?;
                }
                Err((error, _)) => {
                    self.delivered(at)?;
                    return Err(self.error(at, &error));
                }
            }
        }
    }

    /// Waits until all is delivered.
    fn finish(&self, at: &TopicPartition) -> Result<(), LogError> {
        self.wait_while(at, |waiting| waiting > 0)
    }

    /// Fails once nothing was delivered for as long as any call may take.
    fn wait_while(&self, at: &TopicPartition, busy: impl Fn(i32) -> bool) -> Result<(), LogError> {
        let (mut delivered, mut since) = (self.delivered(at)?, Instant::now());
        let limit = self.lease.to.cluster.options.timeout;
        let wait = Wait::begin();
        while busy(self.producer.in_flight_count()) {
            wait.step(&self.producer);
            let now = self.delivered(at)?;
            if now > delivered {
                (delivered, since) = (now, Instant::now());
            } else if since.elapsed() >= limit {
                let reason = "nothing is acknowledged any more";
                return Err(self.lease.to.cluster.unavailable(&doing(at), limit, reason));
            }
        }
        self.delivered(at).map(|_| ())
    }

    /// Messages delivered so far; fails if one got another offset than expected.
    fn delivered(&self, at: &TopicPartition) -> Result<u64, LogError> {
        let deliveries = lock(&self.producer.context().deliveries);
        match (&deliveries.misplaced, &deliveries.failed) {
            (Some((belongs, stands)), _) => {
                let what = format!(
                    "Kafka put the record at {stands}: somebody else writes to the topic; stop that, delete the topics of this prefix and copy again"
                );
                Err(no_copy(at, *belongs, what))
            }
            (None, Some(error)) => Err(self.error(at, error)),
            (None, None) => Ok(deliveries.delivered),
        }
    }

    fn error(&self, at: &TopicPartition, error: &KafkaError) -> LogError {
        let fatal = self.producer.client().fatal_error().map(|(code, _)| KafkaError::MessageProduction(code));
        let error = fatal.as_ref().unwrap_or(error);
        self.lease.to.cluster.error(&doing(at), error, self.lease.to.cluster.options.timeout)
    }
}

fn doing(at: &TopicPartition) -> String {
    format!("copying to {}/{}", at.topic, at.partition)
}
