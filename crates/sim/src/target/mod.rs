//! The simulated cluster behind the autopilot's target interface, with faults of the control path.

mod apply;
mod state;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_autopilot::{
    action::{Action, ActionId, Kind},
    state::{ClusterState, LoanId, ReservationName},
    target::{Capabilities, Effect, Notice, Receipt, Target, TargetError},
};

use crate::{PPM, Recording, Reports, Sim, SimEvent, reports::Reporter};

/// Faults between the autopilot and the cluster. Rates are per call, in ppm; none by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControlFaults {
    /// The scheduler is unreachable: nothing happens.
    pub unreachable_ppm: u32,
    /// It refuses.
    pub refuse_ppm: u32,
    /// It reports success and does nothing.
    pub lie_ppm: u32,
    /// The answer is lost, whether the change was made or not.
    pub unknown_ppm: u32,
    /// It accepts, and makes the change this much later.
    pub slow_us: i64,
    /// A job writes its checkpoint on notice but does not acknowledge it.
    pub silent_ppm: u32,
    /// Age of observations.
    pub telemetry_delay_us: i64,
    /// Observations are lost; the previous one is returned again.
    pub telemetry_loss_ppm: u32,
    /// Period of observations, if they are delayed or lost.
    pub telemetry_every_us: i64,
}

/// An effect that really happened to the cluster, for checks of the autopilot's promises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedEffect {
    /// Simulated time of the effect, µs.
    pub at_us: i64,
    /// When it was requested; a slow cluster applies it later.
    pub asked_us: i64,
    /// The action.
    pub action: ActionId,
    /// Generation of the executor.
    pub generation: u64,
    /// Kind of the action.
    pub kind: Kind,
    /// Kind whose budget it uses: stopping jobs on a called-back node counts as a reclaim. `None`
    /// for an extension of a loan, which uses no budget.
    pub counts_as: Option<Kind>,
    /// For an extension: how long before its window it came, µs; 0 or less is in time. The window
    /// is the end of the loan less twice the promised reclaim time.
    pub early_us: Option<i64>,
}

/// A simulated cluster behind the target interface.
#[derive(Debug, Clone)]
pub struct SimTarget {
    sim: Sim,
    control: ControlFaults,
    rng: ChaCha8Rng,
    /// Highest generation seen; stored in the cluster.
    generation: u64,
    /// Applied actions with their times; stored in the cluster with the effect.
    applied: BTreeMap<ActionId, i64>,
    /// Accepted actions that are still delayed.
    slow: Vec<(i64, Action)>,
    loans: BTreeMap<LoanId, OpenLoan>,
    /// Generations of the executors that wrote reservations last; those of people have none.
    reserved_by: BTreeMap<ReservationName, u64>,
    /// Drained nodes: by an action with its generation, or `None` for a person.
    drains: BTreeMap<u32, Option<(ActionId, u64)>>,
    /// Notices by action: start, and time of the acknowledgement if there will be one.
    notices: BTreeMap<ActionId, (i64, Option<i64>)>,
    snapshots: VecDeque<ClusterState>,
    last: Option<ClusterState>,
    effects: Vec<AppliedEffect>,
    ended: Vec<(LoanId, i64)>,
    /// What is known beside the scheduler.
    reporter: Reporter,
    /// Events kept for others.
    kept: Option<Vec<(i64, SimEvent)>>,
    seed: u64,
}

/// An open loan, as the cluster stores it.
#[derive(Debug, Clone)]
struct OpenLoan {
    from: String,
    to: String,
    pool: String,
    generation: u64,
    nodes: BTreeSet<u32>,
    /// GPUs lent between teams by quota, without particular nodes.
    gpus: u32,
    since_us: i64,
    expires_us: i64,
    reclaim_within_ms: i64,
    /// When the first part of it was called back.
    reclaiming_since_us: Option<i64>,
    /// Whether it has expired.
    is_ending: bool,
}

