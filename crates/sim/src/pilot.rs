//! Runs the product's executor, with its planner, guard and forecast, on a simulated cluster.
//!
//! It acts through the target interface alone. A simulated person approves what needs approval.

use tidegate_autopilot::{
    executor::{Executor, Journal, JournalError, Settings, StepReport},
    forecast::{SelectedForecast, Series, SeriesNames, TrailingConfig},
    guard::KillSwitch,
    intent::{Intent, Limits, PersonApproval, Stage},
    policy::{Mode, Policy},
    rollout::Rollout,
    target::Target,
};
use tidegate_events::Event;
use tidegate_facts::record_published;

use crate::{
    DAY_US, HOUR_US, MINUTE_US,
    forecast_fault::{FaultyForecast, ForecastFault},
    scenario::Scenario,
};

/// How the executor is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PilotConfig {
    /// Period of observation, µs. The lease lasts three periods, the minimum that the product
    /// accepts.
    pub every_us: i64,
    /// Period of planning, µs.
    pub plan_every_us: i64,
    /// Time a person takes to approve an action, µs.
    pub approval_us: i64,
}

impl Default for PilotConfig {
    /// Observes and plans each minute; approvals arrive by the next observation.
    fn default() -> Self {
        Self { every_us: MINUTE_US, plan_every_us: MINUTE_US, approval_us: 0 }
    }
}

/// The demand forecast of a pilot, chosen by its policy as on a real site.
pub type Foresight = FaultyForecast<SelectedForecast>;

/// Publishes forecasts of a site's demand, as the signals service does.
pub trait Publisher {
    /// Takes in the demand of a pool's service from `at_us` on, GPUs.
    fn demand(&mut self, pool: &str, gpus: u32, at_us: i64);

    /// Events published by `now_us`, since the last call.
    fn publish(&mut self, now_us: i64) -> Vec<Event>;
}

/// One instance of the product's executor.
#[derive(Debug)]
pub struct Pilot<J> {
    executor: Executor<J, Foresight>,
    approval_us: i64,
}

impl<J: Journal> Pilot<J> {
    /// Instance number `life`; it has not read its journal yet.
    pub fn new(policy: Policy, life: u64, habits: PilotConfig, journal: J, foresight: Foresight) -> Self {
        let settings = Settings {
            holder: format!("life-{life}"),
            lease_ms: 3 * habits.every_us / 1_000,
            plan_every_ms: habits.plan_every_us / 1_000,
            limits: Limits { look_every_ms: habits.every_us / 1_000, ..Limits::default() },
            seed: life,
            ..Settings::default()
        };
        let executor = Executor::new(policy, settings, journal, foresight);
        Self { executor, approval_us: habits.approval_us }
    }

    /// Adds a shadow or canary beside its policy.
    #[must_use]
    pub fn with_rollout(self, candidates: Rollout) -> Self {
        Self { executor: self.executor.with_rollout(candidates), ..self }
    }

    /// Observes, plans, and advances each open action as far as possible.
    ///
    /// # Errors
    /// The journal cannot be used.
    pub fn step(
        &mut self,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> KillSwitch,
        now_us: i64,
    ) -> Result<StepReport, JournalError> {
        self.executor.learn(|foresight| foresight.set_now(now_us));
        let approved = self.approved(now_us);
        self.executor.step(target, switch, &approved, now_us)
    }

    /// Reads what was published.
    pub fn read(&mut self, published: &[Event]) {
        self.executor.learn(|foresight| {
            let into = foresight.right_mut().published();
            published.iter().for_each(|event| record_published(event, into));
        });
    }

    /// Its forecast state. A successor would read it from the log.
    pub fn foresight(&mut self) -> Foresight {
        let mut known = None;
        self.executor.learn(|foresight| known = Some(foresight.clone()));
        known.expect("what learns is called at once")
    }

    /// Takes over the forecast state of another instance.
    pub fn learn(&mut self, known: Foresight) {
        self.executor.learn(|foresight| *foresight = known);
    }

    /// Actions whose approval is due.
    fn approved(&self, now_us: i64) -> Vec<PersonApproval> {
        let waits = |intent: &&Intent| {
            intent.stage == Stage::Proposed
                && intent.decision.mode == Mode::Approve
                && now_us - intent.at_us() >= self.approval_us
        };
        let waiting = self.executor.state().intents.open().filter(waits);
        waiting.map(|intent| PersonApproval::unsigned(&*intent.decision.action.id, "operator")).collect()
    }
}

/// Turns every mode `act` of a policy into `approve`.
pub fn with_approvals(mut policy: Policy) -> Policy {
    let modes = policy.modes.values_mut().chain(policy.scopes.iter_mut().map(|scope| &mut scope.mode));
    modes.filter(|mode| **mode == Mode::Act).for_each(|mode| *mode = Mode::Approve);
    policy
}

/// A forecast that has learnt the demand before the beginning, as on a cluster with a history.
///
/// It learns means of whole hours, each for all steps of its hour. Partial hours are left out.
pub fn forecast_from_history(setting: &Scenario, policy: &Policy) -> Foresight {
    let step_ms = TrailingConfig::default().step_ms;
    let mut known = SelectedForecast::new(policy, SeriesNames::default());
    for (service, past) in setting.services.iter().zip(&setting.past_gpus) {
        let pool = &setting.spec.pools[service.pool].name;
        let in_hour = usize::try_from(HOUR_US / service.step_us.max(1)).unwrap_or(1).max(1);
        let hours = past.rchunks_exact(in_hour).rev();
        let from_us = setting.spec.epoch_us - hours.len() as i64 * HOUR_US;
        for (hour, steps) in hours.enumerate() {
            let mean = steps.iter().map(|gpus| f64::from(*gpus)).sum::<f64>() / in_hour as f64;
            let began_us = from_us + hour as i64 * HOUR_US;
            for at_us in (began_us..began_us + HOUR_US).step_by(step_ms as usize * 1000) {
                known.past().observe(Series { owner: pool, pool }, at_us, mean);
            }
        }
    }
    FaultyForecast::new(known, ForecastFault::default())
}

/// A forecast for a synthetic scenario: it has learnt a week of demand like that to come, and has
/// the fault `error`.
pub fn warmed_up_forecast(setting: &Scenario, error: ForecastFault) -> Foresight {
    let mut known = SelectedForecast::new(&Policy::shipped(), SeriesNames::default());
    for service in &setting.services {
        let pool = &setting.spec.pools[service.pool].name;
        let day = (DAY_US / service.step_us) as usize;
        // Future days, repeated: it learns the daily cycle, not the noise of one day.
        let past = service.demand_gpus.iter().take(2 * day).cycle().take(7 * day);
        let from_us = setting.spec.epoch_us - 7 * day as i64 * service.step_us;
        for (step, gpus) in past.enumerate() {
            let at_us = from_us + step as i64 * service.step_us;
            known.past().observe(Series { owner: pool, pool }, at_us, f64::from(*gpus));
        }
    }
    FaultyForecast::new(known, error)
}
