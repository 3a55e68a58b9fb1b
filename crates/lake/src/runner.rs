//! Reads the log and keeps the lake up to date: in one sweep ([`Runner::catch_up`]) or for good ([`Runner::run`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_events::v1::{DeadLetter, Envelope};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Batch, EventLog, Producer, Record, StoredRecord, TopicPartition};
use tokio::sync::watch;

use crate::error::{LakeError, Result};
use crate::lake::{CatalogSource, Lake};
use crate::maintain::{self, Maintenance};

/// Consumer group under which progress is noted in the log, for display and to hold retention back.
pub const CONSUMER_GROUP: &str = "tidegate-lake";
/// At most this much of an undecodable record is kept in its dead letter.
const RAW_BYTES: usize = 4096;

/// How the runner paces itself.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Payload bytes read from a partition at a time.
    pub read_bytes: usize,
    /// Events taken in before they are committed; bounds memory.
    pub flush_events: u64,
    /// Longest time taken-in events stay uncommitted while running for good.
    pub flush_every: Duration,
    /// How often queries get to see new events.
    pub refresh_every: Duration,
    pub maintenance: Maintenance,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            read_bytes: 8 << 20,
            flush_events: 250_000,
            flush_every: Duration::from_secs(10),
            refresh_every: Duration::from_secs(1),
            maintenance: Maintenance::default(),
        }
    }
}

/// What a runner has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    pub records: u64,
    pub undecodable: u64,
    pub commits: u64,
    pub files: u64,
    pub bytes: u64,
    /// Records in the log that were not read yet when last looked.
    pub behind: u64,
}

#[derive(Debug)]
struct Cursor {
    at: TopicPartition,
    next: u64,
}

/// One process's reader of the log and writer of the lake.
#[derive(Debug)]
pub struct Runner<L: EventLog + ?Sized + 'static> {
    log: Arc<L>,
    lake: Lake,
    pace: Pace,
    cursors: Vec<Cursor>,
    unflushed: u64,
    progress: Progress,
}

