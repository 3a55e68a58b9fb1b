//! The simulated cluster as the autopilot meets it: through the target interface, with all that can
//! go wrong on the way.

mod apply;
mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_autopilot::{
    action::{Action, ActionId, Kind},
    state::{ClusterState, LoanId},
    target::{Capabilities, Effect, Notice, Receipt, Target, TargetError},
};

use crate::{PPM, Sim};

/// What can go wrong between the autopilot and the cluster. Shares are per call, in ppm; all is
/// well by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControlFaults {
    /// The scheduler cannot be reached: nothing is done or told.
    pub unreachable_ppm: u32,
    /// It says no.
    pub refuse_ppm: u32,
    /// It says yes and does nothing.
    pub lie_ppm: u32,
    /// It does it or not, and the answer is lost.
    pub unknown_ppm: u32,
    /// It says yes and does it this much later.
    pub slow_us: i64,
    /// A job that was told writes its checkpoint and does not say so.
    pub silent_ppm: u32,
    /// What is observed is this old.
    pub telemetry_delay_us: i64,
    /// Observations that are lost; the one before is told again.
    pub telemetry_loss_ppm: u32,
    /// How often is observed, where observations are delayed or lost.
    pub telemetry_every_us: i64,
}

/// An effect on the cluster that really took place, for whoever checks what the autopilot promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedEffect {
    pub at_us: i64,
    /// When the cluster was asked; a slow one does it later.
    pub asked_us: i64,
    pub action: ActionId,
    pub generation: u64,
    pub kind: Kind,
    /// Whose budget it is of: jobs that leave what is called back are part of taking it back.
    /// `None`: no budget's, a loan only goes on.
    pub counts_as: Option<Kind>,
    /// How long before the last of its time, twice the promise to give it back, a loan was let go
    /// on, µs; 0 and less is in time.
    pub early_us: Option<i64>,
}

/// A simulated cluster behind the target interface.
#[derive(Debug, Clone)]
pub struct SimTarget {
    sim: Sim,
    control: ControlFaults,
    rng: ChaCha8Rng,
    /// Greatest generation that was ever shown; kept in the cluster.
    generation: u64,
    /// Actions that were applied, with when: written into the cluster with the effect.
    applied: BTreeMap<ActionId, i64>,
    /// Actions that were taken and are not done yet.
    slow: Vec<(i64, Action)>,
    loans: BTreeMap<LoanId, OpenLoan>,
    /// Who drained a node: an action with its generation, or a person.
    drains: BTreeMap<u32, Option<(ActionId, u64)>>,
    /// Notices by action: since when, and when the job will have answered.
    notices: BTreeMap<ActionId, (i64, Option<i64>)>,
    snapshots: VecDeque<ClusterState>,
    last: Option<ClusterState>,
    effects: Vec<AppliedEffect>,
    ended: Vec<(LoanId, i64)>,
    /// Nodes with jobs on them that were called back, and when that was asked for.
    called_us: BTreeMap<u32, i64>,
    /// How long such nodes took to be home and ready lately, newest last, µs.
    took_us: VecDeque<i64>,
}

/// Nodes taken back of which the time is kept, and how many it takes to tell it.
const TOOK_KEPT: usize = 100;
const TOOK_ENOUGH: usize = 20;

/// A loan as the cluster keeps it.
#[derive(Debug, Clone)]
struct OpenLoan {
    from: String,
    to: String,
    pool: String,
    generation: u64,
    nodes: BTreeSet<u32>,
    /// GPUs lent between teams, where no certain nodes are.
    gpus: u32,
    since_us: i64,
    expires_us: i64,
    reclaim_within_ms: i64,
    /// Since when part of it is on its way back.
    reclaiming_since_us: Option<i64>,
    /// Its time is over.
    is_ending: bool,
}

impl SimTarget {
    /// A cluster whose control path fails as `control` says, by chance drawn from `seed`.
    pub fn new(sim: Sim, control: ControlFaults, seed: u64) -> Self {
        Self {
            sim,
            control,
            rng: ChaCha8Rng::seed_from_u64(seed),
            generation: 0,
            applied: BTreeMap::new(),
            slow: Vec::new(),
            loans: BTreeMap::new(),
            drains: BTreeMap::new(),
            notices: BTreeMap::new(),
            snapshots: VecDeque::new(),
            last: None,
            effects: Vec::new(),
            ended: Vec::new(),
            called_us: BTreeMap::new(),
            took_us: VecDeque::new(),
        }
    }

    /// The cluster itself, for whoever checks or counts.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Lets other things go wrong from now on.
    pub fn set_control_faults(&mut self, control: ControlFaults) {
        self.control = control;
    }

    /// All effects so far.
    pub fn effects(&self) -> &[AppliedEffect] {
        &self.effects
    }

    /// Pretends that something was done.
    #[cfg(test)]
    pub(crate) fn forge(&mut self, effect: AppliedEffect) {
        self.effects.push(effect);
    }

