//! The thread that appends audit records: all that wait at a time in one batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tidegate_events::v1::AuditEvent;
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Batch, EventLog, LogError, Producer, Record, TopicPartition, partition_for};
use tokio::sync::oneshot;

use super::entry;

/// Most records of a batch: some megabytes with the longest texts.
const BATCH: usize = 256;
/// Longest time that a note is held back so that others can join it in one append. While the log
/// syncs an append to disk, agents' appends wait.
const LINGER: Duration = Duration::from_millis(200);
/// Notes that the log refused are tried again after this time.
const RETRY: Duration = Duration::from_secs(1);
/// Most notes that wait for the log. More are lost, and the log file says so.
const NOTES_MAX: usize = 16 << 10;
/// Failures are logged this often at most.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// What the writer is told.
#[derive(Debug)]
pub(super) enum Message {
    /// A record that somebody waits for. One that the log refuses is given up.
    Record(Box<AuditEvent>, oneshot::Sender<Result<(), String>>),
    /// A record of what has happened. It is kept until the log takes it.
    Note(Box<AuditEvent>),
    /// Tell when all before it was tried.
    Flush(oneshot::Sender<()>),
}

/// Appends records under a source of its own.
pub(super) struct Writer {
    log: Arc<dyn EventLog>,
    at: TopicPartition,
    source: String,
    epoch: u64,
    next_seq: u64,
    /// Notes that are not on the log yet, oldest first.
    notes: VecDeque<AuditEvent>,
    /// When they are to be appended, if nothing takes them along before.
    due: Option<Instant>,
    logged: Option<Instant>,
}

/// What is appended at a time.
#[derive(Default)]
struct Waiting {
    records: Vec<(AuditEvent, oneshot::Sender<Result<(), String>>)>,
    flushed: Vec<oneshot::Sender<()>>,
}

impl Waiting {
    /// Somebody waits for an answer.
    fn is_urgent(&self) -> bool {
        !(self.records.is_empty() && self.flushed.is_empty())
    }
}

impl Writer {
    pub fn new(log: Arc<dyn EventLog>) -> Result<Self, LogError> {
        let topic = SchemaId::AuditEvent.topic().to_owned();
        let topics = log.topics()?;
        let config = topics.iter().find(|(name, _)| *name == topic).map(|(_, config)| config);
        let config = config.ok_or_else(|| LogError::UnknownTopic(topic.clone()))?;
        let source = entry::source();
        let partition = partition_for(source.as_bytes(), config.partitions);
        let at = TopicPartition { topic, partition };
        Ok(Self { log, at, source, epoch: 1, next_seq: 0, notes: VecDeque::new(), due: None, logged: None })
    }

