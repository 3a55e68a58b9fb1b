//! Reads the log and keeps the lake up to date: in one sweep ([`Runner::catch_up`]) or for good
//! ([`Runner::run`]).

mod ahead;
mod aside;
mod share;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_events::{Event, SchemaId};
use tidegate_log::{EventLog, LogError, Member, StoredRecord, TopicPartition};
use tokio::sync::watch;

use crate::error::{LakeError, Result};
use crate::lake::{CatalogSource, Lake};
use crate::maintain::{self, Maintenance};
use crate::samples::{SAMPLES_PER_EVENT, weight};
use aside::Aside;

/// Consumer group under which progress is noted in a log, for display and to hold retention back;
/// where several lakes may be of one log, the first part of its name.
pub const CONSUMER_GROUP: &str = "tidegate-lake";
/// How long a runner that found nothing to read waits before it looks again.
const IDLE: Duration = Duration::from_millis(100);
/// How long a topic that was there may be unknown: brokers are starting.
const STARTING: Duration = Duration::from_secs(30);
/// How often records past their topic's retention are dropped from the log.
const RETAIN_EVERY: Duration = Duration::from_secs(3600);

/// How the runner paces itself.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Payload bytes read from a partition at a time.
    pub read_bytes: usize,
    /// Events taken in before they are committed; bounds memory. [`SAMPLES_PER_EVENT`] samples
    /// count as one.
    pub flush_events: u64,
    /// Longest time taken-in events stay uncommitted while running for good.
    pub flush_every: Duration,
    /// How often, while running for good, tables of several topics are put together from what is
    /// committed.
    pub assemble_every: Duration,
    /// How often queries get to see new events; `None` where nobody asks.
    pub refresh_every: Option<Duration>,
    pub maintenance: Maintenance,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            read_bytes: 8 << 20,
            flush_events: 250_000,
            flush_every: Duration::from_secs(10),
            assemble_every: Duration::from_secs(60),
            refresh_every: Some(Duration::from_secs(1)),
            maintenance: Maintenance::default(),
        }
    }
}

/// What a runner has done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    pub records: u64,
    pub undecodable: u64,
    /// Records that stood in another partition than their key belongs to, and were passed on to
    /// that one.
    pub misplaced: u64,
    pub commits: u64,
    pub files: u64,
    pub bytes: u64,
    /// Records in the log that were not read yet when last looked.
    pub behind: u64,
    /// Log partitions this process keeps, as of when last looked.
    pub partitions: Vec<PartitionProgress>,
    /// How often partitions came, went, or were lost.
    pub rebalances: u64,
    /// How often a commit was refused because another process had taken over.
    pub fenced: u64,
}

/// How far a partition was taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionProgress {
    pub at: TopicPartition,
    /// Offset of the next record to read, and where the partition ends.
    pub next: u64,
    pub end: u64,
    /// Newest event time taken in, ms since the epoch.
    pub watermark_ms: Option<i64>,
}

#[derive(Debug, Clone)]
struct Cursor {
    at: TopicPartition,
    next: u64,
    /// Where the partition ended when last looked.
    end: u64,
}

/// One process's reader of the log and writer of the lake.
pub struct Runner {
    log: Arc<dyn EventLog>,
    group: String,
    lake: Lake,
    pace: Pace,
    /// Of the group of each topic.
    members: Vec<(&'static str, Box<dyn Member>)>,
    cursors: Vec<Cursor>,
    /// Partitions of each topic, those of others too.
    partitions: HashMap<String, u32>,
    /// Events taken in and not committed, in samples, see [`weight`].
    unflushed: u64,
    /// A cursor moved since the group was last told.
    moved: bool,
    progress: Progress,
    /// When the partitions' progress was last noted.
    noted: Instant,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("cursors", &self.cursors).field("progress", &self.progress).finish()
    }
}

