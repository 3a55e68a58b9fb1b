//! Someone who acts on a cluster through the target interface only: plans, has each action approved, gives notice, applies it
//! once, reads back. It dies with all it remembers; what was done is in the cluster.

mod autopilot;
mod lender;

pub use autopilot::Autopilot;
pub use lender::Lender;

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::{
    action::{Action, ActionId},
    state::ClusterState,
    target::{Effect, Notice, Target, TargetError},
};

use crate::{Sim, mistake::ForecastError, target::SimTarget};

/// Who decides what is to be done: a planner with its guard.
pub trait Decide {
    /// Its name in tables.
    fn name(&self) -> String;

    /// Lets its forecast err from now on, where it has one.
    fn mislead(&mut self, _error: ForecastError) {}

    /// What is to be done, in the order it should be. An action that was decided before keeps its id.
    fn decide(&mut self, state: &ClusterState, now_us: i64) -> Vec<Action>;

    /// Whether an action may be begun now, by the newest state; asked immediately before it is applied.
    fn permit(&mut self, action: &Action, state: &ClusterState, now_us: i64) -> bool;

    /// That an action is being sent to the cluster now.
    fn begun(&mut self, _action: &Action, _state: &ClusterState, _now_us: i64) {}

    /// What became of an action; also of one that was never begun.
    fn learned(&mut self, _action: &Action, _ended: Ended, _now_us: i64) {}
}

impl<D: Decide + ?Sized> Decide for Box<D> {
    fn name(&self) -> String {
        self.as_ref().name()
    }

    fn mislead(&mut self, error: ForecastError) {
        self.as_mut().mislead(error);
    }

    fn decide(&mut self, state: &ClusterState, now_us: i64) -> Vec<Action> {
        self.as_mut().decide(state, now_us)
    }

    fn permit(&mut self, action: &Action, state: &ClusterState, now_us: i64) -> bool {
        self.as_mut().permit(action, state, now_us)
    }

    fn begun(&mut self, action: &Action, state: &ClusterState, now_us: i64) {
        self.as_mut().begun(action, state, now_us);
    }

    fn learned(&mut self, action: &Action, ended: Ended, now_us: i64) {
        self.as_mut().learned(action, ended, now_us);
    }
}

/// How an action ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// Read back as done.
    Verified,
    /// The guard or the target refused it.
    Refused,
    /// It was not done in time, or somebody changed it.
    Failed,
    /// Another one holds the lease.
    Fenced,
}

/// How an actuator behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habits {
    /// How long a person takes to approve an action; 0 is no person.
    pub approval_us: i64,
    /// How long an action may take from being applied to being read back as done.
    pub verify_us: i64,
}

impl Default for Habits {
    fn default() -> Self {
        Self { approval_us: 0, verify_us: 30 * crate::MINUTE_US }
    }
}

/// One actuator: what it has under way, under which generation.
#[derive(Debug)]
pub struct Pilot<D> {
    decider: D,
    generation: u64,
    habits: Habits,
    open: Vec<Open>,
    known: BTreeSet<ActionId>,
    applied: BTreeSet<ActionId>,
    counts: BTreeMap<Ended, u64>,
    fenced: bool,
}

#[derive(Debug)]
struct Open {
    action: Action,
    from_us: i64,
    told_us: Option<i64>,
    applied_us: Option<i64>,
    sent: bool,
}

/// Lets an actuator run a cluster until all jobs are done or it is `limit_us`, looking each `every_us`; calls `at` after each.
pub fn fly<D: Decide>(
    target: &mut SimTarget,
    pilot: &mut Pilot<D>,
    every_us: i64,
    limit_us: i64,
    at: &mut dyn FnMut(&Sim),
) {
    let (epoch_us, every_us) = (target.sim().spec().epoch_us, every_us.max(1));
    while target.sim().jobs_done() < target.sim().jobs().len() && target.sim().now_us() < limit_us {
        let now_us = target.sim().now_us();
        pilot.step(target, epoch_us + now_us);
        target.run_until(((now_us / every_us + 1) * every_us).min(limit_us));
        at(target.sim());
    }
}

/// What to do with an open action after a step.
enum Next {
    Wait,
    Applied,
    End(Ended),
}

