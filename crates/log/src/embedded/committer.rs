//! Group commit: one thread takes all waiting requests, writes them in one atomic step, syncs once,
//! then answers them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use fjall::{OwnedWriteBatch, PersistMode};

use super::frame::Body;
use super::partition::{Partition, Writer};
use super::segment::{Segment, Totals};
use super::store::{MetaKey, Store};
use crate::check::{Progress, lock};
use crate::fault::point;
use crate::{Appended, Batch, LogError};

/// Encoded bytes that may wait for the committer; appends beyond that block.
const QUEUE_BYTES: usize = 64 << 20;
/// Encoded bytes in one commit, to bound how long the first of them waits.
const GROUP_BYTES: usize = 16 << 20;
/// At four unflushed tables the store blocks for ever if its background thread died. Stay below,
/// and check that it lives.
const MAX_UNFLUSHED_TABLES: usize = 2;

/// An operation in the queue, and where to send its answer.
struct Request {
    /// Generation of the handle that sent the request.
    generation: u64,
    operation: Operation,
    reply: SyncSender<Result<Appended, LogError>>,
}

/// Requests that change the log, in order. Only an append is answered with a value.
pub(super) enum Operation {
    Append { partition: Arc<Partition>, batch: Batch, body: Body },
    Trim { partition: Arc<Partition>, start: u64 },
    Fence { generation: u64 },
}

const NOTHING_APPENDED: Appended = Appended { first_offset: 0, written: 0, duplicates: 0 };

impl Operation {
    fn bytes(&self) -> usize {
        match self {
            Self::Append { body, .. } => body.bytes(),
            Self::Trim { .. } | Self::Fence { .. } => 0,
        }
    }
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    bytes: usize,
    closed: bool,
}

/// The bounded queue in front of the committer.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    /// Queues a request and waits for its answer.
    pub fn run(&self, generation: u64, operation: Operation) -> Result<Appended, LogError> {
        let (reply, answer): (_, Receiver<_>) = sync_channel(1);
        let bytes = operation.bytes();
        let full = |waiting: &mut Waiting| {
            !waiting.closed && waiting.bytes > 0 && waiting.bytes + bytes > QUEUE_BYTES
        };
        let waiting = self.changed.wait_while(lock(&self.waiting), full);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let stopped = || LogError::Stopped { reason: "its committing thread ended".into() };
        if waiting.closed {
            return Err(stopped());
        }
        waiting.bytes += bytes;
        waiting.requests.push_back(Request { generation, operation, reply });
        drop(waiting);
        self.changed.notify_all();
        answer.recv().unwrap_or_else(|_| Err(stopped()))
    }

    pub fn close(&self) {
        lock(&self.waiting).closed = true;
        self.changed.notify_all();
    }

    /// Rejects all waiting and future requests: their answer channels are dropped, which wakes the
    /// callers.
    fn abandon(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        waiting.requests.clear();
        drop(waiting);
        self.changed.notify_all();
    }

    /// The requests of the next commit; `None` once closed and empty.
    fn take_group(&self) -> Option<Vec<Request>> {
        let idle = |waiting: &mut Waiting| waiting.requests.is_empty() && !waiting.closed;
        let waiting = self.changed.wait_while(lock(&self.waiting), idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(request) =
            waiting.requests.pop_front_if(|r| bytes == 0 || bytes + r.operation.bytes() <= GROUP_BYTES)
        {
            bytes += request.operation.bytes();
            group.push(request);
        }
        waiting.bytes -= bytes;
        drop(waiting);
        self.changed.notify_all();
        (!group.is_empty()).then_some(group)
    }
}

/// Counted costs since the log was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Batches that were written.
    pub batches: u64,
    /// Records that were written.
    pub records: u64,
    /// Stored, compressed.
    pub bytes: u64,
    /// Times an append waited for the disk; one for a whole group.
    pub fsyncs: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    batches: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    fsyncs: AtomicU64,
}

impl Counters {
    pub fn stats(&self) -> LogStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogStats {
            batches: load(&self.batches),
            records: load(&self.records),
            bytes: load(&self.bytes),
            fsyncs: load(&self.fsyncs),
        }
    }
}

pub(super) struct Committer {
    pub store: Arc<Store>,
    pub queue: Arc<Queue>,
    pub counters: Arc<Counters>,
    pub generation: Arc<AtomicU64>,
    pub segment_bytes: u64,
    pub segment_batches: u64,
}

impl Drop for Committer {
    /// However the thread ends, no caller waits for ever.
    fn drop(&mut self) {
        self.queue.abandon();
    }
}

/// A commit being assembled.
struct Group {
    write: OwnedWriteBatch,
    touched: Vec<Arc<Partition>>,
    trims: Vec<(Arc<Partition>, u64)>,
    replies: Vec<(SyncSender<Result<Appended, LogError>>, Appended)>,
}

impl Committer {
    pub fn run(self) {
        while let Some(requests) = self.queue.take_group() {
            self.commit(requests);
        }
    }

