//! The whole way: forecasts on a log, a plan that uses them, bounds that drift, and the guard that
//! refuses.

use std::collections::BTreeSet;

use tidegate_autopilot::action::{Action, Kind};
use tidegate_autopilot::executor::{Executor, Journal, JournalEntry, JournalEvent, PlanRecord, Settings};
use tidegate_autopilot::forecast::{SelectedForecast, SeriesNames};
use tidegate_autopilot::guard::{KillSwitch, Rule};
use tidegate_autopilot::intent;
use tidegate_autopilot::planner::{Plan, Report};
use tidegate_autopilot::policy::{ForecastSource, Policy};
use tidegate_autopilot::state::{
    Checkpoint, ClusterState, ForecastOrigin, Health, Job, JobKind, JobState, Node, NodeState, Owner, Pool,
    Share, Source,
};
use tidegate_autopilot::target::{Capabilities, Effect, Notice, Receipt, Target, TargetError};
use tidegate_events::Event;
use tidegate_events::v1::{self, CoverageState, ForecastReach, SeriesKind};
use tidegate_log::{Batch, EmbeddedLog, EmbeddedOptions, Producer, TopicConfig, TopicPartition};

use super::*;
use crate::LogJournal;

const HOUR_MS: i64 = 3_600_000;
/// 2026-01-05T06:00:00Z, when forecasts are issued.
pub(crate) const ISSUED_MS: i64 = 1_767_592_800_000;

/// A serving pool of 128 GPUs of which `serving` needs 40, and research jobs that wait. It takes
/// every action and does nothing.
pub(crate) struct Still {
    now_us: i64,
    applied: BTreeSet<String>,
    serving_nodes: u32,
    waiting_jobs: u32,
}

impl Still {
    pub(crate) fn at(now_us: i64) -> Self {
        Self::sized(now_us, 16, 25)
    }

    /// A cluster of another size, in which as large a part is idle.
    pub(crate) fn sized(now_us: i64, serving_nodes: u32, waiting_jobs: u32) -> Self {
        Self { now_us, applied: BTreeSet::new(), serving_nodes, waiting_jobs }
    }
}

fn job() -> Job {
    Job {
        owner: "research".into(),
        pool: "train".into(),
        queue: None,
        priority: 0,
        kind: JobKind::Gang,
        gpus: 8,
        state: JobState::Pending { since_us: (ISSUED_MS - HOUR_MS) * 1_000 },
        placement: [].into(),
        anchor_node: None,
        restarts: 0,
        loan: None,
        preemptible: true,
        preemptions_24h: 0,
        checkpoint: Checkpoint::default(),
        curve: None,
        remaining_work_ms: None,
        expected_end_us: None,
        end_within_us: None,
        resized_us: None,
        opt_in: true,
        do_not_disrupt: false,
    }
}

impl Target for Still {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        let mut state = ClusterState { cluster: "c".into(), at_us: self.now_us, ..ClusterState::default() };
        for i in 0..=self.serving_nodes {
            // The last one is of those who wait: a loan is of GPUs as theirs.
            let node = Node {
                pool: if i < self.serving_nodes { "serve" } else { "train" }.into(),
                rack: None,
                gpu_model: "H100".into(),
                gpus: 8,
                state: NodeState::Up,
                health: Health::default(),
                drain: None,
                do_not_disrupt: false,
            };
            state.nodes.insert(format!("s{i:02}"), node);
        }
        for pool in ["serve", "train"] {
            state.pools.insert(pool.into(), Pool::default());
        }
        let owner =
            |pool: &str, share| Owner { shares: [(pool.to_owned(), share)].into(), ..Owner::default() };
        let share = |quota_gpus, lendable, demand| Share {
            quota_gpus,
            lendable,
            demand_gpus: Some(demand),
            ..Share::default()
        };
        state.owners.insert("serving".into(), owner("serve", share(8 * self.serving_nodes, true, 40)));
        state.owners.insert("research".into(), owner("train", share(0, false, 200)));
        state.jobs.extend((0..self.waiting_jobs).map(|at| (format!("w{at:02}"), job())));
        state.sources.insert("slurm".into(), Source { last_event_us: Some(self.now_us) });
        Ok(state)
    }

    fn notify(&mut self, _: &Action) -> Result<Notice, TargetError> {
        Ok(Notice::Unsupported)
    }

    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        self.applied.insert(action.id.clone());
        Ok(Receipt { action: action.id.clone(), at_us: self.now_us, already: false, done: String::new() })
    }

    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError> {
        let done = self.applied.contains(&action.id);
        Ok(if done { Effect::Done { at_us: self.now_us } } else { Effect::Absent })
    }
}

