//! Time from an event to the verified, journaled action: the product's executor on a simulated
//! cluster, with its journal and the event on an embedded log.

use std::path::Path;
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tidegate_autopilot::action::{Change, Kind};
use tidegate_autopilot::executor::{Executor, Settings};
use tidegate_autopilot::forecast::{Series, Trailing, TrailingConfig};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::intent::{Intent, Limits, Stage};
use tidegate_autopilot::policy::Policy;
use tidegate_control::{EnrichedTarget, LogJournal};
use tidegate_events::v1::{Envelope, NodeHealthState, NodeSignal};
use tidegate_events::{Event as LogEvent, SchemaId};
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, LogStats, TopicConfig};
use tidegate_sim::generate::{Arrivals, Load};
use tidegate_sim::observe::Observer;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::target::{ControlFaults, SimTarget};
use tidegate_sim::{DAY_US, HOUR_US, MINUTE_US, SECOND_US, ServiceSpec, Sim};

use super::Spread;
use crate::bench::batcher::PartitionBatcher;
use crate::bench::{Scratch, Stopwatch};
use tidegate_workspace::CommandError;

const EPOCH_US: i64 = 1_760_000_000_000_000;
/// When the executor starts.
const BEGINS_US: i64 = 6 * HOUR_US;
/// The event comes within the next minute.
const EVENT_US: i64 = BEGINS_US + 25 * MINUTE_US;
/// Longest reaction: a promise of fifteen minutes, with room.
const PATIENCE_US: i64 = HOUR_US;
const GPUS_PER_NODE: usize = 8;

/// The event that makes an action necessary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A signal reports a bad node: it must be drained.
    BadNode,
    /// A service needs all of its nodes, some of which are lent: they must be reclaimed.
    DemandJump,
}

/// Periods of observation and planning.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub look_every_s: u32,
    pub plan_every_s: u32,
}

/// Cost from the event to the verified action.
#[derive(Debug, Serialize)]
pub struct Latency {
    trials: u32,
    nodes: usize,
    /// Verified actions of all trials.
    actions: u64,
    latency_ms: Spread,
    cluster_ms: Spread,
    work_ms: Spread,
    cpu_ms: Spread,
    appends_per_action: f64,
    records_per_action: f64,
    fsyncs_per_action: f64,
    stored_bytes_per_action: f64,
}

/// Result of one trial.
#[derive(Debug, Clone, Copy, Default)]
struct TrialResult {
    cluster_ms: f64,
    cpu_ms: f64,
    work_ms: f64,
    actions: u64,
    log: LogStats,
}

pub fn measure(
    event: Event,
    trials: u32,
    nodes: usize,
    pace: Pace,
    seed: u64,
) -> Result<Latency, CommandError> {
    let scratch = Scratch::new("autopilot")?;
    let mut taken = Vec::new();
    for trial in 0..u64::from(trials) {
        let folder = scratch.path().join(format!("{event:?}-{trial}"));
        taken.push(Trial::open(event, nodes, pace, seed + trial, &folder)?.run()?);
        std::fs::remove_dir_all(&folder)?;
    }
    let actions: u64 = taken.iter().map(|t| t.actions).sum();
    let per_action = |of: fn(&LogStats) -> u64| {
        taken.iter().map(|t| of(&t.log)).sum::<u64>() as f64 / actions.max(1) as f64
    };
    let spread = |of: fn(&TrialResult) -> f64| Spread::from_values(taken.iter().map(of));
    Ok(Latency {
        trials,
        nodes,
        actions,
        latency_ms: spread(|t| t.cluster_ms + t.work_ms),
        cluster_ms: spread(|t| t.cluster_ms),
        work_ms: spread(|t| t.work_ms),
        cpu_ms: spread(|t| t.cpu_ms),
        appends_per_action: per_action(|log| log.batches),
        records_per_action: per_action(|log| log.records),
        fsyncs_per_action: per_action(|log| log.fsyncs),
        stored_bytes_per_action: per_action(|log| log.bytes),
    })
}

