//! Executor: holds the lease, observes, plans, and journals each transition before performing it.
//!
//! It chooses nothing: the planner decides and the guard allows. Its state comes from the
//! [`Journal`] alone, so it may die at any time and a successor continues from there.
//!
//! It is pure apart from the target and journal it is given: no clock and no network of its own.
//! The same code runs on simulated and real clusters.

mod drive;
mod dry_runs;
mod journal;
mod lease;
mod measure;
mod online_forecast;
mod people;
mod planning;
mod promises;
mod rollout;
mod self_check;
mod state;
mod telling;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_units::Millis;

pub use crate::planner::PlanRecord;
pub use journal::{
    AdoptedStatement, EntriesRefused, InMemoryJournal, IssuedPolicy, Journal, JournalEntry, JournalError,
    JournalEvent, MadePlan, PolicyAdopted, Switched,
};
use measure::Measuring;
pub use online_forecast::OnlineForecast;
pub use state::{ExecutorState, Refusals};

use crate::action::{ActionId, Kind};
use crate::dry_run;
use crate::guard::{KillSwitch, Rule};
use crate::intent::{IntentEvent, LeaseHeld, Limits, PersonApproval, PersonRejection, Transition};
use crate::policy::{Mode, Policy};
use crate::rollout::Canary;
use crate::rollout::shadow::Shadow;
use crate::scorecard::correction_ppm;
use crate::slo::Cycles;
use crate::state::ClusterState;
use crate::target::{Target, TargetError};

/// Settings of an executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Unique name of this process.
    pub holder: String,
    /// Lifetime of the lease without renewal, ms.
    pub lease_ms: i64,
    /// Interval between plans, ms.
    pub plan_every_ms: i64,
    /// Interval for recording plans that decide nothing new, and repeated refusals of the same
    /// object by the same rule, ms.
    pub repeat_every_ms: i64,
    /// Most plans recorded at once because they say something else than the last recorded one,
    /// though they decide nothing new; one more in each `repeat_every_ms`. 0: none.
    pub most_changed: u32,
    /// Time limits for actions.
    pub limits: Limits,
    /// Seed of random choices in plans.
    pub seed: u64,
}

impl Default for Settings {
    /// Lease 30 s, plan every minute, repeats every ten minutes; changed reasons are not recorded.
    fn default() -> Self {
        Self {
            holder: "executor".to_owned(),
            lease_ms: 30_000,
            plan_every_ms: 60_000,
            repeat_every_ms: 600_000,
            most_changed: 0,
            limits: Limits::default(),
            seed: 0,
        }
    }
}

