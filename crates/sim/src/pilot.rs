//! The product's executor, with its planner, guard and forecast, on a simulated cluster: what it
//! needs to run there, and the person who approves. It acts through the target interface alone.

use tidegate_autopilot::{
    action::ActionId,
    executor::{Executor, Journal, JournalError, Settings, StepReport},
    forecast::{Series, Trailing, TrailingConfig},
    guard::KillSwitch,
    intent::{Intent, Limits, Stage},
    policy::{Mode, Policy},
    rollout::Rollout,
    target::Target,
};

use crate::{
    DAY_US, HOUR_US, MINUTE_US,
    forecast_fault::{FaultyForecast, ForecastFault},
    scenario::Scenario,
};

/// How it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PilotConfig {
    /// How often it looks, µs. Its lease lasts three looks, the least that the product accepts.
    pub every_us: i64,
    /// How often it plans, µs.
    pub plan_every_us: i64,
    /// How long a person takes to approve what needs approval.
    pub approval_us: i64,
}

impl Default for PilotConfig {
    /// It looks and plans each minute, and whoever is to approve does so by the next look.
    fn default() -> Self {
        Self { every_us: MINUTE_US, plan_every_us: MINUTE_US, approval_us: 0 }
    }
}

/// What it foresees demand by.
pub type Foresight = FaultyForecast<Trailing>;

/// One life of the product's executor.
#[derive(Debug)]
pub struct Pilot<J> {
    executor: Executor<J, Foresight>,
    approval_us: i64,
}

impl<J: Journal> Pilot<J> {
    /// A life of that number, which has read nothing of its journal yet.
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

    /// Tries these beside its policy.
    #[must_use]
    pub fn with_rollout(self, candidates: Rollout) -> Self {
        Self { executor: self.executor.with_rollout(candidates), ..self }
    }

    /// Looks, plans, and takes each open action as far as it goes now.
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

    /// What it knows of demand: whoever comes after it has it from the log.
    pub fn foresight(&mut self) -> Foresight {
        let mut known = None;
        self.executor.learn(|foresight| known = Some(foresight.clone()));
        known.expect("what learns is called at once")
    }

    /// Takes what another knew of demand for its own.
    pub fn learn(&mut self, known: Foresight) {
        self.executor.learn(|foresight| *foresight = known);
    }

    /// What has waited for a person for long enough.
    fn approved(&self, now_us: i64) -> Vec<(ActionId, String)> {
        let waits = |intent: &&Intent| {
            intent.stage == Stage::Proposed
                && intent.decision.mode == Mode::Approve
                && now_us - intent.at_us() >= self.approval_us
        };
        let waiting = self.executor.state().intents.open().filter(waits);
        waiting.map(|intent| (intent.decision.action.id.clone(), "operator".to_owned())).collect()
    }
}

/// A policy of which all that would be done alone waits for a person.
pub fn with_approvals(mut policy: Policy) -> Policy {
    let modes = policy.modes.values_mut().chain(policy.scopes.iter_mut().map(|scope| &mut scope.mode));
    modes.filter(|mode| **mode == Mode::Act).for_each(|mode| *mode = Mode::Approve);
    policy
}

/// A forecast that has seen what is told of demand before the beginning, as it has where the
/// autopilot is started on a cluster with a history: means of whole hours, each for all of its
/// steps. Hours that are not whole are left out.
pub fn forecast_from_history(setting: &Scenario) -> Foresight {
    let config = TrailingConfig::default();
    let mut trailing = Trailing::new(config);
    for (service, past) in setting.services.iter().zip(&setting.past_gpus) {
        let pool = &setting.spec.pools[service.pool].name;
        let in_hour = usize::try_from(HOUR_US / service.step_us.max(1)).unwrap_or(1).max(1);
        let hours = past.rchunks_exact(in_hour).rev();
        let from_us = setting.spec.epoch_us - hours.len() as i64 * HOUR_US;
        for (hour, steps) in hours.enumerate() {
            let mean = steps.iter().map(|gpus| f64::from(*gpus)).sum::<f64>() / in_hour as f64;
            let began_us = from_us + hour as i64 * HOUR_US;
            for at_us in (began_us..began_us + HOUR_US).step_by(config.step_ms as usize * 1000) {
                trailing.observe(Series { owner: pool, pool }, at_us, mean);
            }
        }
    }
    FaultyForecast::new(trailing, ForecastFault::default())
}

/// A forecast for a trial on a made-up setting: it has seen a week of demand like that to come, and
/// errs as `error` says.
pub fn warmed_up_forecast(setting: &Scenario, error: ForecastFault) -> Foresight {
    let mut trailing = Trailing::new(TrailingConfig::default());
    for service in &setting.services {
        let pool = &setting.spec.pools[service.pool].name;
        let day = (DAY_US / service.step_us) as usize;
        // Days of what is to come, so that it knows the tide and not the noise of a certain day.
        let past = service.demand_gpus.iter().take(2 * day).cycle().take(7 * day);
        let from_us = setting.spec.epoch_us - 7 * day as i64 * service.step_us;
        for (step, gpus) in past.enumerate() {
            let at_us = from_us + step as i64 * service.step_us;
            trailing.observe(Series { owner: pool, pool }, at_us, f64::from(*gpus));
        }
    }
    FaultyForecast::new(trailing, error)
}