/// One cluster with one log, and one event.
struct Trial {
    event: Event,
    event_us: i64,
    look_us: i64,
    log: Arc<EmbeddedLog>,
    target: EnrichedTarget<SimTarget>,
    executor: Executor<LogJournal, Trailing>,
    /// The node that is bad.
    node: String,
}

impl Trial {
    fn open(event: Event, nodes: usize, pace: Pace, seed: u64, folder: &Path) -> Result<Self, CommandError> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let event_us = EVENT_US + rng.random_range(0..MINUTE_US);
        let log = Arc::new(EmbeddedLog::open(folder, EmbeddedOptions::default())?);
        let layout = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        for schema in [SchemaId::AutopilotEvent, SchemaId::NodeSignal, SchemaId::PoolSample] {
            log.create_topic(schema.topic(), layout)?;
        }
        let setting = setting(nodes, event_us, seed);
        let low = f64::from(setting.services[0].demand_gpus[0]);
        let (pool, cluster) = (setting.spec.pools[1].name.clone(), setting.spec.name.clone());
        let node = setting.spec.nodes[rng.random_range(0..nodes / 2)].name.clone();
        let mut target = SimTarget::new(
            Sim::new(setting.spec, setting.jobs, setting.services)?,
            ControlFaults::default(),
            seed,
        );
        target.run_until(BEGINS_US);
        // A week of history with the demand before the event.
        let mut forecast = Trailing::new(TrailingConfig::default());
        for step in 0..7 * DAY_US / (10 * MINUTE_US) {
            let at_us = EPOCH_US + BEGINS_US - 7 * DAY_US + step * 10 * MINUTE_US;
            forecast.observe(Series { owner: &pool, pool: &pool }, at_us, low);
        }
        let shared: Arc<dyn EventLog> = Arc::clone(&log) as _;
        let holder = "bench".to_owned();
        let journal = LogJournal::open(Arc::clone(&shared), &cluster, &holder)?;
        let ms = |seconds: u32| i64::from(seconds) * 1_000;
        let settings = Settings {
            holder,
            plan_every_ms: ms(pace.plan_every_s),
            limits: Limits { look_every_ms: ms(pace.look_every_s), ..Limits::default() },
            seed,
            ..Settings::default()
        };
        let target = EnrichedTarget::new(target, shared, &cluster, None)?;
        let executor = Executor::new(event.policy()?, settings, journal, forecast);
        let look_us = i64::from(pace.look_every_s) * SECOND_US;
        Ok(Self { event, event_us, look_us, log, target, executor, node })
    }

    fn run(mut self) -> Result<TrialResult, CommandError> {
        let mut now_us = BEGINS_US;
        while now_us < self.event_us {
            self.step(now_us)?;
            now_us += self.look_us;
            self.target.target_mut().run_until(now_us.min(self.event_us));
        }
        let before = self.log.stats();
        let mut taken = TrialResult::default();
        let mut timed = |trial: &mut Self, what: &mut dyn FnMut(&mut Self) -> Result<(), CommandError>| {
            let watch = Stopwatch::start()?;
            what(trial)?;
            let (cpu, wall) = watch.read()?;
            taken.cpu_ms += cpu * 1e3;
            taken.work_ms += wall * 1e3;
            Ok::<_, CommandError>(())
        };
        timed(&mut self, &mut Self::append_event)?;
        loop {
            self.target.target_mut().run_until(now_us);
            timed(&mut self, &mut |trial| trial.step(now_us))?;
            if self.is_done() {
                break;
            }
            now_us += self.look_us;
            if now_us > self.event_us + PATIENCE_US {
                return Err(format!(
                    "{:?}: nothing was verified within an hour of the cluster's time",
                    self.event
                )
                .into());
            }
        }
        let after = self.log.stats();
        taken.cluster_ms = (now_us - self.event_us) as f64 / 1e3;
        taken.actions =
            self.since().filter(|intent| matches!(intent.stage, Stage::Verified { .. })).count() as u64;
        taken.log = LogStats {
            batches: after.batches - before.batches,
            records: after.records - before.records,
            bytes: after.bytes - before.bytes,
            fsyncs: after.fsyncs - before.fsyncs,
        };
        Ok(taken)
    }

    fn step(&mut self, now_us: i64) -> Result<(), CommandError> {
        self.executor.step(&mut self.target, &mut || KillSwitch::On, &[], EPOCH_US + now_us)?;
        Ok(())
    }

    /// Appends the event, as its observer would.
    fn append_event(&mut self) -> Result<(), CommandError> {
        let at_ms = (EPOCH_US + self.event_us) / 1_000;
        let sim = self.target.target_mut().sim();
        let (schema, events) = match self.event {
            Event::BadNode => {
                let signal = bad(&self.node, &sim.spec().name, at_ms);
                (SchemaId::NodeSignal, vec![LogEvent::NodeHealth(signal)])
            }
            Event::DemandJump => (SchemaId::PoolSample, Observer::new("bench", 1).sample(sim, 60_000)),
        };
        let mut batcher = PartitionBatcher::new("bench", schema.topic(), 0);
        for mut event in events {
            batcher.push(self.log.as_ref(), event.record()?)?;
        }
        batcher.append(self.log.as_ref())
    }

    /// Intents since the event.
    fn since(&self) -> impl Iterator<Item = &Intent> {
        let from_us = EPOCH_US + self.event_us;
        self.executor.state().intents.all().filter(move |intent| intent.at_us() >= from_us)
    }

    /// Whether the necessary actions are verified and none is open.
    fn is_done(&self) -> bool {
        let ours = |intent: &&Intent| match (self.event, &intent.decision.action.change) {
            (Event::BadNode, Change::DrainNode { node, .. }) => *node == self.node,
            (Event::DemandJump, Change::Reclaim { .. }) => true,
            _ => false,
        };
        let verified = |intent: &Intent| matches!(intent.stage, Stage::Verified { .. });
        self.since().filter(ours).any(verified) && self.since().filter(ours).all(Intent::is_over)
    }
}