impl Runner {
    /// Joins those who keep this lake, for every topic it has tables for; creates nothing in the
    /// log.
    ///
    /// Each lake has groups of its own: in one group, two lakes would get half of the log each. And
    /// each topic has a group of its own, so that its partitions are spread evenly whatever becomes
    /// of the others.
    pub async fn start(log: Arc<dyn EventLog>, group: &str, lake: Lake, pace: Pace) -> Result<Self> {
        let mut runner = Self::of(log, group, lake, pace);
        runner.join()?;
        runner.rebalance(Duration::ZERO).await?;
        Ok(runner)
    }

    /// Takes all partitions, whatever group reads them: for a lake that nobody else keeps.
    pub async fn start_alone(log: Arc<dyn EventLog>, lake: Lake, pace: Pace) -> Result<Self> {
        let mut runner = Self::of(log, CONSUMER_GROUP, lake, pace);
        for topic in topics() {
            let member = tidegate_log::sole_member(Arc::clone(&runner.log), CONSUMER_GROUP, &[topic])?;
            runner.members.push((topic, member));
        }
        runner.rebalance(Duration::ZERO).await?;
        Ok(runner)
    }

    fn of(log: Arc<dyn EventLog>, group: &str, lake: Lake, pace: Pace) -> Self {
        Self {
            log,
            group: group.into(),
            lake,
            pace,
            members: Vec::new(),
            cursors: Vec::new(),
            partitions: HashMap::new(),
            unflushed: 0,
            moved: false,
            progress: Progress::default(),
            noted: Instant::now(),
        }
    }

    /// Where queries get their tables from.
    pub fn catalog(&self) -> CatalogSource {
        self.lake.catalog()
    }