impl SimTarget {
    /// A cluster with faults of the control path, drawn from `seed`.
    pub fn new(mut sim: Sim, control: ControlFaults, seed: u64) -> Self {
        sim.set_recording(Recording::On);
        Self {
            sim,
            control,
            rng: ChaCha8Rng::seed_from_u64(seed),
            generation: 0,
            applied: BTreeMap::new(),
            slow: Vec::new(),
            loans: BTreeMap::new(),
            reserved_by: BTreeMap::new(),
            drains: BTreeMap::new(),
            notices: BTreeMap::new(),
            snapshots: VecDeque::new(),
            last: None,
            effects: Vec::new(),
            ended: Vec::new(),
            reporter: Reporter::new(Reports::default(), seed),
            kept: None,
            seed,
        }
    }

    /// The same, at a site whose jobs report this much; by default they report everything.
    #[must_use]
    pub fn with_reports(self, reports: Reports) -> Self {
        Self { reporter: Reporter::new(reports, self.seed), ..self }
    }

    /// The simulation behind the target.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Keeps the events of the simulation from now on, or stops; see [`Sim::set_recording`].
    pub fn set_recording(&mut self, recording: Recording) {
        self.kept = (recording == Recording::On).then(Vec::new);
    }

    /// Takes the events since the last call, with their times, µs since the simulation began.
    pub fn take_events(&mut self) -> Vec<(i64, SimEvent)> {
        self.follow_events();
        self.kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Lets what happened since the last call be known.
    fn follow_events(&mut self) {
        let events = self.sim.take_events();
        self.reporter.follow(&self.sim, &events);
        if let Some(kept) = &mut self.kept {
            kept.extend(events);
        }
    }

    /// Schedules a failure of a node; see [`Sim::plan_failure`].
    pub fn plan_failure(&mut self, at_us: i64, node: u32, repair_us: i64) {
        self.sim.plan_failure(at_us, node, repair_us);
    }

    /// Schedules a change of a node's speed; see [`Sim::plan_speed`].
    pub fn plan_speed(&mut self, at_us: i64, node: u32, speed_ppm: u32) {
        self.sim.plan_speed(at_us, node, speed_ppm);
    }

    /// Changes the faults.
    pub fn set_control_faults(&mut self, control: ControlFaults) {
        self.control = control;
    }

    /// All effects so far.
    pub fn effects(&self) -> &[AppliedEffect] {
        &self.effects
    }

    /// Adds a forged effect.
    #[cfg(test)]
    pub(crate) fn forge(&mut self, effect: AppliedEffect) {
        self.effects.push(effect);
    }

    /// Ended loans with their times.
    pub fn ended_loans(&self) -> &[(LoanId, i64)] {
        &self.ended
    }

    /// Number of open loans.
    pub fn open_loans(&self) -> usize {
        self.loans.len()
    }

    /// Expired loans that are still open, and by how much, µs.
    pub fn overdue(&self) -> Vec<(&LoanId, i64)> {
        let now_us = self.sim.spec().epoch_us + self.sim.now_us();
        let late = self.loans.iter().map(|(id, loan)| (id, now_us - loan.expires_us));
        late.filter(|(_, late_us)| *late_us > 0).collect()
    }

    /// A person drains a node or returns it to service.
    pub fn drain_by_hand(&mut self, node: u32, drained: bool) {
        self.sim.set_drained(node, drained);
        if drained {
            self.drains.insert(node, None);
        } else {
            self.drains.remove(&node);
        }
    }

    /// A person reserves GPUs for a team, in place of what was reserved under that name. Times are
    /// µs since the simulation began. Like a person, it gives up if there is no room.
    pub fn reserve_by_hand(&mut self, name: &str, team: usize, gpus: u32, start_us: i64, end_us: i64) {
        if self.sim.reserve(name, team, gpus, start_us, end_us).is_ok() {
            self.reserved_by.remove(name);
        }
    }

    /// Runs until `until_us`: applies delayed actions, ends expired loans and takes snapshots.
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
            self.follow_events();
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
    /// Simulated time at which the cluster ends it; `None` once it has begun to.
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
            lacking: vec!["commitments: the simulated cluster buys nothing".into()],
        }
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        self.reach()?;
        if !self.delays() {
            self.follow_events();
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
            Some(at_us) if at_us <= now_us => {
                Notice::Acknowledged { at_us: epoch_us + at_us, saved_step: None }
            }
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
