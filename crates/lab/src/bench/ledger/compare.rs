//! Compares the tables with the truth.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_server::QueryService;

use super::class::Class;
use super::day::Day;
use super::emit::Emitted;
use super::fleet::{BURST, GPUS_PER_NODE, Part, Span, WHOLE};
use super::truth::{Cell, Truth};
pub use items::{Fact, facts};
use tidegate_workspace::{CommandError, ask};

mod items;
#[cfg(test)]
mod tests;

/// The ledger table, if it exists.
const LEDGER: &str = "ledger_1m";
const MINUTE_MS: i64 = 60_000;
/// Maximum number of mismatches shown.
const SHOWN: usize = 20;

/// A count in a table, and the expected one.
#[derive(Debug, Serialize)]
pub struct Check {
    pub what: &'static str,
    pub expected: i64,
    pub found: i64,
}

/// The ledger compared with the truth.
#[derive(Debug, Serialize)]
pub struct Compared {
    pub classes: Vec<OfClass>,
    /// Error over all classes, ppm of paid time; `None` without a ledger.
    pub largest_error_ppm: Option<f64>,
    /// Largest errors of a class, by job, pool and team.
    pub largest_of_jobs: Vec<Error>,
    pub largest_of_pool: Option<Error>,
    pub largest_of_team: Option<Error>,
    /// Whether every minute of every node sums exactly to its provisioned time.
    pub closed: Option<bool>,
    pub windows: Option<u64>,
    pub windows_off: Option<u64>,
    pub examples_off: Vec<Window>,
}

