//! The dry run against the simulator, which has rules of its own: on random clusters, what the dry
//! run expects of a batch is what the simulator does with it. Where not, the test says how often
//! and why, and fails on any difference that has none of the known causes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_autopilot::action::{Action, Adjustment, Change, Kind};
use tidegate_autopilot::dry_run::{Candidate, Compared, Difference, Expected, Outcome, try_batch};
use tidegate_autopilot::executor::{ExecutorState, InMemoryJournal, Journal, JournalEvent};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::intent::{Stage, Transition};
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::state::{ClusterState, Job, JobKind, JobState};
use tidegate_autopilot::target::Target;
use tidegate_sim::forecast_fault::ForecastFault;
use tidegate_sim::generate::{Arrivals, Load};
use tidegate_sim::pilot::{Pilot, PilotConfig, warmed_up_forecast};
use tidegate_sim::scenario::Scenario;
use tidegate_sim::target::{ControlFaults, SimTarget};
use tidegate_sim::{
    Checkpoint, ClusterSpec, DAY_US, Elastic, HOUR_US, JobSpec, MINUTE_US, NodeSpec, PoolSpec, SECOND_US,
    ServiceSpec, Sim, TeamSpec, amdahl,
};

const TRAIN: u32 = 14;
const SERVE: u32 = 8;
/// Longer than any change takes: 30 s to kill, 30 s to hand over, 180 s to load.
const SETTLED_US: i64 = 10 * MINUTE_US;

/// A cluster an hour after its jobs were submitted: some have ended and left holes, a line waits,
/// and nothing else happens in the time in which changes settle.
fn cluster(rng: &mut ChaCha8Rng) -> SimTarget {
    let pool = |name: &str| PoolSpec { name: name.into(), floor_gpus: 0 };
    let node = |at: u32| NodeSpec {
        name: format!("n{at:02}"),
        model: 0,
        gpus: 8,
        rack: at / 4,
        pool: usize::from(at >= TRAIN),
    };
    let team = |name: &str, quota_gpus| TeamSpec { name: name.into(), pool: 0, quota_gpus };
    let spec = ClusterSpec {
        name: "random".into(),
        epoch_us: 1_760_000_000_000_000,
        models: vec!["H100".into()],
        pools: vec![pool("train"), pool("serve")],
        nodes: (0..TRAIN + SERVE).map(node).collect(),
        teams: vec![team("red", None), team("blue", Some(rng.random_range(4..9) * 8))],
        curves: vec![amdahl(50_000, 128)],
        ..ClusterSpec::default()
    };
    // The first run before the others are there, and are behind all of them when they are stopped.
    let first = (0..rng.random_range(5..15)).map(|_| JobSpec { priority: -1, ..job(rng, 0) });
    let mut jobs: Vec<JobSpec> = first.collect();
    jobs.extend((0..rng.random_range(15..45)).map(|_| job(rng, MINUTE_US)));
    let service = ServiceSpec { pool: 1, demand_gpus: vec![rng.random_range(0..40)], step_us: HOUR_US };
    let sim = Sim::new(spec, jobs, vec![service]).unwrap();
    let mut target = SimTarget::new(sim, ControlFaults::default(), 1);
    target.run_until(HOUR_US / 2);
    for at in 0..rng.random_range(0..3) {
        let state = target.state();
        if let Some(loan) = lend(rng, &state, &format!("early-{at}")) {
            target.apply(&loan).unwrap();
        }
    }
    target.run_until(HOUR_US);
    target
}

fn job(rng: &mut ChaCha8Rng, submit_us: i64) -> JobSpec {
    let gpus = *[1, 2, 4, 8, 8, 16, 24, 32].choose(rng).unwrap();
    let work_us = if rng.random_bool(0.4) { rng.random_range(15..50) * MINUTE_US } else { 1_000 * HOUR_US };
    let elastic =
        (gpus >= 8 && rng.random_bool(0.5)).then(|| Elastic { min_gpus: 8, max_gpus: 2 * gpus, curve: 0 });
    let team = rng.random_range(0..2);
    // The simulator lends nodes to a pool, a scheduler to a team: only one team borrows.
    let loan = team == 0 && rng.random_bool(0.7);
    JobSpec {
        team,
        priority: rng.random_range(0..3),
        loan,
        elastic,
        checkpoint: (loan || elastic.is_some()).then_some(Checkpoint {
            every_us: HOUR_US / 4,
            cost_us: 20 * SECOND_US,
            on_notice: false,
        }),
        ..JobSpec::plain(submit_us, gpus, work_us)
    }
}