impl Event {
    /// A policy that performs only the kinds of action that the event needs, and those before it.
    fn policy(self) -> Result<Policy, CommandError> {
        let mut policy = Policy::auto();
        let acts: &[Kind] = match self {
            Self::BadNode => &[Kind::DrainNode],
            Self::DemandJump => &[Kind::Lend, Kind::Reclaim, Kind::ResizeJob, Kind::Preempt],
        };
        for (kind, mode) in &mut policy.modes {
            if !acts.contains(kind) {
                *mode = tidegate_autopilot::policy::Mode::Observe;
            }
        }
        Ok(policy)
    }
}

/// Half of the nodes train, with two days of jobs submitted before the start. Half serve: three
/// tenths of them are needed until the event, all of them from then on.
fn setting(nodes: usize, event_us: i64, seed: u64) -> Scenario {
    let train = nodes / 2;
    let gpus = (train * GPUS_PER_NODE) as u32;
    let arrivals = Arrivals { span_us: BEGINS_US, load_gpus: gpus * 8, max_gpus: 32, ..Arrivals::default() };
    let mut setting = Scenario::synthetic(
        train,
        nodes - train,
        &arrivals,
        &Load { span_us: DAY_US, ..Load::default() },
        seed,
    );
    setting.spec.epoch_us = EPOCH_US;
    // Steps of one second, so that the event begins a step.
    let step = |second: i64| if second * SECOND_US < event_us { gpus * 3 / 10 } else { gpus };
    let demand_gpus = (0..=event_us / SECOND_US + 1).map(step).collect();
    setting.services = vec![ServiceSpec { pool: 1, demand_gpus, step_us: SECOND_US }];
    setting
}

fn bad(node: &str, cluster: &str, at_ms: i64) -> NodeSignal {
    NodeSignal {
        envelope: Some(Envelope {
            cluster: cluster.into(),
            source: "bench".into(),
            event_time_ms: at_ms,
            observed_time_ms: at_ms,
            ..Envelope::default()
        }),
        state: NodeHealthState::Bad.into(),
        node: node.into(),
        bad_ppm: 990_000,
        evidence: vec!["xid value=63.000 weight=3.00".into(), "ecc_rate value=12.000 weight=3.00".into()],
        model: "bench".into(),
        ..NodeSignal::default()
    }
}
