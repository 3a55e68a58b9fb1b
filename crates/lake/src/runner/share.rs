//! Which partitions a runner keeps: they come and go as the group's members do.

use std::time::{Duration, Instant};

use tidegate_log::{Extent, LogError, Share, TopicPartition};

use super::{Cursor, PartitionProgress, Runner, topic_group, topics};
use crate::error::{LakeError, Result};
use crate::group::GroupState;
use crate::maintain;

/// How often it is noted how far each partition is.
const NOTE_EVERY: Duration = Duration::from_millis(500);

impl Runner {
    /// Takes part in the group and reads each partition once, see [`Runner::sweep`].
    pub(super) async fn sweep_or_rejoin(&mut self, wait: Duration) -> Result<u64> {
        let swept = async {
            self.rebalance(wait).await?;
            self.sweep().await
        };
        match swept.await {
            Err(fenced @ LakeError::Fenced { .. }) => self.rejoin(fenced).await.map(|()| 0),
            swept => swept,
        }
    }

    pub(super) async fn flush_or_rejoin(&mut self) -> Result<()> {
        match self.flush().await {
            Err(fenced @ LakeError::Fenced { .. }) => self.rejoin(fenced).await,
            flushed => flushed,
        }
    }

    /// Puts together what is committed, of topics that several processes may keep.
    pub(super) async fn assemble_or_rejoin(&mut self) -> Result<()> {
        self.lake.look().await?;
        match self.lake.assemble().await {
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

    /// As [`Self::flush_or_rejoin`], and what background work is due.
    pub(super) async fn flush_and_tidy_or_rejoin(&mut self) -> Result<()> {
        self.flush_or_rejoin().await?;
        match maintain::step(&mut self.lake, &self.pace.maintenance).await {
            Err(fenced @ LakeError::Fenced { .. }) => self.rejoin(fenced).await,
            tidied => tidied,
        }
    }

    /// Hears what changed in the groups; after `wait`, if there is nothing to hear.
    pub(super) async fn rebalance(&mut self, wait: Duration) -> Result<()> {
        if !self.hear().await? && !wait.is_zero() {
            tokio::time::sleep(wait).await;
            self.hear().await?;
        }
        Ok(())
    }

    async fn hear(&mut self) -> Result<bool> {
        let mut heard = false;
        for index in 0..self.members.len() {
            heard |= self.hear_member(index).await?;
        }
        Ok(heard)
    }

    async fn hear_member(&mut self, index: usize) -> Result<bool> {
        let mut heard = false;
        while let Some(share) = self.members[index].1.poll(Duration::ZERO)? {
            heard = true;
            self.progress.rebalances += 1;
            match share {
                Share::Gained(gained) => {
                    if let Err(e) = self.gain(gained).await {
                        // Told only once: a share that could not be taken is taken by joining anew.
                        self.join_anew().await?;
                        return Err(e);
                    }
                }
                Share::Leaving(leaving) => {
                    self.flush().await?;
                    self.let_go(&leaving).await?;
                }
                Share::Lost(lost) => self.let_go(&lost).await?,
            }
        }
        Ok(heard)
    }

    async fn gain(&mut self, gained: Vec<TopicPartition>) -> Result<()> {
        self.partitions =
            self.log.topics()?.into_iter().map(|(name, config)| (name, config.partitions)).collect();
        for (topic, partitions) in by_topic(&gained) {
            // The log is asked first: where it cannot be reached nothing is claimed yet.
            let at = |partition: &u32| TopicPartition { topic: topic.clone(), partition: *partition };
            let extents: Vec<Extent> =
                partitions.iter().map(|p| self.log.extent(&at(p))).collect::<Result<_, LogError>>()?;
            let starts = self.lake.attach(&topic, &partitions).await?;
            for ((partition, extent), next) in partitions.iter().zip(extents).zip(starts) {
                // A new lake begins with what the log still holds; one with history must not skip
                // what is gone.
                if next > 0 && next < extent.start {
                    return Err(LakeError::Refused(format!(
                        "the log of {topic}/{partition} begins at offset {}, but the lake has only come to {next}; records in \
                         between are gone by retention. `tidegate pipeline backfill` rebuilds the lake from what is left",
                        extent.start
                    )));
                }
                if next > extent.end {
                    return Err(LakeError::Refused(format!(
                        "the log of {topic}/{partition} ends at offset {}, but the lake has come to {next}: these tables were \
                         computed from another log, or this one lost records. Check the log's address; `tidegate pipeline \
                         backfill` rebuilds the lake from what this log holds",
                        extent.end
                    )));
                }
                let next = next.max(extent.start);
                self.cursors.push(Cursor { at: at(partition), next, end: extent.end });
            }
        }
        // Who waits for this one to have done its share hears it from the group, also where there
        // is nothing to do.
        self.moved = true;
        self.cursors.sort_by(|a, b| a.at.cmp(&b.at));
        Ok(())
    }

    async fn let_go(&mut self, gone: &[TopicPartition]) -> Result<()> {
        for (topic, partitions) in by_topic(gone) {
            self.lake.detach(&topic, &partitions).await?;
        }
        self.cursors.retain(|cursor| !gone.contains(&cursor.at));
        Ok(())
    }

    /// Another process took over what this one thought its own: it leaves the group, drops what it
    /// had not committed, and comes back as a new member. What it drops is read again by whoever
    /// keeps the partition now.
    async fn rejoin(&mut self, fenced: LakeError) -> Result<()> {
        if !self.lake.is_shared() {
            return Err(fenced);
        }
        tracing::warn!(%fenced, "joining the group anew");
        self.progress.fenced += 1;
        self.join_anew().await
    }

    /// Drops everything that is not committed, leaves, and comes back as a new member.
    async fn join_anew(&mut self) -> Result<()> {
        let all: Vec<TopicPartition> = self.cursors.iter().map(|c| c.at.clone()).collect();
        self.let_go(&all).await?;
        (self.unflushed, self.moved) = (0, false);
        self.join()
    }

    /// Where every partition with tables ends now.
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

    /// Whether everything below `ends` is in the tables, whoever brought it there.
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

    /// Notes how far each partition is, now and then: it takes a look through all states.
    pub(super) fn note_partitions(&mut self) {
        if self.noted.elapsed() < NOTE_EVERY {
            return;
        }
        let note = |cursor: &Cursor| {
            let Cursor { at, next, end } = cursor.clone();
            let here = |s: &&GroupState| s.partition == at.partition && s.raw().schema.topic() == at.topic;
            let watermark = self.lake.states().filter(here).filter_map(GroupState::watermark).max();
            let watermark_ms = watermark.map(|us| us.div_euclid(1000));
            PartitionProgress { at, next, end: end.max(next), watermark_ms }
        };
        let partitions: Vec<PartitionProgress> = self.cursors.iter().map(note).collect();
        self.progress.behind = partitions.iter().map(|p| p.end - p.next).sum();
        self.progress.partitions = partitions;
        self.noted = Instant::now();
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
