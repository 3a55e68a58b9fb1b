//! Demonstration of the autopilot on a simulated cluster: job arrivals and requests of real traces;
//! the same planner, guard, executor and journal as on a real cluster.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tidegate_autopilot::action::Change;
use tidegate_autopilot::executor::{Executor, Journal, OnlineForecast, Settings};
use tidegate_autopilot::forecast::{Trailing, TrailingConfig};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::intent::{Intent, PersonApproval, Stage};
use tidegate_autopilot::policy::{Mode, Policy};
use tidegate_autopilot::target::Target;
use tidegate_control::{LogJournal, PlanArchive};
use tidegate_evaluation::trace::{Demand, Jobs, Pairing, Shape};
use tidegate_log::{EventLog, LogError, TopicPartition, partition_for};
use tidegate_sim::target::{ControlFaults, SimTarget};
use tidegate_sim::{Backfill, DAY_US, HOUR_US, MINUTE_US, Outcome, Schedule, Sim};

use crate::commands::CommandError;

/// The simulated cluster's name in the tables.
pub const CLUSTER: &str = "simulated";
/// Monday 1 January 2024, 00:00 UTC: the traces have times of day, not dates.
const EPOCH_US: i64 = 1_704_067_200_000_000;
/// It observes for a week, and then acts for a day and a half from noon on.
const WATCHED_US: i64 = 7 * DAY_US + 12 * HOUR_US;
const ENDS_US: i64 = 9 * DAY_US;
/// A row of the picture.
const ROW_US: i64 = 2 * HOUR_US;
const BAR: u32 = 32;
const SEED: u64 = 11;

/// A simulated cluster that an executor runs.
pub struct Demo {
    target: SimTarget,
    /// The same cluster without an autopilot.
    beside: SimTarget,
    forecast: Trailing,
    before: Outcome,
}

/// Whether the log holds a demo's journal already: a second demo would find everything done.
///
/// # Errors
/// The log cannot be read.
pub fn is_told(log: &dyn EventLog) -> Result<bool, LogError> {
    let topic = tidegate_events::SchemaId::AutopilotEvent.topic();
    let found = log.topics()?.into_iter().find(|(name, _)| name == topic);
    let Some((topic, config)) = found else { return Ok(true) };
    let at = TopicPartition { topic, partition: partition_for(CLUSTER.as_bytes(), config.partitions) };
    Ok(log.extent(&at)?.end > 0)
}

impl Demo {
    /// The cluster after a week without actions, in which the forecast learned. `folder` holds the
    /// traces, named as published.
    ///
    /// # Errors
    /// A trace cannot be used.
    pub fn watched(folder: &Path) -> Result<Self, CommandError> {
        let shape = Shape { days: 9, train: Some(24), serve: Some(16), ..Shape::default() };
        let (jobs, demand) = (Jobs::Itp.read(folder)?, Demand::Servegen.read(folder)?);
        let setting = Pairing::new(jobs, Some(demand), Vec::new(), shape)?.setting(SEED);
        let mut spec = setting.spec;
        spec.epoch_us = EPOCH_US;
        spec.schedule = Schedule { backfill: Backfill::Easy { depth: 100 }, ..Schedule::default() };
        let sim = Sim::new(spec, setting.jobs, setting.services)?;
        let mut target = SimTarget::new(sim, ControlFaults::default(), SEED);
        let mut forecast = Trailing::new(TrailingConfig::default());
        while target.sim().now_us() < WATCHED_US {
            target.run_until(target.sim().now_us() + 10 * MINUTE_US);
            // Observing a simulated cluster without faults never fails.
            if let Ok(state) = target.observe() {
                OnlineForecast::observe(&mut forecast, &state);
            }
        }
        Ok(Self { beside: target.clone(), before: target.sim().outcome(), target, forecast })
    }

    /// What the picture shows.
    pub fn head(&self) -> String {
        let spec = self.target.sim().spec();
        format!(
            "The autopilot on a simulated cluster: {} GPUs train (jobs of Microsoft's ITP clusters), {} serve (load of ServeGen).\n\
             It has watched for a week; now it acts, and somebody approves what it asks for. █ serving needs, ▒ lent to training, · idle",
            spec.pool_gpus(0),
            spec.pool_gpus(1)
        )
    }