fn action(id: String, change: Change, state: &ClusterState) -> Action {
    let (preconditions, inverse, after) = (Vec::new(), None, Vec::new());
    let expires_us = state.at_us + HOUR_US;
    let (generation, effect_ends_us, notice_ms) = (1, None, 0);
    Action { id, generation, change, preconditions, inverse, expires_us, effect_ends_us, notice_ms, after }
}

/// A loan of one or two nodes at home that no job holds.
fn lend(rng: &mut ChaCha8Rng, state: &ClusterState, id: &str) -> Option<Action> {
    let held: BTreeSet<&String> = state.jobs.values().flat_map(|job| job.placement.keys()).collect();
    let lent: BTreeSet<&String> = state.loans.values().flat_map(|loan| &loan.nodes).collect();
    let is_idle = |name: &&String| !held.contains(name) && !lent.contains(name);
    let idle: Vec<&String> = state
        .nodes
        .iter()
        .filter(|(_, node)| node.pool == "serve" && node.takes_jobs())
        .map(|(name, _)| name)
        .filter(is_idle)
        .collect();
    let count = rng.random_range(1..3);
    let nodes: BTreeSet<String> = idle.choose_multiple(rng, count).map(|name| (*name).clone()).collect();
    let change = Change::Lend {
        from: "serve".into(),
        to: "red".into(),
        pool: "serve".into(),
        gpus: 8 * nodes.len() as u32,
        nodes: nodes.clone(),
        extends: None,
        expires_us: state.at_us + 24 * HOUR_US,
        reclaim_within_ms: 900_000,
    };
    (!nodes.is_empty()).then(|| action(id.to_owned(), change, state))
}

/// A random change of something that may be changed.
fn random_action(rng: &mut ChaCha8Rng, state: &ClusterState, id: String) -> Option<Action> {
    let running: Vec<(&String, _)> = state
        .jobs
        .iter()
        .filter(|(_, job)| job.running_since_us().is_some() && !job.do_not_disrupt)
        .collect();
    let (job, found) = *running.choose(rng)?;
    let held = found.held_gpus();
    let change = match rng.random_range(0..7) {
        0 | 1 => {
            let JobKind::Elastic { max_gpus, .. } = found.kind else { return None };
            let to_gpus = (held + 8 * rng.random_range(1..3)).min(max_gpus);
            let keep_nodes = found.placement.keys().cloned().collect();
            Change::ResizeJob { job: job.clone(), from_gpus: held, to_gpus, keep_nodes, add_nodes: [].into() }
        }
        2 => {
            let JobKind::Elastic { .. } = found.kind else { return None };
            let keep_nodes: BTreeSet<String> = found.placement.keys().skip(1).cloned().collect();
            let to_gpus = keep_nodes.iter().map(|node| found.placement[node]).sum();
            if to_gpus < 8 {
                return None;
            }
            Change::ResizeJob { job: job.clone(), from_gpus: held, to_gpus, keep_nodes, add_nodes: [].into() }
        }
        3 if found.priority < 0 || rng.random_bool(0.1) => {
            Change::Preempt { job: job.clone(), frees_gpus: held }
        }
        3 => return None,
        4 => {
            let nodes: Vec<&String> = state.nodes.keys().take(TRAIN as usize).collect();
            Change::DrainNode { node: (*nodes.choose(rng)?).clone(), reason: "test".into() }
        }
        5 => return lend(rng, state, &id),
        _ => match state.loans.iter().next() {
            Some((loan, found)) if rng.random_bool(0.7) => Change::Reclaim {
                loan: loan.clone(),
                from_gpus: found.gpus,
                to_gpus: 0,
                nodes: found.nodes.clone(),
            },
            _ => {
                let to_gpus = 8 * rng.random_range(2..12);
                let (owner, pool) = ("blue".to_owned(), "train".to_owned());
                let from_gpus = state.share("blue", "train")?.limit_gpus?;
                Change::AdjustReservation(Adjustment::Quota { owner, pool, from_gpus, to_gpus })
            }
        },
    };
    (change.job().is_none() || held > 0).then(|| action(id, change, state))
}

/// A batch in which no object is changed twice, as the guard has it.
fn batch(rng: &mut ChaCha8Rng, state: &ClusterState) -> Vec<Action> {
    let mut objects = BTreeSet::new();
    let mut out = Vec::new();
    for at in 0..rng.random_range(1..7) {
        let Some(action) = random_action(rng, state, format!("a{at}")) else { continue };
        let is_loan = matches!(action.change, Change::Lend { .. });
        if is_loan || objects.insert(action.change.object()) {
            out.push(action);
        }
    }
    out
}

