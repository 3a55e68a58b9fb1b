//! Assignment: which log partitions a runner owns, as members of its consumer group come and go.

use std::time::{Duration, Instant};

use tidegate_log::{Extent, LogError, RebalanceEvent, TopicPartition};

use super::{Cursor, PartitionProgress, Runner, step_span, topic_group, topics};
use crate::error::{LakeError, Result};
use crate::lake::CommitStats;
use crate::maintenance;
use crate::state::GroupState;

/// How often the progress of each partition is recorded.
const RECORD_EVERY: Duration = Duration::from_millis(500);

impl Runner {
    /// Polls the group and reads each partition once, see [`Runner::read_partitions`].
    pub(super) async fn read_or_rejoin(&mut self, wait: Duration) -> Result<u64> {
        let read = async {
            self.rebalance(wait).await?;
            self.read_partitions().await
        };
        match read.await {
            Err(fenced @ LakeError::Fenced { .. }) => self.rejoin(fenced).await.map(|()| 0),
            read => read,
        }
    }

    pub(super) async fn flush_or_rejoin(&mut self) -> Result<()> {
        match self.flush().await {
            Err(fenced @ LakeError::Fenced { .. }) => self.rejoin(fenced).await,
            flushed => flushed,
        }
    }

    /// Updates joined tables with all that is committed, by this process and others.
    pub(super) async fn update_joined_or_rejoin(&mut self) -> Result<()> {
        self.lake.refresh_snapshots().await?;
        let updated = step_span::step("update", self.lake.update_joined()).await;
        self.count_or_rejoin(updated).await
    }

    /// As [`Self::update_joined_or_rejoin`], only the newest windows.
    pub(super) async fn update_live_or_rejoin(&mut self) -> Result<()> {
        self.lake.refresh_snapshots().await?;
        let updated = step_span::step("update", self.lake.update_live()).await;
        self.count_or_rejoin(updated).await
    }

    /// Repairs a slice of the windows that are still pending, if one is due: records that wait to
    /// be read go first. Returns whether to go on at once, because more is pending and this slice
    /// repaired something.
    pub(super) async fn repair_or_rejoin(&mut self, records_wait: bool) -> Result<bool> {
        if !self.repair_pace.is_due(records_wait, Instant::now()) || !self.lake.has_pending().await? {
            return Ok(false);
        }
        let begun = Instant::now();
        let repaired = self.lake.repair_joined(self.repair_pace.slice_us());
        let repaired = step_span::step("repair", repaired).await;
        self.repair_pace.record(begun.elapsed(), Instant::now());
        let has_worked = repaired.as_ref().is_ok_and(|repaired| repaired.commits > 0);
        self.count_or_rejoin(repaired).await?;
        let is_behind = self.lake.has_pending().await?;
        if !is_behind {
            self.repair_pace.rest();
        }
        Ok(is_behind && has_worked)
    }

    async fn count_or_rejoin(&mut self, updated: Result<CommitStats>) -> Result<()> {
        match updated {
            Ok(flushed) => {
                self.progress.commits += flushed.commits;
                self.progress.files += flushed.files_added;
                self.progress.bytes += flushed.bytes_added;
                Ok(())
            }
            Err(fenced @ LakeError::Fenced { .. }) => self.rejoin(fenced).await,
            Err(error) => Err(error),
        }
    }

    pub(super) fn join(&mut self) -> Result<()> {
        self.members.clear();
        for topic in topics() {
            let member = self.log.join(&topic_group(&self.group, topic), &[topic])?;
            self.members.push((topic, member));
        }
        Ok(())
    }

    /// As [`Self::flush_or_rejoin`], followed by maintenance that is due.
    pub(super) async fn flush_and_maintain_or_rejoin(&mut self) -> Result<()> {
        self.flush_or_rejoin().await?;
        match maintenance::run_sliced(&mut self.lake, &self.pace.maintenance, &mut self.merges).await {
            Err(fenced @ LakeError::Fenced { .. }) => self.rejoin(fenced).await,
            tidied => tidied,
        }
    }

    /// Polls the groups for rebalances; once more after `wait` if there are none.
    pub(super) async fn rebalance(&mut self, wait: Duration) -> Result<()> {
        if !self.poll_members().await? && !wait.is_zero() {
            tokio::time::sleep(wait).await;
            self.poll_members().await?;
        }
        Ok(())
    }

    async fn poll_members(&mut self) -> Result<bool> {
        let mut changed = false;
        for index in 0..self.members.len() {
            changed |= self.poll_member(index).await?;
        }
        Ok(changed)
    }

    async fn poll_member(&mut self, index: usize) -> Result<bool> {
        let mut changed = false;
        while let Some(share) = self.members[index].1.poll(Duration::ZERO)? {
            changed = true;
            self.progress.rebalances += 1;
            match share {
                RebalanceEvent::Assigned(gained) => {
                    if let Err(e) = self.attach_partitions(gained).await {
                        // The event comes only once. If the partitions could not be attached,
                        // joining again gets them.
                        self.rejoin_group().await?;
                        return Err(e);
                    }
                }
                RebalanceEvent::Revoking(leaving) => {
                    self.flush().await?;
                    self.detach_partitions(&leaving).await?;
                }
                RebalanceEvent::Lost(lost) => self.detach_partitions(&lost).await?,
            }
        }
        Ok(changed)
    }