    /// Lets the executor run the cluster, with its journal on the log and inputs of plans in the
    /// archive, and reports a row every two
    /// hours. Each row takes at least `row_takes`; `go_on` is called in between.
    ///
    /// # Errors
    /// The log cannot be used.
    pub fn run(
        mut self,
        log: Arc<dyn EventLog>,
        archive: PlanArchive,
        row_takes: Duration,
        go_on: &mut dyn FnMut() -> bool,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Option<String>, CommandError> {
        let holder = "demo".to_owned();
        let journal = LogJournal::open(log, CLUSTER, &holder)?.archiving(archive);
        let settings = Settings { holder, lease_ms: 300_000, ..Settings::default() };
        let mut executor = Executor::new(policy(), settings, journal, self.forecast.clone());
        let (mut lent, mut returned) = (0, 0);
        while self.target.sim().now_us() < ENDS_US {
            let began = std::time::Instant::now();
            let until_us = self.target.sim().now_us() + ROW_US;
            let (mut lends, mut reclaims) = (0, 0);
            while self.target.sim().now_us() < until_us {
                let now_us = self.target.sim().now_us();
                let approved = asked(&executor);
                let stepped =
                    executor.step(&mut self.target, &mut || KillSwitch::On, &approved, EPOCH_US + now_us)?;
                for (action, _) in stepped.steps.iter().filter(|(_, what)| *what == "verified") {
                    let intent = executor.state().intents.get(action);
                    match intent.map(|intent| &intent.decision.action.change) {
                        // An extension is not a new loan.
                        Some(Change::Lend { extends: None, .. }) => lends += 1,
                        Some(Change::Reclaim { .. }) => reclaims += 1,
                        _ => {}
                    }
                }
                self.target.run_until(now_us + MINUTE_US);
                if !go_on() {
                    return Ok(None);
                }
            }
            (lent, returned) = (lent + lends, returned + reclaims);
            tell(&self.row(lends, reclaims));
            std::thread::sleep(row_takes.saturating_sub(began.elapsed()));
        }
        self.beside.run_until(ENDS_US);
        Ok(Some(self.summary(lent, returned)))
    }

    fn row(&self, lends: u32, reclaims: u32) -> String {
        let sim = self.target.sim();
        let (all, needs) = (sim.spec().pool_gpus(1), sim.demand_gpus(0));
        let away = sim
            .nodes()
            .iter()
            .filter(|node| node.pool == 1 && !matches!(node.place, tidegate_sim::Place::Home));
        let lent: u32 = away.map(|node| node.gpus).sum();
        let cells = |gpus: u32| (gpus * BAR).div_ceil(all.max(1)) as usize;
        let (needed, loaned) = (cells(needs.min(all)), (lent * BAR / all.max(1)) as usize);
        let loaned = loaned.min(BAR as usize - needed.min(BAR as usize));
        let idle = (BAR as usize).saturating_sub(needed + loaned);
        let waiting: u32 = sim.waiting().map(|job| sim.jobs()[job as usize].spec.gpus).sum();
        let counted = |count: u32, one: &str, more: &str| match count {
            0 => String::new(),
            1 => format!("  1 {one}"),
            n => format!("  {n} {more}"),
        };
        format!(
            "{}  {}{}{}  needs {needs:3}, lends {lent:3}   {waiting:3} GPUs wait to train{}{}",
            at(sim.now_us()).format("%a %H:%M"),
            "█".repeat(needed),
            "▒".repeat(loaned),
            "·".repeat(idle),
            counted(lends, "loan", "loans"),
            counted(reclaims, "taken back", "taken back"),
        )
    }

    fn summary(&self, lent: u32, returned: u32) -> String {
        let (with, without, before) =
            (self.target.sim().outcome(), self.beside.sim().outcome(), &self.before);
        let hours = |outcome: &Outcome| tidegate_sim::gpu_hours(outcome.useful_gpu_us - before.useful_gpu_us);
        let unmet = |outcome: &Outcome| (outcome.unmet_us - before.unmet_us) / MINUTE_US;
        format!(
            "{lent} loans, taken back {returned} times, in a day and a half. Training did {:.0} GPU-hours of useful work, {:.0} without the autopilot \
             ({:+.1} %);\nserving went short for {} minutes, {} without.",
            hours(&with),
            hours(&without),
            (hours(&with) / hours(&without).max(1.0) - 1.0) * 100.0,
            unmet(&with),
            unmet(&without),
        )
    }
}

/// Every reversible action is done. Serving gets its GPUs back within minutes in 99 of 100 cases,
/// not in 999 of 1000: its demand jumps by more than 50 of 128 GPUs once a week, and keeping that
/// many back at all times would leave next to nothing to lend.
fn policy() -> Policy {
    let mut policy = Policy { name: "demo".into(), ..Policy::auto() };
    policy.lend.promise_quantile = 0.99;
    policy
}

/// Approves everything that waits for a person.
fn asked<J: Journal, F: OnlineForecast>(executor: &Executor<J, F>) -> Vec<PersonApproval> {
    let waits = |intent: &&Intent| intent.stage == Stage::Proposed && intent.decision.mode == Mode::Approve;
    let waiting = executor.state().intents.open().filter(waits);
    waiting.map(|intent| PersonApproval::unsigned(&*intent.decision.action.id, "somebody")).collect()
}

fn at(us: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(EPOCH_US + us).unwrap_or_default()
}