    /// Loans that ended, with when.
    pub fn ended_loans(&self) -> &[(LoanId, i64)] {
        &self.ended
    }

    /// Loans that are open.
    pub fn open_loans(&self) -> usize {
        self.loans.len()
    }

    /// Open loans whose end lies behind, and by how much, µs.
    pub fn overdue(&self) -> Vec<(&LoanId, i64)> {
        let now_us = self.sim.spec().epoch_us + self.sim.now_us();
        let late = self.loans.iter().map(|(id, loan)| (id, now_us - loan.expires_us));
        late.filter(|(_, late_us)| *late_us > 0).collect()
    }

    /// A person drains a node or puts it back.
    pub fn drain_by_hand(&mut self, node: u32, drained: bool) {
        self.sim.set_drained(node, drained);
        if drained {
            self.drains.insert(node, None);
        } else {
            self.drains.remove(&node);
        }
    }

    /// Goes on until `until_us`: what was taken late is done, loans whose time is over end,
    /// observations are made.
    pub fn run_until(&mut self, until_us: i64) {
        loop {
            let late = self.slow.iter().map(|s| s.0).min();
            let over = self.loans.values().filter(|l| !l.nodes.is_empty() || l.gpus > 0);
            let epoch_us = self.sim.spec().epoch_us;
            let over = over.filter_map(|l| l.ends_us(epoch_us, self.sim.now_us())).min();
            let look = self.delays().then(|| {
                let every_us = self.control.telemetry_every_us.max(1);
                (self.sim.now_us() / every_us + 1) * every_us
            });
            let next = [late, over, look].into_iter().flatten().min();
            let next_us = next.filter(|at| *at < until_us).unwrap_or(until_us).max(self.sim.now_us());
            self.sim.run_until(next_us);
            self.settle_loans();
            self.apply_delayed();
            if self.delays() && look.is_some_and(|at| at <= next_us) {
                self.take_snapshot();
            }
            if next_us >= until_us {
                return;
            }
        }
    }

    fn delays(&self) -> bool {
        self.control.telemetry_delay_us > 0 || self.control.telemetry_loss_ppm > 0
    }

    fn take_snapshot(&mut self) {
        if self.rng.random_range(0..PPM) >= self.control.telemetry_loss_ppm {
            let state = self.state();
            self.snapshots.push_back(state);
        }
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.random_range(0..PPM) < ppm
    }

    fn reach(&mut self) -> Result<(), TargetError> {
        if self.chance(self.control.unreachable_ppm) {
            return Err(TargetError::Unreachable { target: self.name(), why: "no answer in 10 s".into() });
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.sim.spec().name.clone()
    }
}

impl OpenLoan {
    /// When the cluster itself ends it, time of the simulation; `None` once it has begun to.
    fn ends_us(&self, epoch_us: i64, now_us: i64) -> Option<i64> {
        let at_us = self.expires_us - epoch_us;
        (!self.is_ending).then_some(at_us.max(now_us))
    }
}

impl Target for SimTarget {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: format!("simulator {}", self.name()),
            kinds: Kind::ALL.into_iter().collect(),
            grow_in_place: true,
            grow_by_satellites: false,
            shrink_by_nodes: true,
            shrink_within_node: false,
            native_expiry: true,
            lend_nodes: true,
            requeue_delay_ms: 0,
            lacking: vec!["reservations and commitments: the simulated scheduler has none".into()],
        }
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        self.reach()?;
        if !self.delays() {
            return Ok(self.state());
        }
        let due_us = self.sim.spec().epoch_us + self.sim.now_us() - self.control.telemetry_delay_us;
        while self.snapshots.front().is_some_and(|s| s.at_us <= due_us) {
            self.last = self.snapshots.pop_front();
        }
        let nothing = || TargetError::Unreachable { target: self.name(), why: "nothing observed yet".into() };
        self.last.clone().ok_or_else(nothing)
    }

    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError> {
        self.reach()?;
        self.fence(action)?;
        let epoch_us = self.sim.spec().epoch_us;
        let now_us = self.sim.now_us();
        if !self.notices.contains_key(&action.id) {
            let job = action.change.job().and_then(|id| self.job_number(id));
            let Some(saved_us) = job.and_then(|job| self.sim.ask_checkpoint(job)) else {
                return Ok(Notice::Unsupported);
            };
            let answers = !self.chance(self.control.silent_ppm);
            self.notices.insert(action.id.clone(), (now_us, answers.then_some(saved_us)));
        }
        let (since_us, answer) = self.notices[&action.id];
        Ok(match answer {
            Some(at_us) if at_us <= now_us => Notice::Acknowledged { at_us: epoch_us + at_us },
            _ => Notice::Waiting { since_us: epoch_us + since_us },
        })
    }

    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        self.reach()?;
        self.apply_once(action)
    }

    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError> {
        self.reach()?;
        Ok(self.effect(action))
    }
}
