//! The steps of each kind of action. Each looks first at what is there, so that begun ones go on
//! where they stopped.

mod capacity;
mod job;
mod join;
mod limit;
mod loan;
mod node;

pub(super) use capacity::Place;

use std::time::{Duration, Instant};

use tidegate_autopilot::action::{Action, Change};
use tidegate_autopilot::state::GrowBy;
use tidegate_autopilot::target::TargetError;

use super::ask::{Slurm, refused};
use super::config::{SlurmConfig, is_word};
use super::declare::Declared;
use super::notes::Entry;
use super::observe::Look;
use super::probe::Setup;
use super::queue::{self, QueueJob};

/// How often a step that takes time is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// An action on its way.
#[derive(Debug)]
pub(super) struct Act<'a> {
    pub slurm: &'a Slurm,
    pub config: &'a SlurmConfig,
    pub setup: &'a Setup,
    pub action: &'a Action,
}

/// What is noted before the first step, to know later which steps were done.
#[derive(Debug, Default, Clone)]
pub(super) struct Before {
    pub restarts: Option<u32>,
    pub nodes: Vec<String>,
}

impl Act<'_> {
    /// Whether it can be done at all as things stand; what is to be noted.
    pub(super) fn check(&self, look: &Look) -> Result<Before, TargetError> {
        match &self.action.change {
            Change::ResizeJob { job, from_gpus, to_gpus, keep_nodes, add_nodes } => {
                let keep = keep_nodes.iter().chain(add_nodes);
                self.words(keep)?;
                if to_gpus < from_gpus {
                    self.check_shrink(look, job, *to_gpus, keep_nodes)
                } else {
                    self.check_grow(look, job, *to_gpus)
                }
            }
            Change::Preempt { job, .. } => self.check_preempt(look, job),
            Change::Lend { .. } => self.check_lend(look),
            Change::Reclaim { loan, nodes, to_gpus, .. } => self.check_reclaim(look, loan, *to_gpus, nodes),
            Change::AdjustReservation(adjust) => self.check_adjust(look, adjust),
            Change::DrainNode { node, .. } => self.check_drain(look, node),
            Change::ReturnNode { node, drained_by } => self.check_return(look, node, drained_by),
        }
    }

    /// Does what is left of it; says what was done.
    pub(super) fn carry_out(&self, look: &Look, entry: &mut Entry) -> Result<String, TargetError> {
        match &self.action.change {
            Change::ResizeJob { job, from_gpus, to_gpus, keep_nodes, .. } if to_gpus < from_gpus => {
                self.shrink(job, keep_nodes, entry)
            }
            Change::ResizeJob { job, from_gpus, to_gpus, keep_nodes, add_nodes } => {
                let now = self.job_now(job)?;
                let declared = now.and_then(|job| Declared::read(&job.comment).elastic);
                if declared.is_some_and(|elastic| elastic.grow == GrowBy::Satellites) {
                    return self.join(job, to_gpus - from_gpus, entry);
                }
                self.grow(job, *to_gpus, keep_nodes, add_nodes, entry)
            }
            Change::Preempt { job, .. } => self.preempt(job, entry),
            Change::Lend { extends: Some(loan), expires_us, .. } => self.extend(look, loan, *expires_us),
            Change::Lend { .. } => self.lend(look, entry),
            Change::Reclaim { loan, to_gpus, .. } => self.reclaim(look, loan, *to_gpus),
            Change::AdjustReservation(adjust) => self.adjust(look, adjust),
            Change::DrainNode { node, reason } => self.drain(look, node, reason),
            Change::ReturnNode { node, drained_by } => self.give_back(look, node, drained_by),
        }
    }

    fn refuse(&self, why: impl Into<String>) -> TargetError {
        refused(&self.action.id, why)
    }

    /// Refuses names that Slurm could read as something else.
    fn words<'n>(&self, names: impl IntoIterator<Item = &'n String>) -> Result<(), TargetError> {
        match names.into_iter().find(|name| !is_word(name)) {
            Some(name) => Err(self.refuse(format!("{name:?} is no name that Slurm takes"))),
            None => Ok(()),
        }
    }

    fn marker(&self) -> String {
        super::marker::marker(&self.action.id, self.action.generation)
    }

    /// The job as it is now; `None`: it ended, or was never there.
    fn job_now(&self, id: &str) -> Result<Option<QueueJob>, TargetError> {
        Ok(queue::jobs(self.slurm)?.into_iter().find(|job| job.id == id && job.is_open()))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.config.settle_ms)
    }
}
