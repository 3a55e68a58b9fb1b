//! What must be so for the truth to be one.

use crate::bench::ledger::loads::load_of_job;
use std::collections::{BTreeMap, BTreeSet};

use tidegate_collect::{Metric, Value};
use tidegate_events::FinalState;
use tidegate_log::{EmbeddedLog, EventLog, TopicConfig, TopicPartition};

use super::class::Class;
use super::day::{Activity, Day, Incident, Job};
use super::emit::{self, Damage, Emitted};
use super::facts::Facts;
use super::fleet::{Part, SHARED, TRAIN, WHOLE};
use super::readings::Watched;
use super::scenes::{self, QUOTA};
use super::truth::Truth;
use tidegate_demo::draw::Draw;

/// Days of several shapes.
fn days() -> impl Iterator<Item = Day> {
    [(1, 1, 3), (2, 2, 3), (3, 6, 6), (4, 24, 6), (5, 3, 10)]
        .into_iter()
        .map(|(seed, hours, nodes)| scenes::generate(seed, hours, nodes))
}

#[test]
fn each_millisecond_of_each_gpu_is_in_one_class() {
    for day in days() {
        for (place, unit) in day.fleet.units.iter().enumerate() {
            let there = day.fleet.nodes[unit.node].registered;
            let mut at_ms = there.from_ms;
            for piece in day.pieces(place) {
                assert_eq!(piece.span.from_ms, at_ms, "unit {place}: {piece:?}");
                assert!(piece.span.to_ms > at_ms && piece.class != Class::Unknown, "{piece:?}");
                at_ms = piece.span.to_ms;
            }
            assert_eq!(at_ms, there.to_ms);
        }
        let nodes = day.fleet.nodes.len();
        let truth = Truth::new(&day, &vec![Vec::new(); nodes]);
        assert_eq!(truth.0.values().sum::<i64>(), day.paid());
        let unseen: Vec<Vec<_>> = (0..nodes).map(|node| day.unseen(node).collect()).collect();
        let known = Truth::new(&day, &unseen);
        assert_eq!(known.0.values().sum::<i64>(), day.paid());
        let found: BTreeSet<Class> = known.0.keys().map(|cell| cell.class).collect();
        let all: BTreeSet<Class> = Class::ALL.into_iter().collect();
        assert_eq!(found, all, "every class is in every day");
    }
}

#[test]
fn a_gpu_holds_what_it_can_and_only_while_it_is_there() {
    for day in days() {
        let mut ends: BTreeMap<usize, Vec<(i64, i64)>> = BTreeMap::new();
        for job in &day.jobs {
            let mut free_ms = job.submit_ms;
            for attempt in &job.attempts {
                assert!(attempt.span.from_ms >= free_ms && attempt.span.length_ms() > 0, "{job:?}");
                free_ms = attempt.span.to_ms;
                for unit in &attempt.units {
                    let node = day.fleet.units[*unit].node;
                    let registered = day.fleet.nodes[node].registered;
                    assert!(
                        registered.from_ms <= attempt.span.from_ms && attempt.span.to_ms <= registered.to_ms
                    );
                    assert_eq!(day.fleet.nodes[node].pool, job.pool);
                    ends.entry(*unit).or_default().push((attempt.span.from_ms, attempt.span.to_ms));
                    for condition in &day.conditions {
                        let bars = match condition.what {
                            Incident::Down(down) => down == node,
                            Incident::Lost(lost, gpu) => (lost, gpu) == (node, day.fleet.units[*unit].gpu),
                            // Who reports steps tells them by the node's agent.
                            Incident::Silent(silent) => silent == node && attempt.training().is_some(),
                            _ => false,
                        };
                        let apart = condition.span.to_ms <= attempt.span.from_ms
                            || attempt.span.to_ms <= condition.span.from_ms;
                        assert!(!bars || apart, "{condition:?} {job:?}");
                    }
                }
            }
        }
        for (unit, mut held) in ends {
            held.sort_unstable();
            assert!(held.windows(2).all(|pair| pair[0].1 <= pair[1].0), "unit {unit} is held twice");
        }
        for node in &day.fleet.nodes {
            for gpu in &node.gpus {
                assert_eq!(gpu.units.iter().map(|unit| day.fleet.units[*unit].weight()).sum::<i64>(), WHOLE);
            }
        }
    }
}

/// Free GPUs of each node of a pool on which jobs may start, and those that each team holds.
fn at(day: &Day, at_ms: i64) -> (Vec<usize>, BTreeMap<&str, usize>) {
    let closed = |node: usize| {
        let bars = |what: Incident| what == Incident::Down(node) || what == Incident::Drained(node);
        day.conditions.iter().any(|c| c.span.contains(at_ms) && bars(c.what))
    };
    let nodes = day.fleet.of_pool(TRAIN);
    let mut free: BTreeMap<usize, usize> =
        nodes.iter().map(|n| (*n, if closed(*n) { 0 } else { 8 })).collect();
    let mut teams = BTreeMap::new();
    for job in &day.jobs {
        for attempt in job.attempts.iter().filter(|a| a.span.contains(at_ms)) {
            for unit in &attempt.units {
                if let Some(free) = free.get_mut(&day.fleet.units[*unit].node) {
                    *free = free.saturating_sub(1);
                    *teams.entry(job.team).or_default() += 1;
                }
            }
        }
    }
    (free.into_values().collect(), teams)
}