    fn commit(&self, requests: Vec<Request>) {
        let write = self.store.db.batch().durability(Some(PersistMode::SyncData));
        let mut group = Group { write, touched: Vec::new(), trims: Vec::new(), replies: Vec::new() };
        for Request { generation, operation, reply } in requests {
            match self.admit(&mut group, generation, operation) {
                Ok(appended) => group.replies.push((reply, appended)),
                // The caller may have gone; then the answer has no receiver.
                Err(refused) => drop(reply.send(Err(refused))),
            }
        }
        let Group { write, touched, trims, replies } = group;
        let outcome = self.write(write, &touched);
        if outcome.is_ok() {
            self.publish(&touched, trims);
        }
        for (reply, appended) in replies {
            drop(reply.send(outcome.clone().map(|()| appended)));
        }
    }

    fn admit(&self, group: &mut Group, held: u64, operation: Operation) -> Result<Appended, LogError> {
        self.store.check_running()?;
        let current = self.generation.load(Ordering::SeqCst);
        if held < current {
            return Err(LogError::Fenced { held, current });
        }
        let meta = &self.store.meta;
        match operation {
            Operation::Append { partition, batch, body } => {
                return self.admit_append(group, &partition, batch, body);
            }
            Operation::Trim { partition, start } => {
                group.write.insert(meta, MetaKey::Start(&partition.at).name(), start.to_be_bytes());
                group.trims.push((partition, start));
            }
            Operation::Fence { generation } => {
                group.write.insert(meta, MetaKey::Generation.name(), generation.to_be_bytes());
                // At once, so that what follows in this very commit is refused already.
                self.generation.store(generation, Ordering::SeqCst);
            }
        }
        Ok(NOTHING_APPENDED)
    }

    fn admit_append(
        &self,
        group: &mut Group,
        partition: &Arc<Partition>,
        batch: Batch,
        body: Body,
    ) -> Result<Appended, LogError> {
        let writer = &mut *lock(&partition.writer);
        let duplicates =
            Progress::count_duplicates(writer.producers.get(&batch.producer.source).copied(), &batch)?;
        let written = batch.records.len() as u64 - duplicates;
        let first_offset = writer.totals.end;
        if written == 0 {
            return Ok(Appended { first_offset, written, duplicates });
        }
        let body = if duplicates == 0 { body } else { Body::encode(&batch.records[duplicates as usize..]) };
        let first_seq = batch.first_seq + duplicates;
        let (header, frame) = body.seal(first_offset, &batch.producer, first_seq);
        let segment = self.active_segment(partition, writer)?;
        group.write.insert(&segment.keyspace, header.to_key(), frame);
        writer.totals.add(&header);

        let progress = Progress { epoch: batch.producer.epoch, next_seq: first_seq + written };
        let (at, meta) = (&partition.at, &self.store.meta);
        let key = MetaKey::Producer(at, &batch.producer.source).name();
        group.write.insert(
            meta,
            key,
            [progress.epoch.to_be_bytes(), progress.next_seq.to_be_bytes()].concat(),
        );
        group.write.insert(meta, MetaKey::End(at).name(), writer.totals.end.to_be_bytes());
        writer.producers.insert(batch.producer.source, progress);
        if !group.touched.iter().any(|touched| Arc::ptr_eq(touched, partition)) {
            group.touched.push(partition.clone());
        }
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        self.counters.records.fetch_add(written, Ordering::Relaxed);
        self.counters.bytes.fetch_add(header.frame_bytes.into(), Ordering::Relaxed);
        Ok(Appended { first_offset, written, duplicates })
    }

    /// The segment to append to; a full one is sealed and followed by a new one.
    fn active_segment(&self, partition: &Partition, writer: &mut Writer) -> Result<Arc<Segment>, LogError> {
        let full = writer.totals.bytes >= self.segment_bytes || writer.totals.batches >= self.segment_batches;
        if let Some(active) = writer.active.as_ref().filter(|_| !full) {
            return Ok(active.clone());
        }
        let segment = Arc::new(Segment::open(&self.store, &partition.at, writer.totals.end)?);
        if let Some(full) = writer.active.replace(segment.clone()) {
            full.seal(writer.totals);
        }
        writer.totals = Totals::empty(segment.base);
        partition.add_segment(segment.clone());
        Ok(segment)
    }

    fn write(&self, write: OwnedWriteBatch, touched: &[Arc<Partition>]) -> Result<(), LogError> {
        if write.is_empty() {
            return Ok(());
        }
        for partition in touched {
            let segment = lock(&partition.writer).active.clone();
            while segment.as_ref().is_some_and(|s| s.keyspace.sealed_memtable_count() >= MAX_UNFLUSHED_TABLES)
            {
                let alive = self.store.db.persist(PersistMode::Buffer);
                alive.map_err(|e| self.store.stop("flushing a table", e))?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.counters.fsyncs.fetch_add(1, Ordering::Relaxed);
        write.commit().map_err(|e| self.store.stop("appending", e))?;
        point("append", &self.store.dir);
        Ok(())
    }

    /// Publishes a durable commit to readers and witness files.
    fn publish(&self, touched: &[Arc<Partition>], trims: Vec<(Arc<Partition>, u64)>) {
        for partition in touched {
            let writer = &mut *lock(&partition.writer);
            partition.publish(writer.totals.end);
            if let Err(e) = writer.witness.record(writer.totals.end) {
                // The records are safe; a witness that lags behind only notices less.
                tracing::warn!(
                    topic = partition.at.topic,
                    partition = partition.at.partition,
                    "witness: {e}"
                );
            }
        }
        for (partition, start) in trims {
            partition.drop_before(&self.store, start);
        }
    }
}