fn publish(log: &dyn EventLog, mut event: Event, at_ms: i64, source: &str) {
    let envelope = event.envelope_mut();
    (envelope.cluster, envelope.source) = ("c".into(), source.into());
    (envelope.event_time_ms, envelope.observed_time_ms) = (at_ms, at_ms);
    let at = TopicPartition { topic: event.schema().topic().into(), partition: 0 };
    let producer = Producer { source: source.into(), epoch: 0 };
    let records = vec![event.record().unwrap().into()];
    log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
}

/// 40 GPUs at the median, 44 at 0.95, 45 at 0.99, an hour and two ahead.
fn forecast(log: &dyn EventLog) {
    for horizon in 1..=2 {
        let forecast = v1::Forecast {
            kind: SeriesKind::Team.into(),
            name: "serving".into(),
            target_ms: ISSUED_MS + (i64::from(horizon) - 1) * HOUR_MS,
            step_ms: HOUR_MS as u64,
            horizon,
            level_ppm: vec![100_000, 500_000, 950_000, 990_000],
            gpus_milli: vec![36_000, 40_000, 44_000, 45_000],
            model: "test".into(),
            ..v1::Forecast::default()
        };
        publish(log, Event::Forecast(forecast), ISSUED_MS, &format!("forecast#{horizon}"));
    }
}

fn say(log: &dyn EventLog, state: CoverageState, below95_ppm: u32, at_ms: i64) {
    let signal = v1::CoverageSignal {
        kind: SeriesKind::Team.into(),
        name: "serving".into(),
        reach: ForecastReach::WithinDay.into(),
        state: state.into(),
        since_ms: at_ms,
        scores: 300,
        inside80_ppm: 640_000,
        below95_ppm,
        model: "test".into(),
        ..v1::CoverageSignal::default()
    };
    publish(log, Event::Coverage(signal), at_ms, &format!("coverage#{at_ms}"));
}

/// Life of an autopilot on the log: a plan at each call.
struct Pilot {
    executor: Executor<LogJournal, SelectedForecast>,
    forecasts: ForecastReader,
    reader: LogJournal,
}

impl Pilot {
    fn new(log: &Arc<dyn EventLog>, source: ForecastSource) -> Self {
        let mut policy = Policy::auto();
        policy.forecast.source = source;
        // Bounds as published, without the margin of level 1.
        policy.lend.promise_quantile = 0.99;
        policy.stability.dwell_s = 0;
        policy.lend.step_every_s = 0;
        let journal = LogJournal::open(Arc::clone(log), "c", "test").unwrap();
        let reader = LogJournal::open(Arc::clone(log), "c", "reader").unwrap();
        let forecasts = ForecastReader::new(Arc::clone(log), "c", ISSUED_MS).unwrap();
        let chosen = SelectedForecast::new(&policy, SeriesNames::default());
        Self { executor: Executor::new(policy, Settings::default(), journal, chosen), forecasts, reader }
    }

    /// What was recorded: the plan, and refusals of loans.
    fn step(&mut self, at_ms: i64) -> (PlanRecord, Vec<intent::Transition>) {
        let mut target = Still::at(at_ms * 1_000);
        let Self { executor, forecasts, .. } = self;
        executor.learn(|chosen| forecasts.read(chosen.published()).unwrap());
        executor.step(&mut target, &mut || KillSwitch::On, &[], at_ms * 1_000).unwrap();
        let entries: Vec<JournalEntry> = self.reader.read().unwrap();
        let planned = entries.iter().find_map(|entry| match &entry.event {
            JournalEvent::Planned(planned) => Some((**planned).clone()),
            _ => None,
        });
        let steps = entries.into_iter().filter_map(|entry| match entry.event {
            JournalEvent::Step(event) => Some(event.transition),
            _ => None,
        });
        (planned.expect("a plan is recorded"), steps.collect())
    }
}

fn lent(planned: &PlanRecord) -> Vec<u32> {
    planned.plan.decisions.iter().filter(|d| d.kind == Kind::Lend).map(|d| d.gpus).collect()
}

fn by(planned: &PlanRecord) -> &ForecastOrigin {
    &planned.state.forecast_origins["serving"]["serve"]
}

fn opened(folder: &std::path::Path) -> Arc<dyn EventLog> {
    let log: Arc<dyn EventLog> = Arc::new(EmbeddedLog::open(folder, EmbeddedOptions::default()).unwrap());
    for schema in [SchemaId::AutopilotEvent, SchemaId::Forecast, SchemaId::CoverageSignal] {
        let config = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(schema.topic(), config).unwrap();
    }
    log
}

fn minute(n: i64) -> i64 {
    ISSUED_MS + n * 60_000
}

