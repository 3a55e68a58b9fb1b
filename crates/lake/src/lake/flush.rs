//! Flush: commits one table of a group after the other, the anchor last.

use arrow::array::RecordBatch;

use super::revision::{partial_revisions, revise_segment};
use super::segments::CommittedSegments;
use super::{CommitStats, IDLE_PROGRESS, Lake};
use crate::delta::{Change, DataFile};
use crate::error::{LakeError, Result};
use crate::exec::merge;
use crate::pipeline::plan::Group;
use crate::state::{GroupState, KeyedState};
use crate::table::{Layout, OPEN, PARTITION, SEGMENT, TableSpec};
use crate::window::{InvalidatedSpans, merge_spans};

/// Data files that a commit adds, and those it removes.
type Files = (Vec<DataFile>, Vec<DataFile>);

/// Whether a partition of the group has something to commit.
fn is_due(state: &GroupState, group: &Group) -> bool {
    let idle = state.absorbed - state.committed;
    // A group that repairs an interrupted flush commits only where that flush ended.
    let repairing = state.recover_to.is_some_and(|end| state.absorbed < end);
    state.raw().spec.name == group.raw.spec.name
        && !repairing
        && (state.changed || state.recover_to.is_some() || idle > IDLE_PROGRESS)
}

impl Lake {
    /// Commits everything that was absorbed. Afterwards a crash loses none of it.
    pub async fn flush(&mut self) -> Result<CommitStats> {
        let mut flushed = CommitStats::default();
        if self.states.values().any(|s| s.changed || s.has_waiting()) {
            self.refresh().await?;
        }
        let started = std::time::Instant::now();
        for group in self.plan.groups.clone() {
            let due: Vec<(String, u32)> =
                self.states.iter().filter(|(_, s)| is_due(s, &group)).map(|(name, _)| name.clone()).collect();
            let mut states: Vec<GroupState> =
                due.iter().map(|name| self.states.remove(name).expect("just listed")).collect();
            let result = match states.is_empty() {
                true => Ok(()),
                false => self.flush_group(&group, &mut states, &mut flushed).await,
            };
            self.states.extend(due.into_iter().zip(states));
            result?;
        }
        if flushed.commits > 0 {
            self.publish().await?;
        }
        self.save_keys_if_due().await;
        tracing::debug!(commits = flushed.commits, took = ?started.elapsed(), "flushed");
        Ok(flushed)
    }

    /// One commit per table, for all log partitions that are due.
    async fn flush_group(
        &mut self,
        group: &Group,
        states: &mut [GroupState],
        flushed: &mut CommitStats,
    ) -> Result<()> {
        let order = group.commit_order();
        for (place, spec) in order.iter().enumerate() {
            let mut change = Change::default();
            for state in states.iter() {
                let progress = self.store_mut(&spec.name).progress(state.partition).await?;
                if progress >= state.absorbed {
                    continue;
                }
                let (adds, removes) = match spec.layout {
                    Layout::Raw => self.raw_files(state, progress).await?,
                    Layout::Samples => self.sample_files(state, spec).await?,
                    Layout::Keyed => self.keyed_files(state, spec).await?,
                    Layout::Windowed => self.windowed_files(state, spec).await?,
                };
                // A table without changes may stay behind. The anchor always has the group's
                // progress.
                if adds.is_empty() && removes.is_empty() && place + 1 < order.len() {
                    continue;
                }
                change.progress.push((state.partition, state.absorbed));
                if place + 1 == order.len()
                    && let Some(mut spans) = state.invalidated()
                {
                    spans.all.extend(self.node_spans(state).await?.unwrap_or_default());
                    change.invalidated.get_or_insert_default().extend(spans);
                }
                change.adds.extend(adds);
                change.removes.extend(removes);
            }
            if change.progress.is_empty() {
                continue;
            }
            self.count_commit()?;
            flushed.commits += 1;
            flushed.files_added += change.adds.len() as u64;
            flushed.bytes_added += change.adds.iter().map(|f| f.size as u64).sum::<u64>();
            if let Some(InvalidatedSpans { all, waits }) = &mut change.invalidated {
                [all, waits].into_iter().for_each(|spans| *spans = merge_spans(std::mem::take(spans), 0));
            }
            self.store_mut(&spec.name).commit(change).await?;
        }
        for state in states {
            self.windows.retain(|(name, partition), _| {
                *partition != state.partition || !group.windowed.iter().any(|p| p.spec.name == *name)
            });
            state.seal()?;
        }
        Ok(())
    }

