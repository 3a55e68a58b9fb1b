//! Backtest: runs every contender on the same jobs, demand and faults, once per seed, and compares.

mod interval;
mod quotas;
mod teams;

pub use interval::{Interval, bootstrap};
pub use quotas::{Owners, QuotaLender, QuotaRun, play_quotas};
pub use teams::TeamRow;

use serde::Serialize;
use tidegate_autopilot::{executor::InMemoryJournal, guard::KillSwitch, policy::Policy};

use crate::{
    DAY_US, MINUTE_US, Outcome, Reports, Schedule, Sim, SimError, gpu_hours,
    pilot::{Pilot, PilotConfig, Publisher, forecast_from_history},
    scenario::Scenario,
    schedulers::{self, Clairvoyant, Scheduler},
    target::{ControlFaults, SimTarget},
};

/// Result of one contender on one seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Run {
    /// At the end of the measured time, with jobs still waiting. Work and usage are compared here,
    /// since later all of it will be done.
    pub at_span: Outcome,
    /// When all jobs were finished or time ran out. Waits and completion are compared here.
    pub at_end: Outcome,
    /// Measured time, µs.
    pub span_us: i64,
    /// Price of a GPU-hour, millionths of the currency; `None` if unknown.
    pub price_micros: Option<i64>,
}

/// The numbers that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Mean time in the queue, hours.
    QueueHours,
    /// 95th percentile of it, hours.
    QueueP95Hours,
    /// Mean time from submission to end, hours.
    CompletionHours,
    /// Work done in the measured time, GPU-hours at the size each job asked for.
    UsefulGpuHours,
    /// GPU time held by jobs, as a share of paid time.
    Allocation,
    /// GPU time held by jobs or serving demand, as a share of paid time.
    Usage,
    /// Progress lost to preemption, GPU-hours.
    LostGpuHours,
    /// Preemptions per job.
    PreemptionsPerJob,
    /// Time with unmet online demand, minutes.
    UnmetMinutes,
    /// Unmet online demand, GPU-hours.
    UnmetGpuHours,
    /// Changes per day.
    ActionsPerDay,
    /// Share of jobs finished before time ran out.
    Done,
    /// Cost of GPU time that was neither useful work nor served demand.
    WastedMoney,
    /// Cost of all GPU time per GPU-hour of useful work or served demand.
    MoneyPerUsefulGpuHour,
    /// Nodes lent per day.
    NodesLentPerDay,
}

impl Metric {
    /// All metrics, in the order of reports.
    pub const ALL: [Self; 15] = [
        Self::QueueHours,
        Self::QueueP95Hours,
        Self::CompletionHours,
        Self::UsefulGpuHours,
        Self::Allocation,
        Self::Usage,
        Self::LostGpuHours,
        Self::PreemptionsPerJob,
        Self::UnmetMinutes,
        Self::UnmetGpuHours,
        Self::ActionsPerDay,
        Self::Done,
        Self::WastedMoney,
        Self::MoneyPerUsefulGpuHour,
        Self::NodesLentPerDay,
    ];

    /// Value for a run; `None` if it needs an unknown price.
    pub fn value(self, run: &Run) -> Option<f64> {
        let hours = |us: i64| us as f64 / crate::HOUR_US as f64;
        let (span, end) = (&run.at_span, &run.at_end);
        let answered = span.used_gpu_us - span.allocated_gpu_us;
        let price = |gpu_us: i128| Some(gpu_hours(gpu_us) * run.price_micros? as f64 / 1e6);
        Some(match self {
            Self::QueueHours => hours(end.queue_mean_us),
            Self::QueueP95Hours => hours(end.queue_p95_us),
            Self::CompletionHours => hours(end.completion_mean_us),
            Self::UsefulGpuHours => gpu_hours(span.useful_gpu_us),
            Self::Allocation => span.allocated_gpu_us as f64 / span.paid_gpu_us.max(1) as f64,
            Self::Usage => span.used_gpu_us as f64 / span.paid_gpu_us.max(1) as f64,
            Self::LostGpuHours => gpu_hours(span.lost_preempted_gpu_us),
            Self::PreemptionsPerJob => end.preemptions as f64 / end.jobs.max(1) as f64,
            Self::UnmetMinutes => span.unmet_us as f64 / MINUTE_US as f64,
            Self::UnmetGpuHours => gpu_hours(span.unmet_gpu_us),
            Self::ActionsPerDay => span.actions as f64 / (run.span_us as f64 / DAY_US as f64),
            Self::NodesLentPerDay => span.lent_nodes as f64 / (run.span_us as f64 / DAY_US as f64),
            Self::Done => end.done as f64 / end.jobs.max(1) as f64,
            Self::WastedMoney => price(span.paid_gpu_us - span.useful_gpu_us - answered)?,
            Self::MoneyPerUsefulGpuHour => {
                price(span.paid_gpu_us)? / gpu_hours((span.useful_gpu_us + answered).max(1))
            }
        })
    }
}