#[test]
fn a_plan_uses_what_was_published_and_the_past_where_it_drifts() {
    let folder = tempfile::tempdir().unwrap();
    let log = opened(folder.path());
    let mut pilot = Pilot::new(&log, ForecastSource::Best);

    // Nothing was published, and the past is too short: nothing is lent.
    let (planned, _) = pilot.step(minute(1));
    assert!(
        matches!(by(&planned), ForecastOrigin::Past { why, .. } if why.contains("TEAM serving")),
        "{:?}",
        by(&planned)
    );
    assert!(lent(&planned).is_empty());

    // Published, and nobody says whether it holds: the same.
    forecast(log.as_ref());
    let (before, _) = pilot.step(minute(12));
    let planned = &before;
    assert!(
        matches!(by(planned), ForecastOrigin::Past { why, .. } if why.contains("hold")),
        "{:?}",
        by(planned)
    );
    assert!(lent(planned).is_empty());

    // It holds: of 128 GPUs those beyond the bound and 8 are lent, at most 64 at once.
    say(log.as_ref(), CoverageState::Holds, 950_000, minute(20));
    let (planned, steps) = pilot.step(minute(23));
    assert!(
        matches!(by(&planned), ForecastOrigin::Published { series, off, .. } if series == "TEAM serving" && off.is_empty())
    );
    assert_eq!(lent(&planned), [64]);
    assert!(steps.iter().any(|what| matches!(what, intent::Transition::Applying)), "{steps:?}");
    // Made again from the record alone: whoever answered, the answers are on it.
    let bytes = |made: (&Plan, &Report)| serde_json::to_vec(&made).unwrap();
    let (plan, report) = planned.replay(Some(&before.plan));
    assert_eq!(bytes((&plan, &report)), bytes((&planned.plan, &planned.report)));

    // The bounds are too low: the past is asked, which is too short to lend on.
    say(log.as_ref(), CoverageState::TooLow, 900_000, minute(30));
    let (planned, steps) = pilot.step(minute(34));
    assert!(
        matches!(by(&planned), ForecastOrigin::Past { why, .. } if why.contains("TEAM serving do not hold")),
        "{:?}",
        by(&planned)
    );
    assert!(lent(&planned).is_empty());
    assert!(!steps.iter().any(|what| matches!(what, intent::Transition::Applying)), "{steps:?}");

    // Good again.
    say(log.as_ref(), CoverageState::Holds, 950_000, minute(40));
    let (planned, steps) = pilot.step(minute(45));
    assert_eq!(lent(&planned), [64]);
    assert!(steps.iter().any(|what| matches!(what, intent::Transition::Applying)), "{steps:?}");
}

#[test]
fn the_guard_refuses_where_the_policy_has_the_log_alone_and_it_drifts() {
    let folder = tempfile::tempdir().unwrap();
    let log = opened(folder.path());
    let mut pilot = Pilot::new(&log, ForecastSource::Log);
    forecast(log.as_ref());

    // The bounds are too low, though not by the share that the planner itself would stop at.
    say(log.as_ref(), CoverageState::TooLow, 900_000, minute(30));
    let (planned, steps) = pilot.step(minute(34));
    assert_eq!(lent(&planned), [64], "the planner would");
    let refusals: Vec<_> = steps
        .iter()
        .filter_map(|what| match what {
            intent::Transition::Dropped { refusal } => refusal.as_ref(),
            _ => None,
        })
        .collect();
    assert!(refusals.iter().any(|r| r.rule == Rule::Forecast && r.why.contains("TEAM serving")), "{steps:?}");
    assert!(!steps.iter().any(|what| matches!(what, intent::Transition::Applying)), "{steps:?}");

    // Good again.
    say(log.as_ref(), CoverageState::Holds, 950_000, minute(40));
    let (planned, steps) = pilot.step(minute(45));
    assert_eq!(lent(&planned), [64]);
    assert!(steps.iter().any(|what| matches!(what, intent::Transition::Applying)), "{steps:?}");
}

#[test]
fn what_is_no_owners_demand_or_of_another_cluster_is_left_out() {
    let mut published = Published::new(SeriesNames::default());
    let empty = format!("{published:?}");
    let class = v1::Forecast { kind: SeriesKind::Class.into(), name: "1".into(), ..v1::Forecast::default() };
    record_published(&Event::Forecast(class), &mut published);
    let unknown = v1::CoverageSignal {
        kind: SeriesKind::Team.into(),
        reach: ForecastReach::WithinDay.into(),
        state: 77,
        ..v1::CoverageSignal::default()
    };
    record_published(&Event::Coverage(unknown), &mut published);
    assert_eq!(format!("{published:?}"), empty);
}
