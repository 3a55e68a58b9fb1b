//! What people do, on the topic `audit`, before it is done.
//!
//! A query runs, a price is entered, and the autopilot is told something, only once its record is
//! on the log; a second record says how it ended. [`entry`] makes the events, and the `writer`, a
//! thread of its own, appends those that wait at the same time in one batch.

mod entry;
mod writer;

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tidegate_events::v1::{AuditEvent, AuditEventKind};
use tidegate_log::{EventLog, LogError};
use tokio::sync::oneshot;
use tokio::time::timeout;

pub(crate) use entry::principal_changed;
pub use entry::{Actor, Outcome, TEXT_BYTES, Text, ended, new_id, recorded, show_price, source};
use writer::{Message, Writer};

/// How long an action waits for its record to be on the log. One that waits longer is refused.
const WITHIN: Duration = Duration::from_secs(10);

/// Where a request came from: in its extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub SocketAddr);

/// Records what people do. Clones share one writer, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct Auditor {
    writer: mpsc::Sender<Message>,
}

/// An action was refused because its record is not on the log. Says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it was not done, because its record for the audit table could not be written: {0}")]
pub struct NotRecorded(String);

/// An action that people take in two steps: it is sent, and it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Query,
    Prices,
    Approve,
    Reject,
    Pause,
    Resume,
}

impl Deed {
    const fn kinds(self) -> (AuditEventKind, AuditEventKind) {
        match self {
            Self::Query => (AuditEventKind::QueryAsked, AuditEventKind::QueryEnded),
            Self::Prices => (AuditEventKind::PricesSent, AuditEventKind::PricesEnded),
            Self::Approve => (AuditEventKind::ApproveAsked, AuditEventKind::SteeringEnded),
            Self::Reject => (AuditEventKind::RejectAsked, AuditEventKind::SteeringEnded),
            Self::Pause => (AuditEventKind::PauseAsked, AuditEventKind::SteeringEnded),
            Self::Resume => (AuditEventKind::ResumeAsked, AuditEventKind::SteeringEnded),
        }
    }
}

impl Auditor {
    /// Starts the writer of this process's records.
    ///
    /// # Errors
    /// The log lacks the topic `audit` or cannot be asked, or the system grants no thread.
    pub fn start(log: Arc<dyn EventLog>) -> Result<Self, LogError> {
        let writer = Writer::new(log)?;
        let (to_writer, messages) = mpsc::channel();
        let thread = std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&messages));
        thread.map_err(|source| LogError::Io {
            what: "start the writer of audit records".into(),
            source: Arc::new(source),
        })?;
        Ok(Self { writer: to_writer })
    }

    /// Records that an action is about to be taken, and waits until the record is on the log.
    pub(crate) async fn begin(
        &self,
        deed: Deed,
        actor: &Actor,
        cluster: &str,
        text: Text,
    ) -> Result<Begun, NotRecorded> {
        self.begin_about(deed, actor, (cluster, None), text).await
    }

    /// The same for an action that is about an object of a cluster.
    pub(crate) async fn begin_about(
        &self,
        deed: Deed,
        actor: &Actor,
        (cluster, object): (&str, Option<&str>),
        text: Text,
    ) -> Result<Begun, NotRecorded> {
        let (kind, _) = deed.kinds();
        let id = new_id();
        let object = object.map(str::to_owned);
        let event = AuditEvent { object, ..recorded(kind, &id, actor, cluster, text) };
        let (reply, replied) = oneshot::channel();
        // Made first: a client that leaves while it waits is recorded as gone.
        let began = Instant::now();
        let mut begun = Begun { auditor: self.clone(), deed, id, door: actor.door, began, has_ended: false };
        self.send(Message::Record(Box::new(event), reply));
        match timeout(WITHIN, replied).await {
            Ok(Ok(Ok(()))) => Ok(begun),
            Ok(Ok(Err(why))) => {
                begun.has_ended = true;
                Err(NotRecorded(why))
            }
            Ok(Err(_)) => {
                begun.has_ended = true;
                Err(NotRecorded("the writer of audit records has ended; restart the server".into()))
            }
            Err(_) => {
                begun.end(&Outcome::failed("not_recorded"));
                Err(NotRecorded(format!("the log did not take it within {} s", WITHIN.as_secs())))
            }
        }
    }

    /// Records that an action is being taken, and waits for nothing. The record is kept until the
    /// log takes it.
    pub(crate) fn begin_at_once(&self, deed: Deed, actor: &Actor, cluster: &str, text: Text) -> Begun {
        let (kind, _) = deed.kinds();
        let id = new_id();
        self.note(recorded(kind, &id, actor, cluster, text));
        Begun { auditor: self.clone(), deed, id, door: actor.door, began: Instant::now(), has_ended: false }
    }

    /// Records what has happened already. It is tried again until the log takes it.
    pub(crate) fn note(&self, event: AuditEvent) {
        self.send(Message::Note(Box::new(event)));
    }

    /// Waits until all that was recorded so far is on the log, or the log has refused it.
    pub(crate) async fn flush(&self) {
        let (reply, replied) = oneshot::channel();
        self.send(Message::Flush(reply));
        timeout(WITHIN, replied).await.ok();
    }

    fn send(&self, message: Message) {
        if self.writer.send(message).is_err() {
            tracing::error!("the writer of audit records has ended");
        }
    }
}

/// An action whose record is on the log. If it is dropped before it ended, its client has left.
#[derive(Debug)]
pub(crate) struct Begun {
    auditor: Auditor,
    deed: Deed,
    id: String,
    door: &'static str,
    began: Instant,
    has_ended: bool,
}

impl Begun {
    /// Records how it ended.
    pub fn end(mut self, outcome: &Outcome<'_>) {
        self.note_end(outcome);
    }

    fn note_end(&mut self, outcome: &Outcome<'_>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            let (_, kind) = self.deed.kinds();
            self.auditor.note(ended(kind, &self.id, self.door, outcome, self.began.elapsed()));
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.note_end(&Outcome::failed("cancelled"));
    }
}
