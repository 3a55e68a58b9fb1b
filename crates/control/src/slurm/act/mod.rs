//! The steps of each kind of action. Each step looks first at what is there, so an action that was
//! cut short is continued.

mod capacity;
mod job;
mod join;
mod limit;
mod loan;
mod node;

pub(super) use capacity::QuotaPlace;

use std::time::{Duration, Instant};

use tidegate_autopilot::action::{Action, Change};
use tidegate_autopilot::state::GrowBy;
use tidegate_autopilot::target::TargetError;

use super::ask::{Slurm, refused};
use super::config::{SlurmConfig, is_word};
use super::declare::Declaration;
use super::notes::Entry;
use super::probe::Setup;
use super::queue::{self, QueueJob};
use super::snapshot::Snapshot;

/// Time between two looks at a step that takes time.
const POLL_EVERY: Duration = Duration::from_millis(300);

/// An action being carried out.
#[derive(Debug)]
pub(super) struct Act<'a> {
    pub slurm: &'a Slurm,
    pub config: &'a SlurmConfig,
    pub setup: &'a Setup,
    pub action: &'a Action,
}

/// What is noted before the first step, to tell later which steps were done.
#[derive(Debug, Default, Clone)]
pub(super) struct Before {
    pub restarts: Option<u32>,
    pub nodes: Vec<String>,
}

impl Act<'_> {
    /// Checks that the action can be done; returns what to note.
    pub(super) fn check(&self, snapshot: &Snapshot) -> Result<Before, TargetError> {
        match &self.action.change {
            Change::ResizeJob { job, from_gpus, to_gpus, keep_nodes, add_nodes } => {
                let keep = keep_nodes.iter().chain(add_nodes);
                self.words(keep)?;
                if to_gpus < from_gpus {
                    self.check_shrink(snapshot, job, *to_gpus, keep_nodes)
                } else {
                    self.check_grow(snapshot, job, *to_gpus)
                }
            }
            Change::Preempt { job, .. } => self.check_preempt(snapshot, job),
            Change::Lend { .. } => self.check_lend(snapshot),
            Change::Reclaim { loan, nodes, to_gpus, .. } => {
                self.check_reclaim(snapshot, loan, *to_gpus, nodes)
            }
            Change::AdjustReservation(adjust) => self.check_adjust(snapshot, adjust),
            Change::DrainNode { node, .. } => self.check_drain(snapshot, node),
            Change::ReturnNode { node, drained_by } => self.check_return(snapshot, node, drained_by),
        }
    }

    /// Does the steps that are left; returns what was done, for people.
    pub(super) fn carry_out(&self, snapshot: &Snapshot, entry: &mut Entry) -> Result<String, TargetError> {
        match &self.action.change {
            Change::ResizeJob { job, from_gpus, to_gpus, keep_nodes, .. } if to_gpus < from_gpus => {
                self.shrink(job, keep_nodes, entry)
            }
            Change::ResizeJob { job, from_gpus, to_gpus, keep_nodes, add_nodes } => {
                let now = self.job_now(job)?;
                let declared = now.and_then(|job| Declaration::parse(&job.comment).elastic);
                if declared.is_some_and(|elastic| elastic.grow == GrowBy::Satellites) {
                    return self.join(job, to_gpus - from_gpus, entry);
                }
                self.grow(job, *to_gpus, keep_nodes, add_nodes, entry)
            }
            Change::Preempt { job, .. } => self.preempt(job, entry, &snapshot.notes),
            Change::Lend { extends: Some(loan), expires_us, .. } => self.extend(snapshot, loan, *expires_us),
            Change::Lend { .. } => self.lend(snapshot, entry),
            Change::Reclaim { loan, to_gpus, .. } => self.reclaim(snapshot, loan, *to_gpus),
            Change::AdjustReservation(adjust) => self.adjust(snapshot, adjust),
            Change::DrainNode { node, reason } => self.drain(snapshot, node, reason),
            Change::ReturnNode { node, drained_by } => self.give_back(snapshot, node, drained_by),
        }
    }

    fn refuse(&self, why: impl Into<String>) -> TargetError {
        refused(&self.action.id, why)
    }

    /// Refuses names that Slurm could interpret otherwise.
    fn words<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> Result<(), TargetError> {
        match names.into_iter().find(|name| !is_word(name)) {
            Some(name) => Err(self.refuse(format!("{name:?} is not a name that Slurm takes"))),
            None => Ok(()),
        }
    }

    fn marker(&self) -> String {
        super::marker::marker(&self.action.id, self.action.generation)
    }

    /// The job's present state; `None`: it ended, or does not exist.
    fn job_now(&self, id: &str) -> Result<Option<QueueJob>, TargetError> {
        Ok(queue::jobs(self.slurm)?.into_iter().find(|job| job.id == id && job.is_open()))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.config.settle_ms)
    }
}
