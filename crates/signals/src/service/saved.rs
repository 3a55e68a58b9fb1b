//! Snapshots of the service: the state of [`Reorder`] and the offsets at which it stands.
//!
//! What was published before a snapshot is never derived again from it, so names of publications
//! are no part of the state. Outputs that the log holds after it are read at a start.

use std::path::Path;
use std::time::{Duration, Instant};

use tidegate_events::SchemaId;
use tidegate_log::snapshot::{MAX_STATE_BYTES, Position, Restored, SnapshotStore, by_partition, hold_log};
use tidegate_log::tail::Cursor;
use tidegate_log::{LogError, TopicPartition};

use super::{HISTORY_TOPICS, OUTPUT_TOPICS, Reading, SignalService};
use crate::reorder::Reorder;

/// Version of the state's layout. Raise it with any change of a type that is part of [`Reorder`],
/// or of what its fields mean, and write the fixture anew (`tests/snapshots`): snapshots of another
/// version are skipped, and the log is read instead.
pub(super) const VERSION: u32 = 3;
/// How often the state is saved: what a start reads again.
const SAVE_EVERY: Duration = Duration::from_secs(600);

/// Where and how often the state is saved.
pub(super) struct Snapshots {
    store: SnapshotStore,
    group: String,
    every: Duration,
    saved: Instant,
}

/// The state: reorder buffer with detectors, newest event time, whether anything was decided, and
/// the newest event time of each partition.
type State = (Reorder, i64, bool, Vec<(String, u32, i64)>);
type StateRef<'a> = (&'a Reorder, i64, bool, Vec<(&'a str, u32, i64)>);

impl SignalService {
    /// Saves the state every `every` instead of every ten minutes.
    #[must_use]
    pub fn saving_every(mut self, every: Duration) -> Self {
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.every = every;
        }
        self
    }

    /// Restores the newest good snapshot, and reads the outputs after it.
    pub(super) fn restore(&mut self, folder: &Path, group: &str) -> Result<(), LogError> {
        let log = self.log.clone();
        let mut store = SnapshotStore::new(folder, "signals", "", VERSION);
        let found = store.restore(log.as_ref(), |bytes| {
            postcard::from_bytes::<State>(bytes).map_err(|e| format!("its state is not readable: {e}"))
        })?;
        let mut from = Vec::new();
        if let Some(Restored { state: (reorder, newest_us, has_begun, newest), positions, .. }) =
            found.restored
        {
            (self.reorder, self.newest_us, self.has_begun) = (reorder, newest_us, has_begun);
            self.go_on_at(&positions, &newest);
            from = positions;
        }
        self.read_known_sources(&by_partition(&from))?;
        if from.is_empty() {
            // Nothing is passed yet: the log keeps all that it has.
            from = self.positions()?;
            store.begin(from.clone());
        }
        hold_log(log.as_ref(), group, &from)?;
        let (every, saved) = (SAVE_EVERY, Instant::now());
        self.snapshots = Some(Snapshots { store, group: group.into(), every, saved });
        Ok(())
    }

    /// Saves the state if it is time. A state that cannot be saved stops nothing: the next start
    /// reads more of the log.
    pub(super) fn save_if_due(&mut self, now_ms: i64) -> Result<(), LogError> {
        match &self.snapshots {
            Some(snapshots) if snapshots.saved.elapsed() >= snapshots.every => self.save(now_ms),
            _ => Ok(()),
        }
    }

    /// Saves the state now, durable on return, if the service has a folder for it. A file that
    /// cannot be written is logged and no error.
    ///
    /// # Errors
    /// The log's.
    pub fn save(&mut self, now_ms: i64) -> Result<(), LogError> {
        if self.snapshots.is_none() {
            return Ok(());
        }
        let positions = self.positions()?;
        let readings = self.history.iter().chain(&self.streams);
        let newest = readings.map(|r| (r.cursor.at.topic.as_str(), r.cursor.at.partition, r.newest_us));
        let state: StateRef = (&self.reorder, self.newest_us, self.has_begun, newest.collect());
        let encoded = postcard::to_extend(&state, Vec::new()).map_err(|e| e.to_string());
        let Some(snapshots) = &mut self.snapshots else { return Ok(()) };
        snapshots.saved = Instant::now();
        let saved = encoded.and_then(|state| {
            let bytes = state.len();
            let saved = snapshots.store.save(positions, &state, now_ms).map_err(|e| e.to_string())?;
            tracing::debug!(bytes, "the state of the signals is saved");
            Ok(saved)
        });
        match saved {
            Ok(before) => {
                hold_log(self.log.as_ref(), &snapshots.group, &before)?;
                self.older_sources = std::mem::take(&mut self.known_sources);
                self.stats.saved += 1;
                if let Some(mut watch) = self.watch.lock() {
                    watch.saved();
                }
            }
            Err(why) => tracing::warn!(
                "the state of the signals cannot be saved (at most {MAX_STATE_BYTES} bytes): {why}; a start reads the log from \
                 the snapshot before"
            ),
        }
        Ok(())
    }

    /// Where the service stands: what it has read, and the end of its outputs.
    fn positions(&self) -> Result<Vec<Position>, LogError> {
        let log = self.log.as_ref();
        let mut positions = Vec::new();
        for reading in self.history.iter().chain(&self.streams) {
            positions.push(Position::of(&reading.cursor, log)?);
        }
        for topic in OUTPUT_TOPICS.map(SchemaId::topic) {
            for partition in 0..self.partitions.get(topic).copied().unwrap_or(0) {
                let at = TopicPartition { topic: topic.into(), partition };
                let mut cursor = Cursor::at_start(log, at)?;
                cursor.next = cursor.end;
                positions.push(Position::of(&cursor, log)?);
            }
        }
        Ok(positions)
    }

    /// Puts the cursors where the state stands. Partitions that it does not know are read from
    /// their beginning.
    fn go_on_at(&mut self, positions: &[Position], newest: &[(String, u32, i64)]) {
        let history = HISTORY_TOPICS.map(SchemaId::topic);
        for position in positions {
            let at = position.at();
            let of = if history.contains(&position.topic.as_str()) {
                &mut self.history
            } else {
                &mut self.streams
            };
            let Some(reading) = of.iter_mut().find(|reading| reading.cursor.at == at) else { continue };
            reading.cursor = Cursor { end: reading.cursor.end, ..position.cursor() };
            let known =
                newest.iter().find(|(topic, partition, _)| (topic, partition) == (&at.topic, &at.partition));
            reading.newest_us = known.map_or(i64::MIN, |(_, _, newest_us)| *newest_us);
        }
    }
}

impl Reading {
    /// A partition that is read from where the cursor stands.
    pub(super) fn new(cursor: Cursor) -> Self {
        Self { cursor, newest_us: i64::MIN }
    }
}