/// Why a job waits though something may be free, by what is free.
fn why(day: &Day, job: &Job, free: &[usize], held: usize, quota: usize) -> Option<Class> {
    let units = &job.attempts[0].units;
    let nodes: BTreeSet<usize> = units.iter().map(|unit| day.fleet.units[*unit].node).collect();
    let on_each = units.len() / nodes.len();
    let fitting = free.iter().filter(|free| **free >= on_each).count();
    if free.iter().all(|free| *free == 0) {
        return None;
    }
    if job.reason == Some(QUOTA) {
        assert!(fitting >= nodes.len() && held + units.len() > quota, "{job:?} waits for its quota alone");
        return Some(Class::QuotaStranded);
    }
    assert!(fitting < nodes.len(), "{job:?} could start");
    Some(if nodes.len() == 1 { Class::Fragmented } else { Class::GangWait })
}

#[test]
fn jobs_wait_for_what_is_said_and_start_when_they_can() {
    for day in days() {
        for at_ms in (day.span.from_ms..day.span.to_ms).step_by(20_000) {
            let (free, held) = at(&day, at_ms);
            let quota = |team: &str| {
                let set = day.quotas.iter().filter(|q| q.team == team && q.at_ms <= at_ms);
                set.max_by_key(|q| q.at_ms).map_or(0, |q| q.gpus)
            };
            assert!(held.iter().all(|(team, gpus)| *gpus <= quota(team)), "{held:?} at {at_ms}");
            let waits = |job: &&Job| job.submit_ms <= at_ms && at_ms < job.attempts[0].span.from_ms;
            let waiting: Vec<&Job> = day.jobs.iter().filter(waits).collect();
            assert!(waiting.len() <= 1 && waiting.iter().all(|job| job.pool == TRAIN));
            let expected = waiting.first().and_then(|job| {
                why(&day, job, &free, held.get(job.team).copied().unwrap_or(0), quota(job.team))
            });
            let said: Vec<Class> = day
                .conditions
                .iter()
                .filter(|c| c.span.contains(at_ms))
                .filter_map(|c| match c.what {
                    Incident::Waits(_, class) => Some(class),
                    _ => None,
                })
                .collect();
            assert_eq!(said, Vec::from_iter(expected), "at {at_ms}");
        }
    }
}

#[test]
fn a_restart_goes_on_from_the_last_checkpoint() {
    let mut restarts = 0;
    for day in days() {
        for job in &day.jobs {
            let attempts: Vec<_> = job.attempts.iter().filter_map(|a| a.training()).collect();
            let (Some(first), Some(second)) = (attempts.first(), attempts.get(1)) else { continue };
            assert_ne!(job.attempts[0].state, FinalState::Completed);
            let saved =
                first.steps.iter().filter(|s| first.parts(s, 0).checkpoint_ms > 0).map(|s| s.number).max();
            assert_eq!(second.restore.map(|restore| restore.step), saved);
            assert_eq!(second.steps[0].number, saved.map_or(0, |step| step + 1));
            let done = first.steps.last().map(|step| step.number);
            assert!(done.is_some_and(|done| second.steps.last().is_some_and(|step| step.number > done)));
            restarts += usize::from(saved.is_some());
        }
    }
    assert!(restarts >= 5, "{restarts}");
}

/// The class that samples alone give the time of a device, by the thresholds of the ledger.
fn class_of(reading: &tidegate_collect::Reading) -> Class {
    let value = |metric| match reading.get(metric) {
        Value::Is(value) => value,
        _ => 0,
    };
    if value(Metric::GpuUtil) >= 10_000 || value(Metric::SmActive) >= 10_000 {
        Class::Active
    } else if value(Metric::Processes) > 0 {
        Class::IdleHeld
    } else {
        Class::EmptyHeld
    }
}

#[test]
fn samples_tell_the_truth_within_a_tick_of_each_change() {
    let day = scenes::generate(7, 2, 3);
    let mut changes = 0;
    for node in day.fleet.of_pool(SHARED) {
        for gpu in [0, 1, 4] {
            let unit = day.fleet.nodes[node].gpus[gpu].units[0];
            assert_eq!(day.fleet.units[unit].part, Part::Whole);
            let mut device = Watched::all_of(&day, node, gpu).remove(0);
            let mut tick_ms = day.span.from_ms + day.fleet.nodes[node].phase_ms;
            for piece in day.pieces(unit) {
                let mut wrong = 0;
                while tick_ms < piece.span.to_ms {
                    let class = class_of(&device.read(tick_ms, 1_000, Draw::new(tick_ms.unsigned_abs())));
                    let seen = if class == Class::Active { Class::UnallocatedBusy } else { Class::NoDemand };
                    wrong += usize::from(if piece.by.is_some() { class } else { seen } != piece.class);
                    tick_ms += 1_000;
                }
                assert!(wrong <= 1, "{wrong} ticks of {piece:?}");
                changes += 1;
            }
        }
    }
    assert!(changes > 30, "{changes}");
}