impl<L: EventLog + ?Sized + 'static> Runner<L> {
    /// Attaches the lake to every topic it has tables for; creates nothing in the log.
    pub async fn start(log: Arc<L>, mut lake: Lake, pace: Pace) -> Result<Self> {
        let mut cursors = Vec::new();
        for (topic, config) in log.topics()? {
            if !SchemaId::ALL.iter().any(|schema| schema.topic() == topic) {
                continue;
            }
            for partition in 0..config.partitions {
                let at = TopicPartition { topic: topic.clone(), partition };
                let next = lake.attach(&topic, partition).await?;
                let start = log.extent(&at)?.start;
                // A new lake begins with what the log still holds; one with history must not skip what is gone.
                if next > 0 && next < start {
                    return Err(LakeError::Refused(format!(
                        "the log of {topic}/{partition} begins at offset {start}, but the lake has only come to {next}; \
                         records in between are gone by retention. `tidegate pipeline backfill` rebuilds the lake from \
                         what is left"
                    )));
                }
                let next = next.max(start);
                cursors.push(Cursor { at, next });
            }
        }
        Ok(Self { log, lake, pace, cursors, unflushed: 0, progress: Progress::default() })
    }

    /// Where queries get their tables from.
    pub fn catalog(&self) -> CatalogSource {
        self.lake.catalog()
    }

    pub fn lake(&self) -> &Lake {
        &self.lake
    }

    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Takes in everything the log holds and commits it. `seen` is told of the progress.
    pub async fn catch_up(&mut self, seen: &mut (dyn FnMut(Progress) + Send)) -> Result<Progress> {
        loop {
            let read = self.sweep().await?;
            self.progress.behind = self.behind()?;
            seen(self.progress);
            if read == 0 {
                break;
            }
        }
        self.flush().await?;
        seen(self.progress);
        Ok(self.progress)
    }

    /// Keeps up with the log until told to stop, then commits what is left. Never returns early but on an error.
    pub async fn run(
        &mut self,
        mut stop: watch::Receiver<bool>,
        seen: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<()> {
        let mut refreshed = Instant::now();
        let mut flushed = Instant::now();
        let mut fresh = false;
        while !*stop.borrow_and_update() {
            let read = self.sweep().await?;
            fresh |= read > 0;
            if fresh && refreshed.elapsed() >= self.pace.refresh_every {
                self.lake.refresh().await?;
                (refreshed, fresh) = (Instant::now(), false);
            }
            if self.unflushed > 0 && flushed.elapsed() >= self.pace.flush_every {
                self.flush().await?;
                flushed = Instant::now();
                maintain::step(&mut self.lake, self.pace.maintenance).await?;
            }
            self.progress.behind = self.behind()?;
            seen(self.progress);
            if read == 0 {
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(100)) => {}
                    _ = stop.changed() => {}
                }
            }
        }
        self.flush().await
    }

    /// Compacts, applies retention and deletes unreferenced files, as far as it is due.
    pub async fn maintain(&mut self) -> Result<()> {
        maintain::step(&mut self.lake, self.pace.maintenance).await
    }

    /// Reads each partition once. Returns the number of records read.
    async fn sweep(&mut self) -> Result<u64> {
        let mut read = 0;
        for index in 0..self.cursors.len() {
            let Cursor { at, next } = &self.cursors[index];
            let (at, next) = (at.clone(), *next);
            let limit = self.recovery_end(&at);
            let log = Arc::clone(&self.log);
            let (from, bytes) = (at.clone(), self.pace.read_bytes);
            let records = tokio::task::spawn_blocking(move || log.read(&from, next, bytes))
                .await
                .map_err(|e| LakeError::Refused(format!("log reader stopped: {e}")))??;
            let records: Vec<_> =
                records.into_iter().take_while(|r| limit.is_none_or(|limit| r.offset < limit)).collect();
            let Some(last) = records.last() else { continue };
            let end = last.offset + 1;
            read += records.len() as u64;
            self.take_in(&at, records, end).await?;
            self.cursors[index].next = end;
            if limit.is_some_and(|limit| end >= limit) || self.unflushed >= self.pace.flush_events {
                self.flush().await?;
            }
        }
        self.progress.records += read;
        Ok(read)
    }

    /// Where an interrupted flush of this partition ended: the first flush after a restart must end there as well.
    fn recovery_end(&self, at: &TopicPartition) -> Option<u64> {
        let here =
            self.lake.states().filter(|s| s.partition == at.partition && s.raw().schema.topic() == at.topic);
        here.filter_map(|s| s.recover_to).min()
    }

    async fn take_in(&mut self, at: &TopicPartition, records: Vec<StoredRecord>, end: u64) -> Result<()> {
        let mut intake = self.lake.intake(&at.topic, at.partition);
        for StoredRecord { offset, record } in records {
            match Event::decode(record.schema, &record.payload) {
                Ok(event) => {
                    intake.push(offset, &event);
                    self.unflushed += 1;
                }
                Err(e) => {
                    self.progress.undecodable += 1;
                    self.dead_letter(at, offset, &record, &e)?;
                }
            }
        }
        self.lake.absorb(intake, end)
    }

    /// A record nobody can read goes to the dead-letter topic, once, with its place; the pipeline goes on.
    fn dead_letter(
        &self,
        at: &TopicPartition,
        offset: u64,
        record: &Record,
        why: &tidegate_events::DecodeError,
    ) -> Result<()> {
        let topic = SchemaId::DeadLetter.topic();
        if at.topic == topic {
            tracing::error!(topic, partition = at.partition, offset, %why, "a dead letter cannot be decoded itself; skipped");
            return Ok(());
        }
        let letter = DeadLetter {
            envelope: Some(Envelope {
                event_time_ms: record.event_time_ms,
                observed_time_ms: record.event_time_ms,
                source: CONSUMER_GROUP.into(),
                ..Envelope::default()
            }),
            origin: at.topic.clone(),
            line: None,
            partition: Some(at.partition),
            offset: Some(offset),
            code: "UNDECODABLE".into(),
            reason: format!("{why}; the record was skipped, everything after it goes on"),
            raw: record.payload.slice(..record.payload.len().min(RAW_BYTES)).to_vec(),
        };
        let mut letter = Event::DeadLetter(letter);
        letter.seal();
        let out = letter.record().map_err(|e| LakeError::Refused(format!("build a dead letter: {e}")))?;
        let producer =
            Producer { source: format!("{CONSUMER_GROUP}/{}/{}/{offset}", at.topic, at.partition), epoch: 0 };
        let record = Record {
            key: out.key,
            schema: out.schema,
            event_time_ms: out.event_time_ms,
            payload: out.payload,
        };
        let to = TopicPartition { topic: topic.into(), partition: 0 };
        self.log.append(&to, Batch { producer, first_seq: 0, records: vec![record] })?;
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        let flushed = self.lake.flush().await?;
        self.unflushed = 0;
        self.progress.commits += flushed.commits;
        self.progress.files += flushed.files_added;
        self.progress.bytes += flushed.bytes_added;
        for cursor in &self.cursors {
            self.log.commit_offset(CONSUMER_GROUP, &cursor.at, cursor.next)?;
        }
        Ok(())
    }

    fn behind(&self) -> Result<u64> {
        self.cursors.iter().map(|c| Ok(self.log.extent(&c.at)?.end.saturating_sub(c.next))).sum()
    }
}
