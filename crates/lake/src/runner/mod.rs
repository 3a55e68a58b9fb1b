//! Runner: reads the log and keeps the lake up to date, until it has caught up
//! ([`Runner::catch_up`]) or until it is stopped ([`Runner::run`]).

mod assignment;
mod dead_letter;
mod ingest;
mod pace;
mod poison;
mod repair_pace;
mod step;
mod step_span;
mod time_guard;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_events::SchemaId;
use tidegate_log::poison::DeathWatch;
use tidegate_log::tail::{Cursor, Piece};
use tidegate_log::{EventLog, LogError, Member, TopicPartition};
use tokio::sync::watch;

use crate::catalog::CatalogSource;
use crate::error::{LakeError, Result};
use crate::lake::Lake;
use crate::maintenance::{self, Merges};
use crate::raw::samples::SAMPLES_PER_EVENT;
use repair_pace::RepairPace;

pub use pace::{OLDEST_MS, Pace};
pub use step::Step;

/// Consumer group that commits progress to the log, for display and to hold log retention back. If
/// several lakes read one log, this is the prefix of their groups' names.
pub const CONSUMER_GROUP: &str = "tidegate-lake";
/// How long a runner that found nothing to read waits before it looks again.
const IDLE: Duration = Duration::from_millis(100);
/// How long a topic may stay unknown while brokers start.
const STARTING: Duration = Duration::from_secs(30);
/// How long a merge of files of samples goes on between two commits, where it keeps up.
const MERGE_SLICE: Duration = Duration::from_millis(500);
/// How often records past their topic's retention are dropped from the log.
const RETAIN_EVERY: Duration = Duration::from_secs(3600);

/// What a runner has done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Records read.
    pub records: u64,
    /// Records that could not be decoded or whose time is out of range.
    pub undecodable: u64,
    /// Records found in another partition than that of their key, and routed to it.
    pub misplaced: u64,
    /// Commits to Delta tables.
    pub commits: u64,
    /// Data files added.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Records in the log that were not read yet at the last look.
    pub behind: u64,
    /// Log partitions that this process owns, as of the last look.
    pub partitions: Vec<PartitionProgress>,
    /// How often partitions were assigned, revoked or lost.
    pub rebalances: u64,
    /// How often a commit was refused because another process had claimed the partition.
    pub fenced: u64,
}

/// Progress of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionProgress {
    /// The log partition.
    pub at: TopicPartition,
    /// Offset of the next record to read.
    pub next: u64,
    /// End of the partition at the last look.
    pub end: u64,
    /// Newest event time absorbed, ms since the epoch.
    pub watermark_ms: Option<i64>,
}

/// One process's reader of the log and writer of the lake.
pub struct Runner {
    log: Arc<dyn EventLog>,
    group: String,
    lake: Lake,
    pace: Pace,
    /// Membership in the consumer group of each topic.
    members: Vec<(&'static str, Box<dyn Member>)>,
    cursors: Vec<Cursor>,
    /// Number of partitions of each topic, over all processes.
    partitions: HashMap<String, u32>,
    /// Events absorbed and not committed, measured in samples, see [`weight`].
    unflushed: u64,
    /// A cursor moved since offsets were last committed to the group.
    moved: bool,
    progress: Progress,
    repair_pace: RepairPace,
    merges: Merges,
    /// When the progress of partitions was last recorded.
    recorded_at: Instant,
    watch: Option<DeathWatch>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("cursors", &self.cursors).field("progress", &self.progress).finish()
    }
}

impl Runner {
    /// Joins the consumer groups of this lake, one for every topic that has tables. Creates nothing
    /// in the log.
    ///
    /// Each lake has its own groups: in one group, two lakes would get half of the log each. Each
    /// topic has its own group, so that its partitions are spread evenly whatever happens to the
    /// others.
    pub async fn start(log: Arc<dyn EventLog>, group: &str, lake: Lake, pace: Pace) -> Result<Self> {
        let mut runner = Self::new(log, group, lake, pace);
        runner.join()?;
        runner.rebalance(Duration::ZERO).await?;
        Ok(runner)
    }

    /// Takes all partitions, without joining a group: for a lake with one writer.
    pub async fn start_exclusive(log: Arc<dyn EventLog>, lake: Lake, pace: Pace) -> Result<Self> {
        let mut runner = Self::new(log, CONSUMER_GROUP, lake, pace);
        for topic in topics() {
            let member = tidegate_log::sole_member(Arc::clone(&runner.log), CONSUMER_GROUP, &[topic])?;
            runner.members.push((topic, member));
        }
        runner.rebalance(Duration::ZERO).await?;
        Ok(runner)
    }