#[derive(Debug, Serialize)]
pub struct OfClass {
    pub class: String,
    pub truth_ms: i64,
    pub ledger_ms: Option<i64>,
    pub error_ppm: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct Error {
    pub of: String,
    pub class: String,
    pub truth_ms: i64,
    pub ledger_ms: i64,
    pub error_ppm: f64,
}

/// A minute that does not sum to its provisioned time; without a node: of the reservation.
#[derive(Debug, Serialize)]
pub struct Window {
    pub start_ms: i64,
    pub node: Option<String>,
    pub provisioned_ms: i64,
    pub ledger_ms: i64,
}

#[derive(Debug, Deserialize)]
struct Row {
    class: String,
    pool: Option<String>,
    team: Option<String>,
    job_id: Option<String>,
    gpu_ms: i64,
}

#[derive(Debug, Deserialize)]
struct Sum {
    start_ms: i64,
    node: Option<String>,
    gpu_ms: i64,
}

#[derive(Debug, Deserialize)]
struct Number {
    n: Option<i64>,
}

/// Checks counts in tables other than the ledger against what was emitted.
pub async fn check(service: &QueryService, day: &Day, emitted: &Emitted) -> Result<Vec<Check>, CommandError> {
    let steps = &emitted.steps;
    let by_node = "sum(ms_between(from_time, to_time)) FROM gpu_holds WHERE is_repeated = 0";
    let asked = [
        (
            "usage_1h: GPU-ms held, as the scheduler counts",
            "sum(gpu_ms_held) FROM usage_1h".to_owned(),
            held_by_scheduler(day),
        ),
        (
            "gpu_holds: ms of whole GPUs",
            format!("{by_node} AND mig_uuid IS NULL AND share_milli IS NULL"),
            held_ms(day, |part| *part == Part::Whole),
        ),
        (
            "gpu_holds: ms of slices",
            format!("{by_node} AND mig_uuid IS NOT NULL"),
            held_ms(day, |part| matches!(part, Part::Slice { .. })),
        ),
        (
            "gpu_holds: ms of halves",
            format!("{by_node} AND share_milli = 500"),
            held_ms(day, |part| *part == Part::Half),
        ),
        ("gpu_samples: samples", "count(*) FROM gpu_samples".to_owned(), emitted.samples.cast_signed()),
        ("gpu_1m: samples", "sum(samples) FROM gpu_1m".to_owned(), emitted.samples.cast_signed()),
        ("gpu_1m: us_sampled", "sum(us_sampled) FROM gpu_1m".to_owned(), emitted.us_sampled),
        ("training_1m: reports", "sum(reports) FROM training_1m".to_owned(), steps.reports),
        ("training_1m: duration_us", "sum(duration_us) FROM training_1m".to_owned(), steps.duration_us),
        ("training_1m: compute_us", "sum(compute_us) FROM training_1m".to_owned(), steps.compute_us),
        (
            "training_1m: communication_us",
            "sum(communication_us) FROM training_1m".to_owned(),
            steps.communication_us,
        ),
        ("training_1m: data_wait_us", "sum(data_wait_us) FROM training_1m".to_owned(), steps.data_wait_us),
        ("training_1m: checkpoint_us", "sum(checkpoint_us) FROM training_1m".to_owned(), steps.checkpoint_us),
        ("training_1m: tokens", "sum(tokens) FROM training_1m".to_owned(), steps.tokens),
        ("jobs", "count(*) FROM jobs".to_owned(), day.jobs.len() as i64),
        ("dead_letters", "count(*) FROM dead_letters".to_owned(), 0),
    ];
    let mut checks = Vec::new();
    for (what, sql, expected) in asked {
        let (select, from) = sql.split_once(" FROM ").unwrap_or((&sql, ""));
        let numbers: Vec<Number> =
            ask(service, &format!("SELECT CAST({select} AS BIGINT) AS n FROM {from}")).await?;
        let found = numbers.first().and_then(|number| number.n).unwrap_or(0);
        checks.push(Check { what, expected, found });
    }
    Ok(checks)
}

/// GPU-ms as Slurm counts them: a slice counts as a GPU, a time share as none.
fn held_by_scheduler(day: &Day) -> i64 {
    let of_job = |job: &super::day::Job| {
        let gpus = job.asked_milli.unwrap_or(0).cast_signed() / 1_000;
        job.attempts.iter().map(|attempt| attempt.span.length_ms() * gpus).sum::<i64>()
    };
    day.jobs.iter().map(of_job).sum()
}

/// Held time of units of a kind, ms.
fn held_ms(day: &Day, is_meant: impl Fn(&Part) -> bool) -> i64 {
    let attempts = day.jobs.iter().flat_map(|job| &job.attempts);
    let of_attempt = |attempt: &super::day::Attempt| {
        let units = attempt.units.iter().filter(|unit| is_meant(&day.fleet.units[**unit].part)).count();
        attempt.span.length_ms() * units as i64
    };
    attempts.map(of_attempt).sum()
}

/// Compares the ledger with the truth; without a ledger returns the truth.
pub async fn compare(service: &QueryService, day: &Day, truth: &Truth) -> Result<Compared, CommandError> {
    let by_class = truth.by(|cell| Some(cell.class));
    let mut compared = Compared {
        classes: Class::ALL
            .iter()
            .map(|class| OfClass {
                class: class.name().into(),
                truth_ms: by_class.get(class).map_or(0, |ms| ms.round() as i64),
                ledger_ms: None,
                error_ppm: None,
            })
            .collect(),
        largest_error_ppm: None,
        largest_of_jobs: Vec::new(),
        largest_of_pool: None,
        largest_of_team: None,
        closed: None,
        windows: None,
        windows_off: None,
        examples_off: Vec::new(),
    };
    if !service.catalog().tables.contains_key(LEDGER) {
        return Ok(compared);
    }
    let sql = format!(
        "SELECT class, pool, team, job_id, CAST(sum(gpu_ms) AS BIGINT) AS gpu_ms FROM {LEDGER} GROUP BY class, pool, team, job_id"
    );
    let rows: Vec<Row> = ask(service, &sql).await?;
    let paid_ms = day.paid() as f64 / WHOLE as f64;
    let errors = |truth_of: &dyn Fn(&Cell) -> Option<String>, row_of: &dyn Fn(&Row) -> Option<String>| {
        errors(truth, &rows, paid_ms, truth_of, row_of)
    };
    let of_classes = errors(&|_| Some(String::new()), &|_| Some(String::new()));
    let known: BTreeSet<&str> = Class::ALL.iter().map(|class| class.name()).collect();
    compared.classes.retain(|of| !of_classes.iter().any(|e| e.class == of.class));
    for of in &mut compared.classes {
        (of.ledger_ms, of.error_ppm) = (Some(0), Some(0.0));
    }
    compared.classes.extend(of_classes.iter().map(|e| OfClass {
        class: if known.contains(e.class.as_str()) {
            e.class.clone()
        } else {
            format!("{} (no class)", e.class)
        },
        truth_ms: e.truth_ms,
        ledger_ms: Some(e.ledger_ms),
        error_ppm: Some(e.error_ppm),
    }));
    let place = |name: &str| Class::ALL.iter().position(|class| class.name() == name).unwrap_or(usize::MAX);
    compared.classes.sort_by_key(|of| place(&of.class));
    compared.largest_error_ppm = largest(of_classes).map(|error| error.error_ppm.abs());
    compared.largest_of_jobs = errors(&|cell| cell.job.clone(), &|row| row.job_id.clone());
    compared.largest_of_jobs.sort_by(|a, b| b.error_ppm.abs().total_cmp(&a.error_ppm.abs()));
    compared.largest_of_jobs.truncate(SHOWN);
    compared.largest_of_pool = largest(errors(&|cell| Some(cell.pool.into()), &|row| row.pool.clone()));
    // The ledger may assign free time to a team by quota; the truth has only holders.
    compared.largest_of_team =
        largest(errors(&|cell| cell.team.filter(|_| cell.job.is_some()).map(str::to_owned), &|row| {
            row.team.clone().filter(|_| row.job_id.is_some())
        }));
    close(service, day, &mut compared).await?;
    Ok(compared)
}

fn largest(errors: Vec<Error>) -> Option<Error> {
    errors.into_iter().max_by(|a, b| a.error_ppm.abs().total_cmp(&b.error_ppm.abs()))
}

/// By name and class: difference between ledger and truth.
fn errors(
    truth: &Truth,
    rows: &[Row],
    paid_ms: f64,
    truth_of: &dyn Fn(&Cell) -> Option<String>,
    row_of: &dyn Fn(&Row) -> Option<String>,
) -> Vec<Error> {
    let true_ms = truth.by(|cell| Some((truth_of(cell)?, cell.class.name().to_owned())));
    let mut ledger: BTreeMap<(String, String), i64> = BTreeMap::new();
    for row in rows {
        if let Some(of) = row_of(row) {
            *ledger.entry((of, row.class.clone())).or_default() += row.gpu_ms;
        }
    }
    let keys: BTreeSet<&(String, String)> = true_ms.keys().chain(ledger.keys()).collect();
    let error = |key: &(String, String)| {
        let (truth_ms, ledger_ms) =
            (true_ms.get(key).copied().unwrap_or(0.0), ledger.get(key).copied().unwrap_or(0));
        Error {
            of: key.0.clone(),
            class: key.1.clone(),
            truth_ms: truth_ms.round() as i64,
            ledger_ms,
            error_ppm: (ledger_ms as f64 - truth_ms) / paid_ms * 1e6,
        }
    };
    keys.into_iter().map(error).collect()
}

/// Checks that every minute of a node sums to its GPUs × ms, and the reservation to its remainder.
async fn close(service: &QueryService, day: &Day, compared: &mut Compared) -> Result<(), CommandError> {
    let sql = format!(
        "SELECT CAST(date_part('epoch', window_start) * 1000 AS BIGINT) AS start_ms, node, CAST(sum(gpu_ms) AS BIGINT) AS gpu_ms \
         FROM {LEDGER} GROUP BY window_start, node"
    );
    let sums: Vec<Sum> = ask(service, &sql).await?;
    let found: BTreeMap<_, _> = sums.into_iter().map(|sum| ((sum.start_ms, sum.node), sum.gpu_ms)).collect();
    let mut expected = BTreeMap::new();
    let burst = day.fleet.nodes[day.fleet.of_pool(BURST)[0]].registered;
    let missing = Span { from_ms: day.reserved.from_ms, to_ms: burst.from_ms };
    let nodes = day.fleet.nodes.iter().map(|node| (Some(node.name.clone()), node.registered));
    for (node, span) in nodes.chain([(None, missing)]) {
        for start_ms in
            (span.from_ms.div_euclid(MINUTE_MS) * MINUTE_MS..span.to_ms).step_by(MINUTE_MS as usize)
        {
            let ms = span.to_ms.min(start_ms + MINUTE_MS) - span.from_ms.max(start_ms);
            expected.insert((start_ms, node.clone()), ms * GPUS_PER_NODE as i64);
        }
    }
    let windows: BTreeSet<_> = expected.keys().chain(found.keys()).cloned().collect();
    compared.windows = Some(windows.len() as u64);
    let mut off = 0;
    for key in windows {
        let of = |sums: &BTreeMap<_, i64>| sums.get(&key).copied().unwrap_or(0);
        let (provisioned_ms, ledger_ms) = (of(&expected), of(&found));
        if provisioned_ms != ledger_ms {
            off += 1;
            if compared.examples_off.len() < SHOWN {
                let (start_ms, node) = key;
                compared.examples_off.push(Window { start_ms, node, provisioned_ms, ledger_ms });
            }
        }
    }
    (compared.windows_off, compared.closed) = (Some(off), Some(off == 0));
    Ok(())
}
