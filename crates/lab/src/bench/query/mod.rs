//! Queries on the tables of a fleet, compared with DuckDB and ClickHouse on the same samples.

mod answer;
mod peers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::engine::Limits;
use tidegate_lake::pipeline::Plan;
use tidegate_server::{QueryLimits, QueryService};

use super::backlog::children;
use super::codec::gpu::{DEVICES, METRICS};
use super::fleet::FIRST_TICK_MS;
use super::{Scratch, Stopwatch, window};
use answer::{Answer, export, rows};
use tidegate_workspace::{CommandError, LogArgs, block_on, folder_bytes, folder_url};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate bench query --json
  tidegate bench query --question Q5 --data /var/tmp/fleet
  tidegate bench query --nodes 125 --hours 6 --beside \"$(tests/peers/install.sh)\" --json

--beside is a Python with duckdb and chdb; tests/peers/install.sh makes one and prints its path. All
systems use the same number of threads. The bench fails unless all answers to a query are equal.
With --data the fleet's tables stay there and are asked again the next time.")]
pub struct QueryArgs {
    /// Seed of the generated input
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Nodes of 8 GPUs each; every GPU is sampled each second, 24 metrics
    #[arg(long, default_value_t = 125, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: u32,
    /// Observed time of the fleet
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=168))]
    hours: u32,
    /// Repetitions of each query after a first one that does not count; medians are reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Also query DuckDB and ClickHouse through this Python
    #[arg(long, value_name = "PYTHON")]
    beside: Option<PathBuf>,
    /// Only the questions whose name begins so, e.g. Q5
    #[arg(long, value_name = "NAME", default_value = "")]
    question: String,
    /// Keep the fleet's log and tables here, and use those that are there
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// What the bench reports.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    seed: u64,
    gpus: u32,
    hours: u32,
    samples: u64,
    threads: usize,
    /// CPU time from the log to the tables; `None` if they were there.
    pipelines_cpu_s: Option<f64>,
    table_bytes_per_sample: f64,
    peers: BTreeMap<String, peers::PeerReport>,
    questions: Vec<QuestionReport>,
}

/// One query and its cost.
#[derive(Debug, Serialize)]
struct QuestionReport {
    question: String,
    rows: usize,
    /// By system and form, e.g. `duckdb wide`.
    took: BTreeMap<String, Timing>,
    /// CPU seconds of `tidegate tables` relative to the fastest other system, on samples and on its
    /// own minutes.
    ratio_to_best_on_samples: Option<f64>,
    ratio_to_best_on_minutes: Option<f64>,
}

/// Medians.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Timing {
    cpu_s: f64,
    wall_s: f64,
}

/// A query in every system's own SQL, by form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Question {
    name: String,
    tables: String,
    raw: Option<String>,
    duckdb: BTreeMap<String, String>,
    clickhouse: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Questions {
    question: Vec<Question>,
}

/// The form that asks the others' table of samples.
const WIDE: &str = "wide";

pub fn run(args: &QueryArgs) -> Result<Report, CommandError> {
    if args.log.kafka().is_some() {
        return Err("the fleet goes to a log in a data folder; leave out --log".into());
    }
    let scratch = Scratch::new("query")?;
    let data = args.data.clone().unwrap_or_else(|| scratch.path().join("data"));
    let pipelines_cpu_s = match data.exists() {
        true => None,
        false => {
            window::fill_log(args.seed, args.nodes, args.hours * 60, &data, &args.log)?;
            Some(children::run_pipelines(1, &data, &args.log)?.cpu_s)
        }
    };
    let limits = QueryLimits::default();
    let service = QueryService::new(catalog(&data.join("lake"))?, limits)?;
    let samples = block_on(rows(&service, "SELECT count(*) FROM gpu_samples"))??;
    let samples = samples.first().and_then(|row| row[0].as_f64()).unwrap_or_default() as u64;
    let expected = u64::from(args.nodes) * DEVICES as u64 * u64::from(args.hours) * 3_600;
    if samples != expected {
        return Err(format!(
            "{} holds {samples} samples, not the {expected} of this fleet; remove it, or choose another --data",
            data.display()
        )
        .into());
    }
    let mut questions = questions(&service)?;
    questions.retain(|question| question.name.starts_with(&args.question));
    if questions.is_empty() {
        return Err(format!("no question begins with {:?}; they are Q1 to Q6", args.question).into());
    }
    let mut asked = Vec::new();
    for question in &questions {
        let mut answers = BTreeMap::new();
        answers.insert("tidegate tables".to_owned(), ask(&service, &question.tables, args.repeat)?);
        if let Some(sql) = &question.raw {
            answers.insert("tidegate raw".to_owned(), ask(&service, sql, args.repeat)?);
        }
        asked.push(answers);
    }
    let peers = match &args.beside {
        Some(python) => {
            let (samples, holds) =
                (scratch.path().join("samples.parquet"), scratch.path().join("holds.parquet"));
            block_on(async {
                export(&service, &samples_sql(), &samples).await?;
                export(&service, HOLDS, &holds).await
            })??;
            let given = peers::Request {
                samples,
                holds,
                folder: scratch.path().to_owned(),
                threads: limits.threads,
                repeat: args.repeat,
                questions: questions.clone(),
            };
            peers::ask(python, &given)?
        }
        None => BTreeMap::new(),
    };
    for (system, made) in &peers {
        for (question, answers) in questions.iter().zip(&mut asked) {
            for (form, answer) in made.answers.get(&question.name).into_iter().flatten() {
                answers.insert(format!("{system} {form}"), answer.clone());
            }
        }
    }
    Ok(Report {
        bench: "query",
        seed: args.seed,
        gpus: args.nodes * 8,
        hours: args.hours,
        samples,
        threads: limits.threads,
        pipelines_cpu_s,
        table_bytes_per_sample: folder_bytes(&data.join("lake/gpu_samples"))? as f64 / samples as f64,
        peers,
        questions: questions
            .iter()
            .zip(asked)
            .map(|(q, answers)| compared(q, answers))
            .collect::<Result<_, _>>()?,
    })
}

