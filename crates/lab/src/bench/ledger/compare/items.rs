//! Compares tables beside the ledger with the truth, item by item.

mod devices;

use crate::bench::ledger::loads::load_of_piece;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tidegate_server::QueryService;

use super::Number;
use crate::bench::ledger::class::Class;
use crate::bench::ledger::day::{Attempt, Day, Incident, Job};
use crate::bench::ledger::facts::constraint;
use crate::bench::ledger::fleet::{BURST, GPUS_PER_NODE, Part, Span, TRAIN, Unit, WHOLE};
use crate::bench::ledger::training::STEPS_PER_EPOCH;
use crate::bench::ledger::truth::{Truth, joined, overlap_ms};
use tidegate_demo::levels::Levels;
use tidegate_workspace::{CommandError, ask};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 3_600_000;
/// Peak of the fleet's model at bf16, as in `gpu_peaks`, GFLOP/s.
const PEAK_GFLOPS: i64 = 989_400;
/// GPU-ms of one percentage point of a thousandth of a GPU in 365.25 days.
const POINT_MS: i64 = 315_576;

/// A number in a table, and the truth.
#[derive(Debug, Serialize)]
pub struct Fact {
    /// The item (question) it belongs to.
    pub item: &'static str,
    pub what: String,
    pub expected: i64,
    pub found: i64,
    /// Error relative to the truth, or to the whole it is a part of.
    pub error_ppm: f64,
    /// Tolerance if no data is missing.
    pub allowed_ppm: f64,
}

impl std::fmt::Display for Fact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { item, what, expected, found, error_ppm, allowed_ppm } = self;
        write!(f, "{item}: {what}: {found}, true is {expected}: off by {error_ppm:.0} ppm of {allowed_ppm}")
    }
}

impl Fact {
    pub fn is_off(&self) -> bool {
        self.error_ppm.abs() > self.allowed_ppm
    }
}

/// A query on the tables.
struct Question {
    item: &'static str,
    what: String,
    /// SQL after SELECT; yields one number.
    sql: String,
    expected: i64,
    /// Base of the relative error, and its tolerance.
    of: i64,
    allowed_ppm: f64,
}

fn exact(item: &'static str, what: impl Into<String>, sql: impl Into<String>, expected: i64) -> Question {
    Question { item, what: what.into(), sql: sql.into(), expected, of: expected, allowed_ppm: 0.0 }
}

impl Question {
    fn within(self, allowed_ppm: f64) -> Self {
        Self { allowed_ppm, ..self }
    }

    fn part_of(self, of: i64) -> Self {
        Self { of, ..self }
    }
}

/// Runs every query. `unseen`: periods of each node without samples.
pub async fn facts(
    service: &QueryService,
    day: &Day,
    truth: &Truth,
    unseen: &[Vec<Span>],
) -> Result<Vec<Fact>, CommandError> {
    let mut questions = activity(day, unseen);
    questions.extend(operations(day));
    questions.extend(goodput(day, truth));
    questions.extend(waits(day));
    questions.extend(costs(day));
    questions.extend(devices::walls(day));
    questions.extend(devices::sharing(day));
    questions.extend(devices::placement(day));
    questions.extend(devices::energy(day, unseen));
    let mut facts = Vec::new();
    for Question { item, what, sql, expected, of, allowed_ppm } in questions {
        let sql = sql.replacen(" FROM ", " AS BIGINT) AS n FROM ", 1);
        let numbers: Vec<Number> = ask(service, &format!("SELECT CAST({sql}")).await?;
        let found = numbers.first().and_then(|number| number.n).unwrap_or(0);
        let error_ppm = (found - expected) as f64 / of.max(1) as f64 * 1e6;
        facts.push(Fact { item, what, expected, found, error_ppm, allowed_ppm });
    }
    facts.push(devices::memory(service, day).await?);
    Ok(facts)
}

/// Jobs as a list in SQL.
fn list<'a>(jobs: impl IntoIterator<Item = &'a Job>) -> String {
    let quoted: Vec<String> = jobs.into_iter().map(|job| format!("'{}'", job.id)).collect();
    if quoted.is_empty() { "(NULL)".into() } else { format!("({})", quoted.join(", ")) }
}

fn is_whole(day: &Day, attempt: &Attempt) -> bool {
    attempt.units.iter().all(|unit| day.fleet.units[*unit].part == Part::Whole)
}

fn trains(job: &Job) -> bool {
    job.attempts.iter().any(|attempt| attempt.training().is_some())
}

/// Unobserved periods of each unit: silent agent, or lost device.
fn unseen_of(day: &Day, unseen: &[Vec<Span>]) -> Vec<Vec<Span>> {
    let of_unit = |unit: &Unit| {
        let lost =
            day.conditions.iter().filter(|c| c.what == Incident::Lost(unit.node, unit.gpu)).map(|c| c.span);
        joined(unseen[unit.node].iter().copied().chain(lost).collect())
    };
    day.fleet.units.iter().map(of_unit).collect()
}