/// Tells a day into a log of its own; all records, by topic.
fn emitted(seed: u64, damage: Damage) -> (Emitted, Vec<(String, Vec<u8>)>) {
    let folder = tempfile::tempdir().unwrap();
    let log = EmbeddedLog::open(folder.path(), Default::default()).unwrap();
    let topics = ["jobs", "capacity", "nodes", "steps", "gpu-samples"];
    let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
    topics.iter().for_each(|topic| log.create_topic(topic, one).unwrap());
    let emitted = emit::emit(&scenes::generate(seed, 1, 3), damage, &log).unwrap();
    let mut records = Vec::new();
    for topic in topics {
        let at = TopicPartition { topic: topic.into(), partition: 0 };
        let mut next = log.extent(&at).unwrap().start;
        while let Some(read) = Some(log.read(&at, next, 8 << 20).unwrap()).filter(|read| !read.is_empty()) {
            next = read.last().unwrap().offset + 1;
            records.extend(read.iter().map(|record| (topic.to_owned(), record.record.payload.to_vec())));
        }
    }
    (emitted, records)
}

#[test]
fn the_same_seed_tells_the_same_bytes() {
    let damage = Damage { late_ppm: 50_000, duplicate_ppm: 50_000, missing_ppm: 50_000 };
    let (one, first) = emitted(1, damage);
    assert!(first == emitted(1, damage).1);
    let (other, second) = emitted(2, Damage::default());
    assert!(first != second && other.samples > one.samples);
    assert_eq!((other.late_batches, other.duplicate_batches, other.missing_batches), (0, 0, 0));
    assert!(
        [one.late_batches, one.duplicate_batches, one.missing_batches].iter().all(|n| (20..100).contains(n)),
        "{one:?}"
    );
    let batches = first.iter().filter(|(topic, _)| topic == "gpu-samples").count() as u64;
    assert_eq!(batches, one.batches + one.duplicate_batches);
    let hidden: i64 = one.unseen.iter().flatten().map(|span| span.length_ms()).sum();
    assert!(hidden > other.unseen.iter().flatten().map(|span| span.length_ms()).sum());
}

#[test]
fn work_without_steps_says_what_it_does_to_its_end() {
    for day in days() {
        for attempt in day.jobs.iter().flat_map(|job| &job.attempts) {
            if let Activity::Phases(phases) = &attempt.work {
                assert!(phases.is_sorted_by(|a, b| a.0 < b.0));
                assert_eq!(phases.last().map(|(to_ms, _)| *to_ms), Some(attempt.span.to_ms));
            }
        }
    }
}

#[test]
fn a_job_draws_the_energy_that_its_readings_say() {
    let day = scenes::generate(11, 1, 3);
    let node = day.fleet.of_pool(TRAIN)[0];
    let unit = day.fleet.nodes[node].gpus[0].units[0];
    let mut device = Watched::all_of(&day, node, 0).remove(0);
    let (mut read_mj, mut true_mj) = (0.0, 0.0);
    let mut tick_ms = day.span.from_ms + 1_000;
    for piece in day.pieces(unit) {
        let load = piece.by.map(|by| load_of_job(&day, by.job));
        let power_mw = load.map_or(0.0, |load| load.levels(piece.doing).power_mw);
        true_mj += power_mw * piece.span.length_ms() as f64 / 1e3;
        while tick_ms <= piece.span.to_ms {
            let reading = device.read(tick_ms, 1_000, Draw::new(1));
            if let (Value::Is(power_mw), Some(_)) = (reading.get(Metric::Power), piece.by) {
                read_mj += power_mw as f64;
            }
            tick_ms += 1_000;
        }
    }
    assert!(true_mj > 1e7 && ((read_mj - true_mj) / true_mj).abs() < 0.01, "{read_mj} {true_mj}");
}

#[test]
fn what_is_written_of_the_day_is_the_day() {
    let day = scenes::generate(12, 2, 4);
    let truth = Truth::new(&day, &vec![Vec::new(); day.fleet.nodes.len()]);
    let facts = serde_json::to_value(Facts::new(&day, &truth)).unwrap();
    let waits = facts["waits"].as_array().unwrap();
    let of = |constraint: &str| waits.iter().filter(|wait| wait["constraint"] == constraint).count();
    let rounds = of("gang");
    assert_eq!([of("quota"), of("shape"), of("capacity")], [rounds; 3]);
    assert!(rounds > 0 && waits.iter().all(|wait| wait["since_ms"].as_i64() < wait["until_ms"].as_i64()));
    let sum: f64 =
        facts["time"].as_array().unwrap().iter().map(|time| time["gpu_ms"].as_f64().unwrap()).sum();
    assert!((sum - day.paid() as f64 / WHOLE as f64).abs() < 1.0);
    let jobs = facts["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), day.jobs.len());
    assert!(jobs.iter().all(|job| job["energy_mj"].as_i64().unwrap() > 0));
}