/// What the test counts.
#[derive(Debug, Default)]
struct Counts {
    batches: u32,
    /// Runs in which a job ended by itself meanwhile: nothing is claimed of those.
    others_acted: u32,
    actions: u32,
    /// Expected GPUs of jobs, uses of nodes, free GPUs of pools and starts.
    claims: u32,
    /// Claims that did not come true, by cause.
    missed: BTreeMap<&'static str, u32>,
    /// Actions that were refused, and those of them that the simulator would have carried out.
    refused: u32,
    refused_in_vain: BTreeMap<String, u32>,
}

/// Whether a stopped job started again before a job for which room was made. The simulator queues
/// jobs of one priority by number, so a stopped job is ahead of younger ones: it may start at once,
/// or use up its team's limit. A scheduler that queues it last starts the others first.
fn stopped_goes_first(
    stopped: &BTreeSet<&String>,
    expected: &Expected,
    before: &ClusterState,
    after: &ClusterState,
) -> bool {
    let place = |id: &String| {
        let number: u64 = id.trim_start_matches("job-").parse().unwrap();
        (Reverse(before.jobs[id].priority), number)
    };
    let runs_again =
        |id: &String| after.jobs[id].running_since_us().is_some_and(|since_us| since_us > before.at_us);
    stopped.iter().any(|id| runs_again(id) || expected.starts.keys().any(|start| place(id) < place(start)))
}

/// Whether a job shrinks to nodes of which one is taken back: in the simulator it leaves that too.
fn keeps_called_back(actions: &[Action]) -> bool {
    let called = actions.iter().filter_map(|action| match &action.change {
        Change::Reclaim { nodes, .. } => Some(nodes),
        _ => None,
    });
    let called: BTreeSet<&String> = called.flatten().collect();
    actions.iter().any(|action| match &action.change {
        Change::ResizeJob { keep_nodes, from_gpus, to_gpus, .. } => {
            to_gpus < from_gpus && keep_nodes.iter().any(|node| called.contains(node))
        }
        _ => false,
    })
}

/// Jobs that are elsewhere than before, and where.
fn moved<'s>(
    before: &ClusterState,
    after: &'s ClusterState,
) -> BTreeMap<&'s String, &'s BTreeMap<String, u32>> {
    let elsewhere =
        |(id, job): &(&String, &Job)| before.jobs.get(*id).is_none_or(|was| was.placement != job.placement);
    after.jobs.iter().filter(elsewhere).map(|(id, job)| (id, &job.placement)).collect()
}

fn run(seed: u64, counts: &mut Counts) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut target = cluster(&mut rng);
    let before = target.state();
    let actions = batch(&mut rng, &before);
    let policy = Policy::parse("[lend]\ngangs_span = true\n[floors]\nin_service_share = 0.0").unwrap();
    let candidate = |action| Candidate { action, restores: false, makes_room_for: None };
    let candidates: Vec<Candidate<'_>> = actions.iter().map(candidate).collect();
    let Outcome { refused, expected, .. } =
        try_batch(&policy, &before, &[], &candidates, before.at_us, |_, _| true);
    counts.batches += 1;
    counts.actions += actions.len() as u32;
    for action in &actions {
        let answer = target.clone().apply(action);
        if let Some(refusal) = refused.get(&action.id) {
            counts.refused += 1;
            if answer.is_ok() {
                let why: String = refusal.why.chars().filter(|it| !it.is_ascii_digit()).take(24).collect();
                *counts.refused_in_vain.entry(why).or_default() += 1;
            }
            continue;
        }
        answer.unwrap_or_else(|error| panic!("seed {seed}: {error}; {:?}", expected.get(&action.id)));
        target.apply(action).unwrap();
    }
    target.run_until(HOUR_US + SETTLED_US);
    let after = target.state();
    let runs = |(_, job): &(&String, &Job)| matches!(job.state, JobState::Running { .. });
    if before.jobs.iter().filter(runs).any(|(id, _)| !after.jobs.contains_key(id)) {
        counts.others_acted += 1;
        return;
    }
    let stopped = actions.iter().filter(|action| expected.contains_key(&action.id));
    let stopped: BTreeSet<&String> = stopped
        .filter(|action| matches!(action.change, Change::Preempt { .. }))
        .filter_map(|action| action.change.job())
        .collect();
    for expected in expected.values() {
        let Expected { jobs, nodes, free_gpus, starts, .. } = expected;
        counts.claims += (jobs.len() + nodes.len() + free_gpus.len() + starts.len()) as u32;
        for difference in expected.compare(&after, Vec::new()).differences {
            let cause = match () {
                () if stopped_goes_first(&stopped, expected, &before, &after) => "a stopped job went first",
                () if keeps_called_back(&actions) => "a shrinking job left a called-back node too",
                () => panic!(
                    "seed {seed}: {difference}; {expected:?}; it did {:?}; {actions:?}",
                    moved(&before, &after)
                ),
            };
            *counts.missed.entry(cause).or_default() += 1;
        }
    }
    // Independent of what was claimed: no job that nobody named and that ran is elsewhere.
    for (id, job) in before.jobs.iter().filter(runs) {
        let is_named = actions.iter().any(|action| action.change.job() == Some(id));
        assert!(is_named || after.jobs[id].placement == job.placement, "seed {seed}: {id}");
    }
}