/// Whether an executor leads, and if not why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It holds the lease.
    Leading {
        /// Generation of its lease.
        generation: u64,
    },
    /// Another executor holds the lease.
    Standby(LeaseHeld),
    /// It lost the lease, or another took it first.
    Fenced,
}

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepReport {
    /// Whether it acts.
    pub role: Role,
    /// Id of the recorded plan and its number of decisions.
    pub planned: Option<(String, usize)>,
    /// Recorded transitions, in order.
    pub steps: Vec<(ActionId, &'static str)>,
    /// Why the cluster could not be observed.
    pub observe_error: Option<TargetError>,
}

/// One process of the executor.
#[derive(Debug)]
pub struct Executor<J, F> {
    policy: Policy,
    settings: Settings,
    journal: J,
    forecast: F,
    journaled: ExecutorState,
    /// Generation of the lease it holds.
    generation: Option<u64>,
    planned_us: Option<i64>,
    telling: telling::Telling,
    /// Modes earned by scorecard, as of that many scores and alerts.
    earned: BTreeMap<Kind, Mode>,
    earned_of: (u64, u64, i64),
    refused: BTreeMap<(String, Rule), i64>,
    unmet: promises::Unmet,
    measuring: Measuring,
    /// What the dry run of this step found.
    tried: dry_run::Outcome,
    /// When repeated refusals were last forgotten.
    forgot_us: i64,
    steps: Vec<(ActionId, &'static str)>,
    /// Shadow policy.
    shadow: Option<Shadow>,
    /// Canary policy, unless it was rolled back.
    canary: Option<Canary>,
    /// Events to record as soon as it leads.
    queued: Vec<JournalEvent>,
    /// What people rejected, for the next step.
    rejected: Vec<PersonRejection>,
    /// Cycles not recorded yet, and since when the next is due.
    cycles: Cycles,
    cycle_us: Option<i64>,
}

/// Why a step ends early.
enum StepError {
    /// Another executor leads.
    Fenced,
    Journal(JournalError),
}

impl From<JournalError> for StepError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// An executor that has read nothing yet.
    pub fn new(policy: Policy, settings: Settings, journal: J, forecast: F) -> Self {
        Self {
            policy,
            settings,
            journal,
            forecast,
            journaled: ExecutorState::default(),
            generation: None,
            planned_us: None,
            telling: telling::Telling::default(),
            earned: BTreeMap::new(),
            earned_of: (0, 0, 0),
            refused: BTreeMap::new(),
            unmet: promises::Unmet::default(),
            measuring: Measuring::default(),
            tried: dry_run::Outcome::default(),
            forgot_us: 0,
            steps: Vec::new(),
            shadow: None,
            canary: None,
            queued: Vec::new(),
            rejected: Vec::new(),
            cycles: Cycles::default(),
            cycle_us: None,
        }
    }

    /// Goes on from a state that was folded from the journal up to where the journal is read from.
    #[must_use]
    pub fn resumed(mut self, state: ExecutorState) -> Self {
        self.journaled = state;
        self
    }

    /// The journal, e.g. to learn how far it was read.
    pub fn journal(&self) -> &J {
        &self.journal
    }

    /// The journal, e.g. to learn which entries it refused.
    pub fn journal_mut(&mut self) -> &mut J {
        &mut self.journal
    }

    /// Records an event as soon as it leads, e.g. an adopted policy or an invalid approval.
    pub fn record_when_leading(&mut self, event: JournalEvent) {
        self.queued.push(event);
    }

    /// State folded from the journal so far.
    pub fn state(&self) -> &ExecutorState {
        &self.journaled
    }

    /// Updates the forecast, e.g. with history.
    pub fn learn(&mut self, from: impl FnOnce(&mut F)) {
        from(&mut self.forecast);
    }

    /// Its policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Observes, plans, and drives each open action as far as it can go now.
    ///
    /// `switch` is read immediately before everything that changes the cluster. `approved` holds
    /// what people approved. If the cluster cannot be observed, nothing new begins.
    ///
    /// # Errors
    /// The journal cannot be used. Nothing has begun that is not in it.
    pub fn step(
        &mut self,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> KillSwitch,
        approved: &[PersonApproval],
        now_us: i64,
    ) -> Result<StepReport, JournalError> {
        let mut stepped =
            StepReport { role: Role::Fenced, planned: None, steps: Vec::new(), observe_error: None };
        let rejected = std::mem::take(&mut self.rejected);
        let ended = self.run(target, switch, (approved, &rejected), now_us, &mut stepped);
        stepped.steps = std::mem::take(&mut self.steps);
        match ended {
            Ok(()) => Ok(stepped),
            Err(StepError::Fenced) => {
                self.generation = None;
                stepped.role = Role::Fenced;
                Ok(stepped)
            }
            Err(StepError::Journal(error)) => Err(error),
        }
    }

    fn run(
        &mut self,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> KillSwitch,
        (approved, rejected): (&[PersonApproval], &[PersonRejection]),
        now_us: i64,
        stepped: &mut StepReport,
    ) -> Result<(), StepError> {
        self.catch_up()?;
        stepped.role = self.acquire_lease(now_us)?;
        if !matches!(stepped.role, Role::Leading { .. }) {
            return Ok(());
        }
        self.record_queued(now_us)?;
        self.record_rejected(rejected, now_us)?;
        self.approve(approved, now_us)?;
        match target.observe() {
            Ok(mut state) => {
                self.forecast.observe(&state);
                self.forecast.annotate(&mut state);
                self.add_record(&mut state);
                self.update_promises(&mut state, now_us)?;
                self.measure(&state);
                self.update_canary(approved, &state, now_us)?;
                self.compare_expected(&state, now_us)?;
                stepped.planned = self.plan(&state, switch(), now_us)?;
                self.drive_all(target, switch, Some(&state), now_us)?;
                self.measure_verified(&state);
                self.score(now_us)?;
            }
            Err(error) => {
                stepped.observe_error = Some(error);
                self.count_cycle(now_us, false)?;
                self.drive_all(target, switch, None, now_us)?;
            }
        }
        self.record_alerts(now_us)?;
        let repeat_us = Millis(self.settings.repeat_every_ms).to_micros().0;
        if now_us - self.forgot_us > repeat_us {
            self.forgot_us = now_us;
            self.refused.retain(|_, at_us| now_us - *at_us < repeat_us);
        }
        Ok(())
    }

    /// Adds what the journal measured: reclaim times where the target has none, and how far
    /// predictions come true.
    fn add_record(&self, state: &mut ClusterState) {
        let (window, now_us) = (self.policy.record.window, state.at_us);
        let corrected = Kind::ALL.into_iter().filter_map(|kind| {
            Some((kind.name().to_owned(), correction_ppm(kind, &self.journaled.scores, window, now_us)?))
        });
        state.corrections_ppm = corrected.collect();
        let took = self.journaled.reclaims_took_ms();
        for (owner, entry) in &mut state.owners {
            for (pool, share) in entry.shares.iter_mut().filter(|(_, share)| share.reclaim_took_ms.is_none())
            {
                share.reclaim_took_ms = took.get(&(owner.as_str(), pool.as_str())).copied();
            }
        }
    }

    fn catch_up(&mut self) -> Result<(), JournalError> {
        self.journal.read()?.into_iter().for_each(|entry| self.journaled.fold(entry));
        self.journal.folded();
        let seen = self.journaled.judged_on();
        if seen != self.earned_of {
            self.earned_of = seen;
            self.earned = self.journaled.earned(&self.policy);
        }
        Ok(())
    }

    /// Appends entries and folds them back in. If another's lease precedes them they are void, and
    /// nothing is done.
    fn record(&mut self, events: Vec<JournalEvent>, now_us: i64) -> Result<(), StepError> {
        let Some(generation) = self.generation else { return Err(StepError::Fenced) };
        let entry = |event| JournalEntry { at_us: now_us, generation, event };
        self.journal.append(events.into_iter().map(entry).collect())?;
        self.catch_up()?;
        if self.holds_lease(generation) { Ok(()) } else { Err(StepError::Fenced) }
    }

    fn record_step(&mut self, action: &str, transition: Transition, now_us: i64) -> Result<(), StepError> {
        let Some(generation) = self.generation else { return Err(StepError::Fenced) };
        self.steps.push((action.to_owned(), transition.name()));
        let event = IntentEvent { action: action.to_owned(), at_us: now_us, generation, transition };
        self.record(vec![JournalEvent::Step(Box::new(event))], now_us)
    }
}