    /// For tests: fails here if the process is to die before this commit.
    pub(super) fn count_commit(&mut self) -> Result<()> {
        match &mut self.interrupt_after {
            Some(0) => Err(LakeError::Refused("interrupted for a test".into())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The committed files of a table that hold rows of the state's log partition.
    fn files_of(&self, state: &GroupState, spec: &TableSpec) -> Result<Vec<DataFile>> {
        let partition = state.partition.to_string();
        let mut files = self.stores[&spec.name].files()?;
        files.retain(|file| file.partition_value(PARTITION) == Some(&partition));
        Ok(files)
    }

    async fn raw_files(&self, state: &GroupState, from: u64) -> Result<Files> {
        let store = &self.stores[&state.raw().spec.name];
        let rows: Vec<RecordBatch> = state
            .raw_rows_from(from)?
            .iter()
            .map(|batch| Ok(crate::batch::conform(batch, &store.spec().file_schema())?))
            .collect::<Result<_>>()?;
        let partition = vec![(PARTITION, state.partition.to_string())];
        Ok((store.write(partition, &rows).await?.into_iter().collect(), Vec::new()))
    }

    /// The raw table of samples is committed last, so it has none of the samples that are held.
    async fn sample_files(&self, state: &GroupState, spec: &TableSpec) -> Result<Files> {
        let store = &self.stores[&spec.name];
        let schema = store.spec().file_schema();
        let samples = state.samples().expect("a group of samples");
        let (known, rows) = samples.sorted(state.partition, spec.full_schema());
        let rows = rows.map(|batch| Ok(crate::batch::conform(&batch?, &schema)?));
        let partition = vec![(PARTITION, state.partition.to_string())];
        Ok((store.write_each(partition, &known, rows).await?.into_iter().collect(), Vec::new()))
    }

    async fn keyed_files(&self, state: &GroupState, spec: &TableSpec) -> Result<Files> {
        let store = &self.stores[&spec.name];
        let (mut adds, mut removes) = (Vec::new(), Vec::new());
        if !state.changed {
            return Ok((adds, removes));
        }
        let index =
            state.group.keyed.iter().position(|p| p.spec.name == spec.name).expect("a table of this group");
        let revived = state.keyed().map(KeyedState::revived).filter(|keys| !keys.is_empty());
        let values = |open: bool| vec![(PARTITION, state.partition.to_string()), (OPEN, open.to_string())];
        for file in self.files_of(state, spec)? {
            if file.partition_value(OPEN) == Some("true") {
                removes.push(file);
            } else if let Some(revived) = revived
                && let Some(rest) = store.without_keys(&file, revived).await?
            {
                adds.extend(store.write(values(false), &rest).await?);
                removes.push(file);
            }
        }
        let (open, sealed) = state.split_output(index)?;
        adds.extend(store.write(values(false), &sealed).await?);
        adds.extend(store.write(values(true), &open).await?);
        Ok((adds, removes))
    }

    async fn windowed_files(&self, state: &GroupState, spec: &TableSpec) -> Result<Files> {
        let store = &self.stores[&spec.name];
        let mut adds = Vec::new();
        let Some(segments) = self.windows.get(&(spec.name.clone(), state.partition)) else {
            return Ok((adds, Vec::new()));
        };
        let planned =
            state.group.windowed.iter().find(|p| p.spec.name == spec.name).expect("a table of this group");
        let segment = planned.pipeline.shape.segment().expect("windowed");
        if !spec.partials.is_empty() {
            for (start, parts) in segments {
                let rows = match parts.as_slice() {
                    [rows] => rows.clone(),
                    _ => merge::merge_batches(&self.session(), spec, parts.clone()).await?,
                };
                let rows = partial_revisions(&planned.pipeline.shape, spec, &rows, state.closed_before)?;
                let values = vec![(PARTITION, state.partition.to_string()), (SEGMENT, segment.name(*start))];
                adds.extend(store.write(values, &[rows]).await?);
            }
            return Ok((adds, Vec::new()));
        }
        let mut committed = CommittedSegments::new(store, segment, self.files_of(state, spec)?);
        for (start, rows) in segments {
            let [rows] = rows.as_slice() else { unreachable!("only partial aggregates are in parts") };
            let old = committed.rows(*start, |_| true).await?;
            let Some(rows) = revise_segment(&planned.pipeline.shape, spec, rows, &old, state.closed_before)?
            else {
                continue;
            };
            let values = vec![(PARTITION, state.partition.to_string()), (SEGMENT, segment.name(*start))];
            adds.extend(store.write(values, &[rows]).await?);
            committed.replace(*start);
        }
        let (left, removes) = committed.finish().await?;
        adds.extend(left);
        Ok((adds, removes))
    }
}
