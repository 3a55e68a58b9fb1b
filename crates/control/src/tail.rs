//! Tails one cluster's events on some topics.

use std::sync::Arc;

use tidegate_events::Event;
use tidegate_log::snapshot::Position;
use tidegate_log::{EventLog, LogError, tail};

/// Payload bytes read at a time.
const READ_BYTES: usize = 4 << 20;

/// A reader of a cluster's events.
pub(crate) struct Tail {
    cluster: String,
    tail: tail::Tail,
}

impl Tail {
    /// Reads `topics` from the first event that is not older than `since_ms`; `None` is from the
    /// beginning. A topic that the log does not have yields nothing.
    pub(crate) fn new(
        log: Arc<dyn EventLog>,
        cluster: &str,
        topics: &[&str],
        since_ms: Option<i64>,
    ) -> Result<Self, LogError> {
        let tail = tail::Tail::new(log, topics, since_ms, READ_BYTES)?;
        Ok(Self { cluster: cluster.to_owned(), tail })
    }

    /// Goes on where these positions stand.
    #[must_use]
    pub(crate) fn resumed(self, positions: &[Position]) -> Self {
        let cursors: Vec<tail::Cursor> = positions.iter().map(Position::cursor).collect();
        Self { tail: self.tail.resumed(&cursors), ..self }
    }

    /// How far each partition was read.
    pub(crate) fn positions(&self) -> Result<Vec<Position>, LogError> {
        self.tail.cursors().iter().map(|cursor| Position::of(cursor, self.tail.log())).collect()
    }

    /// Passes on the events that came since the last call. After an error, the next call goes on
    /// with the rest.
    pub(crate) fn read(&mut self, mut take: impl FnMut(&Event)) -> Result<(), LogError> {
        let Self { cluster, tail } = self;
        tail.poll(|stored| {
            let Ok(event) = Event::decode(stored.record.schema, &stored.record.payload) else { return };
            if event.envelope().is_some_and(|envelope| envelope.cluster == *cluster) {
                take(&event);
            }
        })
    }
}