    async fn attach_partitions(&mut self, gained: Vec<TopicPartition>) -> Result<()> {
        self.partitions =
            self.log.topics()?.into_iter().map(|(name, config)| (name, config.partitions)).collect();
        for (topic, partitions) in by_topic(&gained) {
            // Ask the log first: if it cannot be reached, nothing is claimed yet.
            let at = |partition: &u32| TopicPartition { topic: topic.clone(), partition: *partition };
            let extents: Vec<Extent> =
                partitions.iter().map(|p| self.log.extent(&at(p))).collect::<Result<_, LogError>>()?;
            let starts = self.lake.attach(&topic, &partitions).await?;
            for ((partition, extent), next) in partitions.iter().zip(extents).zip(starts) {
                // A new lake starts with what the log still holds. One with history must not skip
                // what is gone.
                if next > 0 && next < extent.start {
                    return Err(LakeError::Refused(format!(
                        "the log of {topic}/{partition} starts at offset {}, but the lake has only reached {next}: retention \
                         deleted the records in between. `tidegate pipeline backfill` rebuilds the lake from what is left",
                        extent.start
                    )));
                }
                if next > extent.end {
                    return Err(LakeError::Refused(format!(
                        "the log of {topic}/{partition} ends at offset {}, but the lake has reached {next}: these tables were \
                         computed from another log, or this one lost records. Check the log's address; `tidegate pipeline \
                         backfill` rebuilds the lake from what this log holds",
                        extent.end
                    )));
                }
                let next = next.max(extent.start);
                self.cursors.push(Cursor { at: at(partition), next, end: extent.end, last: None });
            }
        }
        // Commit offsets even without new records: other processes wait for them in the group.
        self.moved = true;
        self.cursors.sort_by(|a, b| a.at.cmp(&b.at));
        Ok(())
    }

    async fn detach_partitions(&mut self, gone: &[TopicPartition]) -> Result<()> {
        for (topic, partitions) in by_topic(gone) {
            self.lake.detach(&topic, &partitions).await?;
        }
        self.cursors.retain(|cursor| !gone.contains(&cursor.at));
        Ok(())
    }

    /// Another process claimed a partition of this one. Drops what is not committed, leaves the
    /// group, and comes back as a new member. The partition's owner reads the dropped records
    /// again.
    async fn rejoin(&mut self, fenced: LakeError) -> Result<()> {
        if !self.lake.is_shared() {
            return Err(fenced);
        }
        tracing::warn!(%fenced, "rejoining the group");
        self.progress.fenced += 1;
        self.rejoin_group().await
    }

    /// Drops everything that is not committed, leaves, and comes back as a new member.
    async fn rejoin_group(&mut self) -> Result<()> {
        let all: Vec<TopicPartition> = self.cursors.iter().map(|c| c.at.clone()).collect();
        self.detach_partitions(&all).await?;
        (self.unflushed, self.moved) = (0, false);
        self.join()
    }

    /// Where each partition that has tables ends now.
    pub(super) fn ends(&self) -> Result<Vec<(TopicPartition, u64)>> {
        let mut ends = Vec::new();
        for (topic, config) in self.log.topics()? {
            if topics().contains(&topic.as_str()) {
                for partition in 0..config.partitions {
                    let at = TopicPartition { topic: topic.clone(), partition };
                    let end = self.log.extent(&at)?.end;
                    ends.push((at, end));
                }
            }
        }
        Ok(ends)
    }

    /// Whether everything below `ends` is in the tables, by this process or another.
    pub(super) fn reached(&self, ends: &[(TopicPartition, u64)]) -> Result<bool> {
        for (at, end) in ends {
            let reached = match self.cursors.iter().find(|cursor| cursor.at == *at) {
                Some(cursor) => cursor.next,
                None => {
                    let group = topic_group(&self.group, &at.topic);
                    self.log.committed_offset(&group, at)?.unwrap_or(0)
                }
            };
            if reached < *end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Records the progress of each partition, at most every [`RECORD_EVERY`]: it visits all
    /// states.
    pub(super) fn record_partitions(&mut self) {
        if self.recorded_at.elapsed() < RECORD_EVERY {
            return;
        }
        let record = |cursor: &Cursor| {
            let Cursor { at, next, end, .. } = cursor.clone();
            let here = |s: &&GroupState| s.partition == at.partition && s.raw().schema.topic() == at.topic;
            let watermark = self.lake.states().filter(here).filter_map(GroupState::watermark).max();
            let watermark_ms = watermark.map(|us| us.div_euclid(1000));
            PartitionProgress { at, next, end: end.max(next), watermark_ms }
        };
        let partitions: Vec<PartitionProgress> = self.cursors.iter().map(record).collect();
        self.progress.behind = partitions.iter().map(|p| p.end - p.next).sum();
        self.progress.partitions = partitions;
        self.recorded_at = Instant::now();
    }
}

fn by_topic(all: &[TopicPartition]) -> Vec<(String, Vec<u32>)> {
    let mut topics: Vec<(String, Vec<u32>)> = Vec::new();
    for at in all {
        match topics.iter_mut().find(|(topic, _)| *topic == at.topic) {
            Some((_, partitions)) => partitions.push(at.partition),
            None => topics.push((at.topic.clone(), vec![at.partition])),
        }
    }
    topics
}