/// Item 1: activity as integrals over GPU time.
fn activity(day: &Day, unseen: &[Vec<Span>]) -> Vec<Question> {
    let mut sums = Levels::default();
    for (place, (unit, unseen)) in day.fleet.units.iter().zip(unseen_of(day, unseen)).enumerate() {
        let share = unit.weight() as f64 / WHOLE as f64;
        for piece in day.pieces(place) {
            let seen_ms = piece.span.length_ms() - overlap_ms(&unseen, piece.span);
            let levels = load_of_piece(day, place, &piece).levels(piece.doing);
            sums.add(levels, share * seen_ms as f64 / 1e3);
        }
    }
    let columns = [
        ("sm_active_us", sums.sm_active),
        ("sm_occupancy_us", sums.sm_occupancy),
        ("tensor_active_us", sums.tensor_active),
        ("dram_active_us", sums.dram_active),
    ];
    let question = |(column, us): (&str, f64)| {
        let sql = format!("sum({column}) FROM gpu_1m WHERE mig_uuid IS NULL");
        exact("activity", column, sql, us as i64).within(1_000.0)
    };
    columns.into_iter().map(question).collect()
}

/// Item 1: reported operations, peak in that time, and impossible reports.
fn operations(day: &Day) -> Vec<Question> {
    let (mut gflops, mut gpu_us, mut boasters) = (0, 0, BTreeSet::new());
    for (place, job) in day.jobs.iter().enumerate() {
        for training in job.attempts.iter().filter_map(Attempt::training) {
            let ranks = i64::from(training.ranks);
            let per_step = (training.tokens().1 / 1_000_000_000).cast_signed();
            gflops += per_step * training.steps.len() as i64 * ranks;
            gpu_us += training.steps.iter().map(|step| step.duration_ms() * 1_000).sum::<i64>() * ranks;
            if training.habits.boast > 1 && !training.steps.is_empty() {
                boasters.insert(place);
            }
        }
    }
    let peak = i128::from(gpu_us) * i128::from(PEAK_GFLOPS) / 1_000_000;
    let number = boasters.len() as i64;
    let boasters = list(boasters.into_iter().map(|place| &day.jobs[place]));
    let impossible = "count(DISTINCT job_id) FROM mfu_jobs WHERE is_impossible = 1";
    vec![
        // Operations of a step cut by a minute are rounded down.
        exact("mfu", "operations, thousands of millions", "sum(counted_gflops) FROM mfu_jobs", gflops)
            .within(1.0),
        exact("mfu", "time in steps, us", "sum(gpu_us) FROM mfu_jobs WHERE reason IS NULL", gpu_us),
        exact("mfu", "operations at the peak", "sum(peak_gflops) FROM mfu_jobs", peak as i64).within(10.0),
        exact("mfu", "jobs that tell of more than can be", impossible, number),
        exact("mfu", "of them those that do", format!("{impossible} AND job_id IN {boasters}"), number),
    ]
}

/// Item 2: parts of the held time of training on whole GPUs, and ETTR.
fn goodput(day: &Day, truth: &Truth) -> Vec<Question> {
    let jobs: Vec<&Job> =
        day.jobs.iter().filter(|job| trains(job) && job.attempts.iter().all(|a| is_whole(day, a))).collect();
    let ids: BTreeSet<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
    let by_class = truth.by(|cell| cell.job.as_deref().filter(|job| ids.contains(job)).map(|_| cell.class));
    let of = |classes: &[Class]| {
        classes.iter().filter_map(|class| by_class.get(class)).sum::<f64>().round() as i64
    };
    let held_ms = by_class.values().sum::<f64>().round() as i64;
    let queued_ms: i64 = jobs.iter().map(|job| waited_gpu_ms(job)).sum();
    let from = format!("FROM goodput WHERE job_id IN {}", list(jobs.iter().copied()));
    let parts = [
        ("productive_gpu_ms", of(&[Class::Productive])),
        ("startup_gpu_ms", of(&[Class::Startup])),
        ("recovery_gpu_ms", of(&[Class::Recovery])),
        ("restore_gpu_ms", of(&[Class::Restore])),
        ("redone_gpu_ms", of(&[Class::Redone])),
        ("checkpoint_gpu_ms", of(&[Class::Checkpoint])),
        ("data_stall_gpu_ms", of(&[Class::DataStall])),
        ("communication_stall_gpu_ms", of(&[Class::CommunicationStall])),
        ("other_gpu_ms", of(&[Class::Active, Class::IdleHeld, Class::EmptyHeld, Class::Unknown])),
        ("ettr_numerator_gpu_ms", of(&[Class::Productive, Class::DataStall, Class::CommunicationStall])),
    ];
    let question = |(column, expected): (&str, i64)| {
        exact("goodput", column, format!("sum({column}) {from}"), expected).part_of(held_ms).within(100.0)
    };
    let denominator = format!("sum(ettr_denominator_gpu_ms) {from}");
    let ettr = exact("goodput", "ettr_denominator_gpu_ms", denominator, held_ms + queued_ms);
    parts.into_iter().map(question).chain([ettr]).collect()
}