/// A scheduler under comparison.
pub enum Contender {
    /// A rival that sees and changes the simulation directly.
    Scheduler(Box<dyn Scheduler>),
    /// The product: planner, guard and executor observe and act through the target interface only,
    /// with its faults.
    Pilot {
        /// The policy.
        policy: Box<Policy>,
        /// Faults of the control path.
        control: ControlFaults,
        /// How the executor is run.
        habits: PilotConfig,
        /// Settings of the simulated scheduler.
        schedule: Schedule,
        /// What the site's jobs report of their steps.
        reports: Reports,
        /// Publishes forecasts of demand. `None`: the site runs no signals.
        publisher: Option<Box<dyn Publisher>>,
    },
}

/// Makes a fresh contender for each run, so that no state carries over.
pub type Maker<'a> = &'a dyn Fn(&Scenario) -> Contender;

/// Results of one contender over all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the contender.
    pub policy: String,
    /// By metric, in the order of [`Metric::ALL`]: mean over seeds with its 95 % interval; `None`
    /// if unknown.
    pub values: Vec<Option<Interval>>,
    /// Likewise, ratio to the first contender, paired by seed; `None` if its mean is 0.
    pub ratios: Vec<Option<Interval>>,
    /// Gain in useful GPU-hours over the first contender, as a share of the clairvoyant one's gain,
    /// paired by seed; `None` if that one was not run or gains nothing.
    pub gain: Option<Interval>,
    /// By team, in the order of their names.
    pub teams: Vec<TeamRow>,
    /// Result of each seed.
    pub runs: Vec<Run>,
}