    /// Appends what comes until nobody is left who sends.
    pub fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let first = match self.due {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            let is_last = matches!(first, Err(RecvTimeoutError::Disconnected));
            let mut waiting = Waiting::default();
            for message in first.into_iter().chain(messages.try_iter()).take(BATCH) {
                match message {
                    Message::Record(event, reply) => waiting.records.push((*event, reply)),
                    Message::Note(event) => self.keep(*event),
                    Message::Flush(reply) => waiting.flushed.push(reply),
                }
            }
            let is_due = self.due.is_some_and(|due| due <= Instant::now());
            if is_last || is_due || waiting.is_urgent() || self.notes.len() >= BATCH {
                self.append_all(waiting);
            }
            if is_last {
                return;
            }
        }
    }

    fn keep(&mut self, note: AuditEvent) {
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
            self.complain("too many audit records of ends wait for the log; the oldest are lost");
        }
        self.notes.push_back(note);
        self.due.get_or_insert_with(|| Instant::now() + LINGER);
    }

    fn append_all(&mut self, waiting: Waiting) {
        let Waiting { records, flushed } = waiting;
        let (asked, replies): (Vec<_>, Vec<_>) = records.into_iter().unzip();
        let mut appended = Ok(());
        // What happened comes before what is about to.
        while self.notes.len() > BATCH && appended.is_ok() {
            appended = self.append_with(Vec::new());
        }
        if appended.is_ok() && (!self.notes.is_empty() || !asked.is_empty()) {
            appended = self.append_with(asked);
        }
        if let Err(why) = &appended {
            self.complain(&format!("audit records are not on the log: {why}"));
        }
        self.due = (!self.notes.is_empty()).then(|| Instant::now() + RETRY);
        for reply in replies {
            // Somebody who does not wait any more has been told that it was too late.
            reply.send(appended.clone()).ok();
        }
        for reply in flushed {
            reply.send(()).ok();
        }
    }

    /// Appends the oldest notes, and these records.
    fn append_with(&mut self, asked: Vec<AuditEvent>) -> Result<(), String> {
        let notes = self.notes.len().min(BATCH);
        let all = self.notes.iter().take(notes).cloned().chain(asked).collect();
        self.append(all)?;
        self.notes.drain(..notes);
        Ok(())
    }

    /// What is in a record is bounded where it is made, so that each fits the contract.
    fn append(&mut self, events: Vec<AuditEvent>) -> Result<(), String> {
        let mut records: Vec<Record> = Vec::with_capacity(events.len());
        for (event, seq) in events.into_iter().zip(self.next_seq..) {
            let mut event = Event::Audit(event);
            let envelope = event.envelope_mut();
            envelope.source.clone_from(&self.source);
            (envelope.epoch, envelope.seq) = (self.epoch, seq);
            records.push(event.record().map_err(|e| e.to_string())?.into());
        }
        let count = records.len() as u64;
        let producer = Producer { source: self.source.clone(), epoch: self.epoch };
        let appended = self.log.append(&self.at, Batch { producer, first_seq: self.next_seq, records });
        match appended {
            Ok(_) => self.next_seq += count,
            // It may be on the log all the same. Under its numbers nothing else would be written,
            // so the next batch begins anew.
            Err(_) => (self.epoch, self.next_seq) = (self.epoch + 1, 0),
        }
        appended.map(|_| ()).map_err(|e| e.to_string())
    }

    fn complain(&mut self, what: &str) {
        if self.logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            self.logged = Some(Instant::now());
            tracing::error!("{what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use tidegate_events::v1::AuditEventKind;
    use tidegate_log::{EmbeddedLog, TopicConfig};

    use super::*;
    use crate::audit::{Actor, Text, recorded};

    #[test]
    fn records_that_nobody_waits_for_are_appended_together() {
        let folder = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(folder.path(), Default::default()).unwrap();
        let kept = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(SchemaId::AuditEvent.topic(), kept).unwrap();
        let writer = Writer::new(Arc::new(log.clone())).unwrap();
        // Without room for messages: each is taken before the next one is sent.
        let (to_writer, messages) = sync_channel(0);
        let writing = std::thread::spawn(move || writer.run(&messages));
        let event = |id: usize| {
            let actor = Actor::at_keyboard("ann".into());
            Box::new(recorded(AuditEventKind::QueryAsked, &id.to_string(), &actor, "", Text::of("x")))
        };
        for id in 0..20 {
            to_writer.send(Message::Note(event(id))).unwrap();
        }
        let (reply, replied) = oneshot::channel();
        to_writer.send(Message::Record(event(20), reply)).unwrap();
        assert_eq!(replied.blocking_recv().unwrap(), Ok(()));
        let appended = log.stats();
        assert_eq!(appended.records, 21);
        assert!(appended.batches < 10, "{appended:?}");
        // The last one does not wait for somebody who waits.
        to_writer.send(Message::Note(event(21))).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while log.stats().records < 22 {
            assert!(Instant::now() < until, "the last record is not on the log");
            std::thread::yield_now();
        }
        drop(to_writer);
        writing.join().unwrap();
    }
}