impl<D: Decide> Pilot<D> {
    /// An actuator that just took the lease of `generation`.
    pub fn new(decider: D, generation: u64, habits: Habits) -> Self {
        Self {
            decider,
            generation,
            habits,
            open: Vec::new(),
            known: BTreeSet::new(),
            applied: BTreeSet::new(),
            counts: BTreeMap::new(),
            fenced: false,
        }
    }

    /// Who decides.
    pub fn decider(&self) -> &D {
        &self.decider
    }

    /// Actions by how they ended.
    pub fn counts(&self) -> &BTreeMap<Ended, u64> {
        &self.counts
    }

    /// Actions under way.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Whether the cluster told it that another one holds the lease.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Looks, decides, and takes each open action one step further. What cannot be seen is not acted on.
    pub fn step(&mut self, target: &mut dyn Target, now_us: i64) {
        let Ok(state) = target.observe() else { return };
        for mut action in self.decider.decide(&state, now_us) {
            if self.known.insert(action.id.clone()) {
                action.generation = self.generation;
                self.open.push(Open {
                    action,
                    from_us: now_us,
                    told_us: None,
                    applied_us: None,
                    sent: false,
                });
            }
        }
        for mut open in std::mem::take(&mut self.open) {
            match self.further(target, &state, &mut open, now_us) {
                Next::Wait => self.open.push(open),
                Next::Applied => {
                    open.applied_us = Some(now_us);
                    self.applied.insert(open.action.id.clone());
                    self.open.push(open);
                }
                Next::End(ended) => {
                    // One that was never done may be decided on again.
                    if ended != Ended::Verified {
                        self.known.remove(&open.action.id);
                    }
                    *self.counts.entry(ended).or_default() += 1;
                    self.decider.learned(&open.action, ended, now_us);
                }
            }
        }
    }

    fn further(
        &mut self,
        target: &mut dyn Target,
        state: &ClusterState,
        open: &mut Open,
        now_us: i64,
    ) -> Next {
        let action = &open.action;
        if let Some(applied_us) = open.applied_us {
            return match target.read_back(action) {
                Ok(Effect::Done { .. }) => Next::End(Ended::Verified),
                Ok(Effect::Overridden { .. }) => Next::End(Ended::Failed),
                _ if now_us - applied_us > self.habits.verify_us => Next::End(Ended::Failed),
                _ => Next::Wait,
            };
        }
        if now_us > action.expires_us {
            return Next::End(Ended::Refused);
        }
        if now_us - open.from_us < self.habits.approval_us {
            return Next::Wait;
        }
        if let Some(missing) = action.after.iter().find(|id| !self.applied.contains(*id)) {
            // What it has to follow may have been refused: then it has no reason any more.
            return if self.known.contains(missing) { Next::Wait } else { Next::End(Ended::Refused) };
        }
        // Of one whose answer was lost, what it came to is read first: it may be done.
        if open.sent {
            match target.read_back(action) {
                Ok(Effect::Absent) => {}
                Ok(_) => return Next::Applied,
                Err(_) => return Next::Wait,
            }
        }
        if !self.decider.permit(action, state, now_us) {
            return Next::End(if open.sent { Ended::Failed } else { Ended::Refused });
        }
        if action.notice_ms > 0 {
            let told_us = *open.told_us.get_or_insert(now_us);
            match target.notify(action) {
                Ok(Notice::Waiting { .. }) if now_us - told_us < action.notice_ms * 1_000 => {
                    return Next::Wait;
                }
                Err(error) => return self.unlucky(&error),
                Ok(_) => {}
            }
        }
        self.decider.begun(action, state, now_us);
        open.sent = true;
        match target.apply(action) {
            Ok(_) => Next::Applied,
            Err(error) => self.unlucky(&error),
        }
    }

    fn unlucky(&mut self, error: &TargetError) -> Next {
        match error {
            TargetError::Unreachable { .. } | TargetError::Unknown { .. } => Next::Wait,
            TargetError::StaleGeneration { .. } => {
                self.fenced = true;
                Next::End(Ended::Fenced)
            }
            _ => Next::End(Ended::Refused),
        }
    }
}