    pub fn lake(&self) -> &Lake {
        &self.lake
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Takes in everything the log holds and commits it. `seen` is told of the progress.
    ///
    /// Where others keep partitions too, it is over when all have committed what the log held at
    /// the beginning, and windows of several tables are put together of that, so that somebody is
    /// left to take over from whoever dies.
    pub async fn catch_up(&mut self, seen: &mut (dyn FnMut(&Progress) + Send)) -> Result<Progress> {
        let mut heard = Instant::now();
        let ends = loop {
            match self.ends() {
                Err(LakeError::Log(LogError::UnknownTopic(_))) if heard.elapsed() < STARTING => {
                    tokio::time::sleep(IDLE).await;
                }
                ends => break ends?,
            }
        };
        let mut idle = Duration::ZERO;
        let mut to_assemble = None;
        let is_kept = ends.iter().any(|(at, _)| (at.topic.as_str(), at.partition) == Lake::keeper());
        loop {
            let swept = match self.sweep_or_rejoin(idle).await {
                // A broker that has just started does not know its topics at once.
                Err(LakeError::Log(LogError::UnknownTopic(_))) if heard.elapsed() < STARTING => {
                    tokio::time::sleep(IDLE).await;
                    continue;
                }
                swept => swept?,
            };
            heard = Instant::now();
            self.note_partitions();
            seen(&self.progress);
            idle = Duration::ZERO;
            if swept == 0 {
                if self.unflushed > 0 || self.moved {
                    self.flush_or_rejoin().await?;
                } else if self.reached(&ends)? {
                    self.assemble_or_rejoin().await?;
                    let of = to_assemble.get_or_insert_with(|| self.lake.to_assemble());
                    if !is_kept || self.lake.is_assembled(of).await? {
                        break;
                    }
                    idle = IDLE;
                } else {
                    idle = IDLE;
                }
            }
        }
        seen(&self.progress);
        Ok(self.progress.clone())
    }

    /// Keeps up with the log until told to stop, then commits what is left. Never returns early but
    /// on an error; that the log cannot be reached is waited for, while queries go on.
    pub async fn run(
        &mut self,
        mut stop: watch::Receiver<bool>,
        seen: &mut (dyn FnMut(&Progress) + Send),
    ) -> Result<()> {
        let mut refreshed = Instant::now();
        let mut flushed = Instant::now();
        let mut assembled: Option<Instant> = None;
        let mut retained = Instant::now();
        let mut fresh = false;
        while !*stop.borrow_and_update() {
            let read = match self.sweep_or_rejoin(Duration::ZERO).await {
                Err(LakeError::Log(away)) if is_away(&away) => {
                    tracing::warn!(%away, "waiting for the log");
                    tokio::time::sleep(IDLE).await;
                    continue;
                }
                read => read?,
            };
            fresh |= read > 0;
            let due = self.pace.refresh_every.is_some_and(|every| refreshed.elapsed() >= every);
            if due && (fresh || self.lake.is_shared()) {
                self.lake.look().await?;
                self.lake.refresh().await?;
                (refreshed, fresh) = (Instant::now(), false);
            }
            if (self.unflushed > 0 || self.moved) && flushed.elapsed() >= self.pace.flush_every {
                self.flush_and_tidy_or_rejoin().await?;
                flushed = Instant::now();
            }
            if assembled.is_none_or(|at| at.elapsed() >= self.pace.assemble_every) {
                self.assemble_or_rejoin().await?;
                assembled = Some(Instant::now());
            }
            if retained.elapsed() >= RETAIN_EVERY {
                match self.apply_retention().await {
                    Err(LakeError::Log(away)) if is_away(&away) => {}
                    applied => applied?,
                }
                retained = Instant::now();
            }
            self.note_partitions();
            seen(&self.progress);
            if read == 0 {
                tokio::select! {
                    () = tokio::time::sleep(IDLE) => {}
                    _ = stop.changed() => {}
                }
            }
        }
        self.flush_or_rejoin().await?;
        self.assemble_or_rejoin().await
    }

    /// Compacts, applies retention and deletes unreferenced files, as far as it is due.
    pub async fn maintain(&mut self) -> Result<()> {
        self.apply_retention().await?;
        maintain::step(&mut self.lake, &self.pace.maintenance).await
    }

    /// Drops records past retention that every group has passed. One process does it: who keeps the
    /// first partition.
    async fn apply_retention(&self) -> Result<()> {
        let first =
            |cursor: &Cursor| cursor.at.topic == SchemaId::JobEvent.topic() && cursor.at.partition == 0;
        if !self.cursors.iter().any(first) {
            return Ok(());
        }
        let log = Arc::clone(&self.log);
        let now_ms = chrono::Utc::now().timestamp_millis();
        tokio::task::spawn_blocking(move || log.apply_retention(now_ms))
            .await
            .map_err(|e| LakeError::Refused(format!("retention stopped: {e}")))?
            .map_err(Into::into)
    }

    /// Reads each partition once. Returns the number of records read.
    async fn sweep(&mut self) -> Result<u64> {
        let mut read = 0;
        let bound = self.pace.flush_events.saturating_mul(SAMPLES_PER_EVENT);
        for index in 0..self.cursors.len() {
            let Cursor { at, next, .. } = &self.cursors[index];
            let (at, next) = (at.clone(), *next);
            let limit = self.recovery_end(&at);
            let (end, records) = self.read(&at, next).await?;
            self.cursors[index].end = end;
            if end <= next {
                continue;
            }
            if records.is_empty() {
                // What is left before the end is no record: on Kafka the ends of transactions.
                self.take_in(&at, Vec::new(), end).await?;
                (self.cursors[index].next, self.moved) = (end, true);
                continue;
            }
            let records: Vec<_> =
                records.into_iter().take_while(|r| limit.is_none_or(|limit| r.offset < limit)).collect();
            let Some(last) = records.last() else { continue };
            let end = last.offset + 1;
            read += records.len() as u64;
            self.progress.records += records.len() as u64;
            self.take_in(&at, records, end).await?;
            (self.cursors[index].next, self.moved) = (end, true);
            if limit.is_some_and(|limit| end >= limit) || self.unflushed >= bound {
                self.flush().await?;
            }
        }
        Ok(read)
    }

    /// Where the partition ends, and records of it as of then or later.
    async fn read(&self, at: &TopicPartition, from: u64) -> Result<(u64, Vec<StoredRecord>)> {
        let log = Arc::clone(&self.log);
        let (at, bytes) = (at.clone(), self.pace.read_bytes);
        let read = move || {
            let end = log.extent(&at)?.end;
            let records = if from < end { log.read(&at, from, bytes)? } else { Vec::new() };
            Ok::<_, LogError>((end, records))
        };
        tokio::task::spawn_blocking(read)
            .await
            .map_err(|e| LakeError::Refused(format!("log reader stopped: {e}")))?
            .map_err(Into::into)
    }

    /// Where an interrupted flush of this partition ended: the first flush after a restart must end
    /// there as well.
    fn recovery_end(&self, at: &TopicPartition) -> Option<u64> {
        let here =
            self.lake.states().filter(|s| s.partition == at.partition && s.raw().schema.topic() == at.topic);
        here.filter_map(|s| s.recover_to).min()
    }

    async fn take_in(&mut self, at: &TopicPartition, records: Vec<StoredRecord>, end: u64) -> Result<()> {
        let mut intake = self.lake.intake(&at.topic, at.partition);
        let now_ms = chrono::Utc::now().timestamp_millis();
        let mut aside = Aside::new(at, self.partitions.get(&at.topic).copied().unwrap_or(1));
        for StoredRecord { offset, record } in records {
            match Event::decode(record.schema, &record.payload) {
                Ok(event) if let Some(why) = ahead::outside(&event, now_ms) => {
                    aside.dead_letter(offset, record, None, why.code, &why.reason)?;
                }
                Ok(event) if aside.belongs_here(&event) => {
                    intake.push(offset, &event);
                    self.unflushed += weight(&event);
                }
                Ok(event) => aside.misplaced(offset, &event, record),
                Err(e) => {
                    let at_ms = Some(record.event_time_ms);
                    aside.dead_letter(offset, record, at_ms, "UNDECODABLE", &e.to_string())?;
                }
            }
        }
        self.progress.undecodable += aside.dead;
        self.progress.misplaced += aside.misplaced;
        aside.append(self.log.as_ref())?;
        self.lake.absorb(intake, end)
    }

    async fn flush(&mut self) -> Result<()> {
        let flushed = self.lake.flush().await?;
        self.unflushed = 0;
        self.progress.commits += flushed.commits;
        self.progress.files += flushed.files_added;
        self.progress.bytes += flushed.bytes_added;
        self.moved = false;
        for (topic, member) in &mut self.members {
            let here = self.cursors.iter().filter(|cursor| cursor.at.topic == *topic);
            match member.commit(&here.map(|c| (c.at.clone(), c.next)).collect::<Vec<_>>()) {
                // The tables have it; the group is told with the next flush.
                Err(away) if away.is_passing() => self.moved = true,
                committed => committed?,
            }
        }
        Ok(())
    }
}

/// The consumer group of those who keep a lake's part of one topic. A log that one process has to
/// itself has one group, of which the log has always known.
pub fn topic_group(group: &str, topic: &str) -> String {
    match group {
        CONSUMER_GROUP => group.into(),
        _ => format!("{group}.{topic}"),
    }
}

/// Whether the log, or a topic of it, may be back soon. A broker that has just started does not
/// know its topics at once.
fn is_away(error: &LogError) -> bool {
    error.is_passing() || matches!(error, LogError::UnknownTopic(_))
}

/// Topics that have tables.
pub fn topics() -> Vec<&'static str> {
    let mut topics: Vec<&str> = SchemaId::ALL.map(SchemaId::topic).to_vec();
    topics.sort_unstable();
    topics.dedup();
    topics
}