/// Runs each contender on each seed.
///
/// # Errors
/// [`SimError`] if a setting does not fit together.
pub fn backtest(
    contenders: &[Maker<'_>],
    seeds: impl Iterator<Item = u64> + Clone,
    setting: &dyn Fn(u64) -> Scenario,
) -> Result<Vec<Row>, SimError> {
    let mut rows: Vec<Row> = Vec::new();
    for make in contenders {
        let mut name = String::new();
        let mut runs = Vec::new();
        for seed in seeds.clone() {
            let setting = setting(seed);
            let contender = make(&setting);
            name = contender.name();
            runs.push(play(&setting, contender, seed)?);
        }
        let base = rows.first().map_or(&runs, |first| &first.runs).clone();
        let of = |metric: Metric, runs: &[Run]| {
            runs.iter().map(|run| metric.value(run)).collect::<Option<Vec<_>>>()
        };
        let values = Metric::ALL.map(|m| Some(bootstrap(&of(m, &runs)?, None)));
        let ratios = Metric::ALL.map(|m| {
            let below = of(m, &base)?;
            (below.iter().sum::<f64>() > 0.0).then_some(bootstrap(&of(m, &runs)?, Some(&below)))
        });
        let teams = teams::compare(&runs, &base);
        let (values, ratios) = (values.to_vec(), ratios.to_vec());
        rows.push(Row { policy: name, values, ratios, gain: None, teams, runs });
    }
    compare_gains(&mut rows);
    Ok(rows)
}

/// Computes each contender's gain as a share of the clairvoyant one's.
fn compare_gains(rows: &mut [Row]) {
    let useful = |row: &Row| row.runs.iter().map(|r| gpu_hours(r.at_span.useful_gpu_us)).collect::<Vec<_>>();
    let Some(base) = rows.first().map(useful) else { return };
    let more = |row: &Row| useful(row).iter().zip(&base).map(|(own, base)| own - base).collect::<Vec<_>>();
    let Some(best) = rows.iter().find(|row| row.policy == Clairvoyant::NAME).map(more) else { return };
    if best.iter().sum::<f64>() > 0.0 {
        for row in rows.iter_mut() {
            row.gain = Some(bootstrap(&more(row), Some(&best)));
        }
    }
}

/// Runs one contender on one setting.
///
/// # Errors
/// [`SimError`] if the setting does not fit together.
pub fn play(setting: &Scenario, contender: Contender, seed: u64) -> Result<Run, SimError> {
    let (mut spec, mut jobs) = (setting.spec.clone(), setting.jobs.clone());
    match &contender {
        Contender::Scheduler(scheduler) => scheduler.prepare(&mut spec, &mut jobs),
        Contender::Pilot { schedule, .. } => spec.schedule = *schedule,
    }
    let mut sim = Sim::new(spec, jobs, setting.services.clone())?;
    for fault in &setting.faults {
        sim.plan_failure(fault.at_us, fault.node, fault.repair_us);
    }
    let (span_us, limit_us) = (setting.span_us, setting.span_us + setting.drain_us);
    let mut at_span = None;
    let mut at = |sim: &Sim| {
        if at_span.is_none() && sim.now_us() >= span_us {
            at_span = Some(sim.outcome());
        }
    };
    let at_end = match contender {
        Contender::Scheduler(mut scheduler) => {
            schedulers::run(&mut sim, scheduler.as_mut(), limit_us, &mut at);
            run_services_to_span(&mut sim, scheduler.as_mut(), span_us, &mut at);
            sim.outcome()
        }
        Contender::Pilot { policy, control, habits, reports, mut publisher, .. } => {
            let mut target = SimTarget::new(sim, control, seed).with_reports(reports);
            let foresight = forecast_from_history(setting, &policy);
            let pilot = Pilot::new(*policy, 1, habits, InMemoryJournal::brief(), foresight);
            if let Some(publisher) = &mut publisher {
                past_demand(setting, publisher.as_mut());
            }
            let every_us = habits.every_us;
            run_pilot(&mut target, pilot, publisher, every_us, (span_us, limit_us), &mut at);
            target.sim().outcome()
        }
    };
    let price_micros = setting.price_micros;
    Ok(Run { at_span: at_span.unwrap_or_else(|| at_end.clone()), at_end, span_us, price_micros })
}

/// Gives a publisher the services' demand before the beginning, in order of time.
fn past_demand(setting: &Scenario, publisher: &mut dyn Publisher) {
    let mut past = Vec::new();
    for (service, gpus) in setting.services.iter().zip(&setting.past_gpus) {
        let from_us = setting.spec.epoch_us - gpus.len() as i64 * service.step_us;
        let steps = gpus.iter().zip(0..);
        past.extend(steps.map(|(gpus, step)| (from_us + step * service.step_us, service.pool, *gpus)));
    }
    past.sort_unstable();
    for (at_us, pool, gpus) in past {
        publisher.demand(&setting.spec.pools[pool].name, gpus, at_us);
    }
}

/// Runs a cluster with the product until all jobs are finished or `limit_us` is reached; services
/// run to the end of the measured time.
fn run_pilot(
    target: &mut SimTarget,
    mut pilot: Pilot<InMemoryJournal>,
    mut publisher: Option<Box<dyn Publisher>>,
    every_us: i64,
    (span_us, limit_us): (i64, i64),
    at: &mut dyn FnMut(&Sim),
) {
    let (epoch_us, every_us) = (target.sim().spec().epoch_us, every_us.max(1));
    loop {
        let (sim, now_us) = (target.sim(), target.sim().now_us());
        let until_us = if sim.jobs_done() < sim.jobs().len() { limit_us } else { span_us };
        if now_us >= until_us {
            return;
        }
        if let Some(publisher) = &mut publisher {
            let at_us = epoch_us + now_us;
            for (s, service) in sim.services().iter().enumerate() {
                let pool = &sim.spec().pools[service.pool].name;
                publisher.demand(pool, sim.demand_gpus(s), at_us);
            }
            pilot.read(&publisher.publish(at_us));
        }
        pilot.step(target, &mut || KillSwitch::On, epoch_us + now_us).expect("memory can always be written");
        target.run_until(((now_us / every_us + 1) * every_us).min(until_us));
        at(target.sim());
    }
}

/// Runs a cluster whose jobs are finished to the end of the measured time, for its services.
fn run_services_to_span(
    sim: &mut Sim,
    scheduler: &mut dyn Scheduler,
    span_us: i64,
    at: &mut dyn FnMut(&Sim),
) {
    let every_us = scheduler.every_us().max(1);
    while sim.now_us() < span_us {
        scheduler.act(sim);
        sim.run_until(span_us.min((sim.now_us() / every_us + 1) * every_us));
        at(sim);
    }
}

impl Contender {
    /// Name in reports.
    pub fn name(&self) -> String {
        match self {
            Self::Scheduler(scheduler) => scheduler.name(),
            Self::Pilot { policy, reports, .. } => match reports {
                Reports::All => format!("tidegate {}", policy.name),
                Reports::Durations => format!("tidegate {}, durations reported", policy.name),
                Reports::None => format!("tidegate {}, no steps reported", policy.name),
            },
        }
    }
}

impl<S: Scheduler + 'static> From<S> for Contender {
    fn from(scheduler: S) -> Self {
        Self::Scheduler(Box::new(scheduler))
    }
}

impl std::fmt::Debug for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}