#[test]
fn the_simulator_does_what_the_dry_run_expects() {
    let mut counts = Counts::default();
    (0..1_000).for_each(|seed| run(seed, &mut counts));
    println!("{counts:#?}");
    let missed: u32 = counts.missed.values().sum();
    assert!(counts.claims > 2_000 && counts.refused > 200, "{counts:?}");
    assert!(missed * 25 < counts.claims, "more than 4 % of the claims were wrong: {counts:?}");
    let in_vain: u32 = counts.refused_in_vain.values().sum();
    assert!(
        in_vain * 50 < counts.refused,
        "the simulator would have carried out what was refused: {counts:?}"
    );
}

/// The product's executor over a day, with jobs that come and go, and a successor that takes over
/// at noon: what began was expected before, and what was verified is compared, whoever began it.
#[test]
fn an_executor_expects_before_it_begins_and_compares_after_it_has_verified() {
    let arrivals = Arrivals { span_us: DAY_US, load_gpus: 90, max_gpus: 32, ..Arrivals::default() };
    let load = Load { span_us: DAY_US, peak_gpus: 50, ..Load::default() };
    let mut setting = Scenario::synthetic(8, 8, &arrivals, &load, 5);
    setting.spec.epoch_us = 1_760_000_000_000_000;
    let sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone()).unwrap();
    let mut target = SimTarget::new(sim, ControlFaults::default(), 1);
    let journal = InMemoryJournal::default();
    let mut pilots = [1, 2].map(|life| {
        let foresight = warmed_up_forecast(&setting, ForecastFault::default());
        Pilot::new(Policy::auto(), life, PilotConfig::default(), journal.reader(), foresight)
    });
    while target.sim().now_us() < DAY_US {
        let now_us = target.sim().now_us();
        let pilot = &mut pilots[usize::from(now_us >= DAY_US / 2 + 7 * MINUTE_US)];
        pilot.step(&mut target, &mut || KillSwitch::On, setting.spec.epoch_us + now_us).unwrap();
        target.run_until(now_us + MINUTE_US);
    }
    let entries = journal.reader().read().unwrap();
    let mut known = ExecutorState::default();
    let (mut expected, mut compared) = (BTreeMap::new(), BTreeMap::new());
    for entry in &entries {
        match &entry.event {
            JournalEvent::Expected(it) => {
                drop(expected.insert(it.action.clone(), (entry.generation, it.clone())))
            }
            JournalEvent::Compared(it) => {
                drop(compared.insert(it.action.clone(), (entry.generation, it.clone())))
            }
            JournalEvent::Step(step) if step.transition == Transition::Applying => {
                assert!(expected.contains_key(&step.action), "{} began unexpected", step.action);
            }
            _ => {}
        }
        known.fold(entry.clone());
    }
    assert_eq!(known.rejected, 0);
    let verified: Vec<_> =
        known.intents.all().filter(|it| matches!(it.stage, Stage::Verified { .. })).collect();
    let late = verified.iter().filter(|it| !compared.contains_key(&it.decision.action.id)).count();
    // The simulator queues a stopped job by its number, so it may start again at once.
    let restarts = |it: &Compared| it.kind == Kind::Preempt;
    let own = |it: &Compared| !restarts(it) && it.differences.iter().any(Difference::is_own);
    let with_own = compared.values().filter(|(_, it)| own(it)).count();
    let agreed = compared.values().filter(|(_, it)| it.differences.is_empty()).count();
    println!(
        "{} expected, {} verified, {} compared: {agreed} agree, {with_own} differ in their own effect",
        expected.len(),
        verified.len(),
        compared.len()
    );
    assert!(compared.len() > 20 && late <= 3, "{late} of {} are not compared", verified.len());
    for (_, differs) in compared.values().filter(|(_, it)| !it.differences.is_empty()) {
        println!("{}: {differs}; expected {}", differs.action, expected[&differs.action].1);
    }
    assert!(with_own == 0 && agreed * 4 > compared.len() * 3, "{with_own} of {}", compared.len());
    let by_a_successor = compared.iter().any(|(id, (generation, _))| expected[id].0 < *generation);
    println!("a successor compared what another expected: {by_a_successor}");
    // Records of older versions have neither.
    let text = serde_json::to_string(&ExecutorState::default()).unwrap();
    assert!(!text.contains("expected") && serde_json::from_str::<ExecutorState>(&text).is_ok());
}