fn catalog(lake: &Path) -> Result<CatalogSource, CommandError> {
    block_on(async {
        let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await?;
        let catalog = committed_catalog(&folder_url(lake)?, &plan, Limits::default()).await?;
        Ok::<_, CommandError>(CatalogSource::fixed(catalog))
    })?
}

/// Device holds of jobs, for the others to join with samples.
const HOLDS: &str = "SELECT h.node, h.gpu_index, h.job_id, j.team, unix_ms(h.from_time) AS from_ms, unix_ms(h.to_time) AS to_ms \
    FROM gpu_holds h JOIN jobs j ON j.cluster = h.cluster AND j.job_id = h.job_id WHERE h.is_repeated = 0";

fn metrics() -> String {
    METRICS.map(|(name, _)| name).join(", ")
}

fn samples_sql() -> String {
    format!("SELECT unix_ms(event_time) AS ts, node, gpu_uuid, gpu_index, {} FROM gpu_samples", metrics())
}

/// The queries, about one GPU and half an hour of the fleet.
fn questions(service: &QueryService) -> Result<Vec<Question>, CommandError> {
    let one = "SELECT DISTINCT node, gpu_uuid FROM gpu_1m ORDER BY node DESC, gpu_uuid LIMIT 1";
    let found = block_on(rows(service, one))??;
    let text =
        |column: usize| found.first().and_then(|row| row[column].as_str()).unwrap_or_default().to_owned();
    let from_ms = FIRST_TICK_MS + 20 * 60_000;
    let to_ms = from_ms + 30 * 60_000;
    let time = |ms: i64| format!("to_timestamp_millis({ms})");
    let filled = include_str!("questions.toml")
        .replace("{node}", &text(0))
        .replace("{gpu}", &text(1))
        .replace("{from}", &time(from_ms))
        .replace("{to}", &time(to_ms))
        .replace("{from_ms}", &from_ms.to_string())
        .replace("{to_ms}", &to_ms.to_string())
        .replace("{metrics}", &metrics());
    Ok(toml::from_str::<Questions>(&filled)?.question)
}

/// Runs a query once, and then `repeat` times for the median cost.
fn ask(service: &QueryService, sql: &str, repeat: u32) -> Result<Answer, CommandError> {
    let rows = block_on(rows(service, sql))??;
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    for _ in 0..repeat {
        let watch = Stopwatch::start()?;
        block_on(answer::drain(service, sql))??;
        let (cpu_s, wall_s) = watch.read()?;
        cpu.push(cpu_s);
        wall.push(wall_s);
    }
    let median = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    };
    Ok(Answer { rows, took: Timing { cpu_s: median(cpu), wall_s: median(wall) } })
}

/// Checks that all answers are equal, and compares costs.
fn compared(question: &Question, answers: BTreeMap<String, Answer>) -> Result<QuestionReport, CommandError> {
    let ours = &answers["tidegate tables"];
    for (whose, answer) in &answers {
        if let Some(differs) = answer::difference(&ours.rows, &answer.rows) {
            return Err(format!(
                "{}: {whose} answers otherwise than tidegate's tables: {differs}",
                question.name
            )
            .into());
        }
    }
    let best = |minutes: bool| {
        let theirs = answers
            .iter()
            .filter(|(whose, _)| !whose.starts_with("tidegate") && minutes != whose.ends_with(WIDE));
        let best = theirs.map(|(_, answer)| answer.took.cpu_s).min_by(f64::total_cmp)?;
        Some(ours.took.cpu_s / best)
    };
    Ok(QuestionReport {
        question: question.name.clone(),
        rows: ours.rows.len(),
        ratio_to_best_on_samples: best(false),
        ratio_to_best_on_minutes: best(true),
        took: answers.into_iter().map(|(whose, answer)| (whose, answer.took)).collect(),
    })
}