    fn new(log: Arc<dyn EventLog>, group: &str, lake: Lake, pace: Pace) -> Self {
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
            repair_pace: RepairPace::default(),
            merges: Merges::sliced(MERGE_SLICE),
            recorded_at: Instant::now(),
            watch: None,
        }
    }

    /// Notes with `watch` which records it works on, and sets those aside that its earlier lives
    /// died of.
    #[must_use]
    pub fn watched_by(mut self, watch: DeathWatch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Source of the catalogs that queries use.
    pub fn catalog(&self) -> CatalogSource {
        self.lake.catalog()
    }

    /// The lake that this runner writes.
    pub fn lake(&self) -> &Lake {
        &self.lake
    }

    /// What the runner has done so far.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Absorbs and commits everything in the log. Calls `on_progress` after each round.
    ///
    /// If other processes write too, it returns when all of them have committed what the log held
    /// at the start, and joined tables are up to date with it. Until then each process stays to
    /// take over from one that dies.
    pub async fn catch_up(&mut self, on_progress: &mut (dyn FnMut(&Progress) + Send)) -> Result<Progress> {
        let mut last_contact = Instant::now();
        let ends = loop {
            match self.ends() {
                Err(LakeError::Log(LogError::UnknownTopic(_))) if last_contact.elapsed() < STARTING => {
                    tokio::time::sleep(IDLE).await;
                }
                ends => break ends?,
            }
        };
        let mut idle = Duration::ZERO;
        let mut targets = None;
        let is_owned = ends.iter().any(|(at, _)| (at.topic.as_str(), at.partition) == Lake::joined_owner());
        loop {
            let read = match self.read_or_rejoin(idle).await {
                // A broker that has just started does not know its topics at once.
                Err(LakeError::Log(LogError::UnknownTopic(_))) if last_contact.elapsed() < STARTING => {
                    tokio::time::sleep(IDLE).await;
                    continue;
                }
                read => read?,
            };
            last_contact = Instant::now();
            self.record_partitions();
            on_progress(&self.progress);
            idle = Duration::ZERO;
            if read == 0 {
                if self.unflushed > 0 || self.moved {
                    self.flush_or_rejoin().await?;
                } else if self.reached(&ends)? {
                    self.update_joined_or_rejoin().await?;
                    let targets = targets.get_or_insert_with(|| self.lake.joined_targets());
                    if !is_owned || self.lake.joined_reached(targets).await? {
                        break;
                    }
                    idle = IDLE;
                } else {
                    idle = IDLE;
                }
            }
        }
        on_progress(&self.progress);
        Ok(self.progress.clone())
    }

    /// Keeps up with the log until stopped, then commits what is left. Returns early only on an
    /// error. If the log cannot be reached it waits, and queries go on.
    pub async fn run(
        &mut self,
        mut stop: watch::Receiver<bool>,
        on_progress: &mut (dyn FnMut(&Progress) + Send),
    ) -> Result<()> {
        let mut refreshed = Instant::now();
        let mut flushed = Instant::now();
        let mut flush_after = self.pace.flush_every;
        let mut joined_updated: Option<Instant> = None;
        // Since the last flush. Repairs are paced by themselves.
        let mut joined_commits = 0;
        let mut retained = Instant::now();
        let mut fresh = false;
        while !*stop.borrow_and_update() {
            let read = match self.read_or_rejoin(Duration::ZERO).await {
                Err(LakeError::Log(error)) if is_unavailable(&error) => {
                    tracing::warn!(%error, "waiting for the log");
                    tokio::time::sleep(IDLE).await;
                    continue;
                }
                read => read?,
            };
            fresh |= read > 0;
            let due = self.pace.refresh_every.is_some_and(|every| refreshed.elapsed() >= every);
            if due && (fresh || self.lake.is_shared()) {
                self.lake.refresh_snapshots().await?;
                self.lake.refresh().await?;
                (refreshed, fresh) = (Instant::now(), false);
            }
            if (self.unflushed > 0 || self.moved) && flushed.elapsed() >= flush_after {
                let before = self.progress.commits;
                self.flush_and_maintain_or_rejoin().await?;
                flushed = Instant::now();
                let commits = self.progress.commits - before + std::mem::take(&mut joined_commits);
                flush_after = self.pace.until_flush(commits);
            }
            if joined_updated.is_none_or(|at| at.elapsed() >= self.pace.joined_every) {
                let before = self.progress.commits;
                self.update_live_or_rejoin().await?;
                joined_updated = Some(Instant::now());
                joined_commits += self.progress.commits - before;
            }
            // One slice, then the log again.
            let is_behind = self.repair_or_rejoin(read > 0).await?;
            if retained.elapsed() >= RETAIN_EVERY {
                match self.apply_retention().await {
                    Err(LakeError::Log(error)) if is_unavailable(&error) => {}
                    applied => applied?,
                }
                retained = Instant::now();
            }
            self.record_partitions();
            on_progress(&self.progress);
            if read == 0 && !is_behind {
                tokio::select! {
                    () = tokio::time::sleep(IDLE) => {}
                    _ = stop.changed() => {}
                }
            }
        }
        self.flush_or_rejoin().await?;
        self.update_live_or_rejoin().await?;
        let begun = Instant::now();
        while begun.elapsed() < self.pace.repair_at_stop && self.repair_or_rejoin(false).await? {}
        Ok(())
    }

    /// Compacts, applies retention and deletes unreferenced files, if due.
    pub async fn maintain(&mut self) -> Result<()> {
        self.apply_retention().await?;
        maintenance::run_due(&mut self.lake, &self.pace.maintenance).await
    }

    /// Drops records past retention that every consumer group has passed. One process does it: the
    /// owner of the first partition.
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
    async fn read_partitions(&mut self) -> Result<u64> {
        let mut read = 0;
        let bound = self.pace.flush_events.saturating_mul(SAMPLES_PER_EVENT);
        for index in 0..self.cursors.len() {
            let limit = self.recovery_end(&self.cursors[index].at);
            let (cursor, Piece { records, next }) = self.peek(&self.cursors[index]).await?;
            self.cursors[index].end = cursor.end;
            if !cursor.is_behind() {
                continue;
            }
            let at = cursor.at;
            if records.is_empty() {
                self.ingest(&at, Vec::new(), next)?;
                (self.cursors[index].next, self.moved) = (next, true);
                continue;
            }
            let mut records: Vec<_> =
                records.into_iter().take_while(|r| limit.is_none_or(|limit| r.offset < limit)).collect();
            let is_tried_alone = poison::cut(self.watch.as_ref(), &at, &mut records);
            if is_tried_alone && self.unflushed > 0 {
                self.flush().await?;
            }
            let Some(last) = records.last() else { continue };
            let end = last.offset + 1;
            read += records.len() as u64;
            self.progress.records += records.len() as u64;
            self.ingest(&at, records, end)?;
            (self.cursors[index].next, self.moved) = (end, true);
            if limit.is_some_and(|limit| end >= limit) || self.unflushed >= bound || is_tried_alone {
                self.flush().await?;
            }
        }
        Ok(read)
    }

    /// Looks where the partition ends and reads a piece of it. The cursor moves only once the piece
    /// is absorbed: the partition may be lost to another member until then, and a flush may have to
    /// end where an interrupted one did. Records that retention dropped are an error here.
    async fn peek(&self, cursor: &Cursor) -> Result<(Cursor, Piece)> {
        let log = Arc::clone(&self.log);
        let (mut cursor, bytes) = (cursor.clone(), self.pace.read_bytes);
        let read = move || {
            cursor.refresh(log.as_ref())?;
            let piece = cursor.peek(log.as_ref(), bytes)?;
            Ok::<_, LogError>((cursor, piece))
        };
        tokio::task::spawn_blocking(read)
            .await
            .map_err(|e| LakeError::Refused(format!("log reader stopped: {e}")))?
            .map_err(Into::into)
    }

    /// Where an interrupted flush of this partition ended. The first flush after a restart must end
    /// there too.
    fn recovery_end(&self, at: &TopicPartition) -> Option<u64> {
        let here =
            self.lake.states().filter(|s| s.partition == at.partition && s.raw().schema.topic() == at.topic);
        here.filter_map(|s| s.recover_to).min()
    }

    async fn flush(&mut self) -> Result<()> {
        let flushed = step_span::step("flush", self.lake.flush()).await?;
        self.unflushed = 0;
        self.progress.commits += flushed.commits;
        self.progress.files += flushed.files_added;
        self.progress.bytes += flushed.bytes_added;
        self.moved = false;
        if let Some(watch) = &mut self.watch {
            watch.saved();
        }
        for (topic, member) in &mut self.members {
            let here = self.cursors.iter().filter(|cursor| cursor.at.topic == *topic);
            match member.commit(&here.map(|c| (c.at.clone(), c.next)).collect::<Vec<_>>()) {
                // The tables have it. The group gets it with the next flush.
                Err(error) if error.is_passing() => self.moved = true,
                committed => committed?,
            }
        }
        Ok(())
    }
}

/// Consumer group for one topic of a lake. A log that one process has to itself uses a single group
/// for all topics.
pub fn topic_group(group: &str, topic: &str) -> String {
    match group {
        CONSUMER_GROUP => group.into(),
        _ => format!("{group}.{topic}"),
    }
}

/// Whether the log, or a topic of it, may be back soon. A broker that has just started does not
/// know its topics at once.
fn is_unavailable(error: &LogError) -> bool {
    error.is_passing() || matches!(error, LogError::UnknownTopic(_))
}

/// Topics that have tables.
pub fn topics() -> Vec<&'static str> {
    let mut topics: Vec<&str> = SchemaId::ALL.map(SchemaId::topic).to_vec();
    topics.sort_unstable();
    topics.dedup();
    topics
}