fn waited_gpu_ms(job: &Job) -> i64 {
    let until_ms = job.attempts.first().map_or(job.submit_ms, |attempt| attempt.span.from_ms);
    (until_ms - job.submit_ms) * job.asked_milli.unwrap_or(0).cast_signed() / 1_000
}

/// Item 4: waited GPU time by constraint.
fn waits(day: &Day) -> Vec<Question> {
    // Until the scheduler is polled after two seconds, only the quota is known.
    let names = [
        ("quota", "'team_limit', 'quota'"),
        ("shape", "'fragmented'"),
        ("gang", "'gang'"),
        ("capacity", "'capacity_taken'"),
    ];
    let mut by_constraint: BTreeMap<&str, Vec<&Job>> = BTreeMap::new();
    for job in &day.jobs {
        if let Some(constraint) = constraint(day, job) {
            by_constraint.entry(constraint).or_default().push(job);
        }
    }
    let question = |(constraint, constraints): (&str, &str)| {
        let jobs = by_constraint.get(constraint).map_or(&[][..], Vec::as_slice);
        let expected = jobs.iter().map(|job| waited_gpu_ms(job)).sum();
        let sql = format!(
            "sum(gpu_ms_waited) FROM pending WHERE constraint IN ({constraints}) AND job_id IN {}",
            list(jobs.iter().copied())
        );
        exact("pending", format!("GPU-ms waited for {constraint}"), sql, expected)
    };
    let all: i64 = day.jobs.iter().map(waited_gpu_ms).sum();
    let whole = exact("pending", "GPU-ms waited in all", "sum(gpu_ms_waited) FROM pending", all);
    names.into_iter().map(question).chain([whole]).collect()
}

/// Cost of a GPU in a period: millionths × 3,600,000.
fn price(day: &Day, pool: &str, span: Span) -> i64 {
    let mut sum = 0;
    let prices: Vec<_> = day.prices.iter().filter(|price| price.pool == pool).collect();
    for (place, price) in prices.iter().enumerate() {
        let until_ms = prices.get(place + 1).map_or(i64::MAX, |next| next.from_ms);
        let ms = span.to_ms.min(until_ms) - span.from_ms.max(price.from_ms);
        sum += ms.max(0) * price.micros;
    }
    sum
}

/// Item 5: cost of all time, of jobs, and of a point of idleness.
fn costs(day: &Day) -> Vec<Question> {
    let burst = day.fleet.nodes[day.fleet.of_pool(BURST)[0]].registered;
    let missing = Span { from_ms: day.reserved.from_ms, to_ms: burst.from_ms };
    let nodes = day.fleet.nodes.iter().map(|node| price(day, node.pool, node.registered));
    let paid = (nodes.sum::<i64>() + price(day, BURST, missing)) * GPUS_PER_NODE as i64 / HOUR_MS;
    let of_job = |job: &Job| {
        let asked = i128::from(job.asked_milli.unwrap_or(0));
        job.attempts.iter().map(|a| i128::from(price(day, job.pool, a.span)) * asked).sum::<i128>()
    };
    let jobs = (day.jobs.iter().map(of_job).sum::<i128>() / i128::from(HOUR_MS * 1_000)) as i64;
    let last = day.prices.iter().rev().find(|price| price.pool == TRAIN).map_or(0, |price| price.micros);
    let (mut tokens, mut epochs) = (0, 0);
    for job in &day.jobs {
        let steps = job.attempts.iter().filter_map(Attempt::training).flat_map(|training| &training.steps);
        let Some(last) = steps.map(|step| step.number).max() else { continue };
        let Some(training) = job.attempts.first().and_then(Attempt::training) else { continue };
        tokens += (last + 1) * u64::from(training.ranks) * training.tokens().0;
        epochs += last / STEPS_PER_EPOCH;
    }
    let gpus = (day.fleet.of_pool(TRAIN).len() * GPUS_PER_NODE) as i64;
    let point = i128::from(gpus * 1_000 * POINT_MS) * i128::from(last) / i128::from(HOUR_MS);
    let idle = format!("max(point_cost_micros) FROM idle_costs WHERE pool = '{TRAIN}' AND to_time IS NULL");
    vec![
        // Each row is rounded to a millionth of the currency.
        exact("cost", "of all that was paid for", "sum(cost_micros) FROM ledger_1m", paid).within(10.0),
        exact("cost", "of jobs, by the scheduler's count", "sum(cost_micros) FROM job_costs", jobs)
            .within(1.0),
        exact("cost", "tokens by which jobs came on", "sum(tokens) FROM token_costs", tokens.cast_signed()),
        exact("cost", "epochs by which they did", "sum(epochs) FROM token_costs", epochs.cast_signed()),
        exact("cost", "of a point of idleness in the pool for training", idle, point as i64).within(1.0),
    ]
}
