//! `tidegate explain`: why a job waits, where its GPU time went and what would help; why the
//! autopilot decided something, and with what result.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use tidegate_server::{QueryLimits, QueryService};

use super::{CommandError, CommandResult, Committed, DataArgs, ask, block_on, query_memory, quoted};

mod decision;
mod format;
mod gpu_time;
mod gpu_time_text;
mod job_text;
mod recommendation;
mod summary;

use gpu_time::GpuTime;

/// Explain a job or a decision in words
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate explain job 4711 --cluster prod
  tidegate explain decision lend-1b491e8c244329c8")]
pub struct ExplainArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Job(JobArgs),
    Decision(decision::DecisionArgs),
}

/// Explain why a job waits, where its GPU time went, and what would help most
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate explain job 4711
  tidegate explain job 4711_3 --cluster prod --json

The explanation reads committed tables: jobs, attempts and pending; for a job that held GPUs also
ledger_1m, job_costs, goodput, goodput_attempts, mfu_jobs, bottleneck_1m, gang_spread, job_energy,
stragglers and memory_growth. Three sentences come first, then their evidence.")]
struct JobArgs {
    /// Job id, as the scheduler names it
    job: String,
    /// Cluster of the job; required if several clusters have a job with this id
    #[arg(long)]
    cluster: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArgs,
    /// Memory of a query, e.g. 512M or 8G: a job of days reads its minutes on every GPU
    #[arg(long, value_name = "BYTES", default_value = MEMORY, value_parser = query_memory)]
    memory: usize,
}

const MEMORY: &str = "4G";

/// Explanation of a job. Times are UTC.
#[derive(Debug, Serialize)]
struct Explanation {
    #[serde(flatten)]
    job: Job,
    /// waiting, running or ended.
    state: &'static str,
    since: Option<String>,
    attempts: Vec<Attempt>,
    /// Periods of waiting, each with one constraint; the last one is open while it waits.
    waits: Vec<Wait>,
    /// Where its GPU time went; `None` if it held none.
    held: Option<GpuTime>,
    /// What would help most, in a sentence.
    helps: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    cluster: String,
    job_id: String,
    team: Option<String>,
    user_name: Option<String>,
    pool: Option<String>,
    qos: Option<String>,
    job_name: Option<String>,
    gpus_milli: Option<i64>,
    submit_time: Option<String>,
    start_time: Option<String>,
    end_time: Option<String>,
    final_state: Option<String>,
    gpu_ms_held: i64,
    gpu_ms_queued: i64,
    gpu_ms_lost: i64,
    as_of: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Attempt {
    attempt: Option<i64>,
    gpus_milli: Option<i64>,
    nodes: Option<String>,
    node_count: Option<i64>,
    from_time: Option<String>,
    to_time: Option<String>,
    final_state: Option<String>,
    exit_code: Option<i64>,
    is_lost: i64,
    held_ms: Option<i64>,
    gpu_ms_held: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Wait {
    since: String,
    until: Option<String>,
    as_of: Option<String>,
    waited_ms: i64,
    gpu_ms_waited: Option<i64>,
    layer: Option<i64>,
    constraint: Option<String>,
    reason: Option<String>,
    evidence: String,
    starts_when: Option<String>,
}

pub fn run(args: ExplainArgs) -> CommandResult {
    match args.command {
        Command::Job(args) => job(&args),
        Command::Decision(args) => decision::run(&args),
    }
}

/// A job as `tidegate explain job --json` explains it.
pub async fn job_as_json(data: &DataArgs, job: &str, cluster: Option<&str>) -> Result<String, CommandError> {
    let (job, cluster) = (job.to_owned(), cluster.map(str::to_owned));
    let memory = query_memory(MEMORY)?;
    let args = JobArgs { job, cluster, json: true, data: data.clone(), memory };
    Ok(serde_json::to_string(&explain(&args).await?)?)
}

/// A decision as `tidegate explain decision --json` explains it.
pub async fn decision_as_json(data: &DataArgs, action: &str) -> Result<String, CommandError> {
    decision::as_json(data, action).await
}

fn job(args: &JobArgs) -> CommandResult {
    let explanation = block_on(explain(args))??;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&explanation)?);
    } else {
        job_text::print(&explanation);
    }
    Ok(ExitCode::SUCCESS)
}

async fn explain(args: &JobArgs) -> Result<Explanation, CommandError> {
    let limits = QueryLimits { memory_bytes: args.memory, ..QueryLimits::default() };
    let tables = Committed::open(&args.data, limits).await?;
    let service = tables.service().clone();
    let job = find(&service, args).await?;
    let of_job = format!("cluster = {} AND job_id = {}", quoted(&job.cluster), quoted(&job.job_id));
    let attempts: Vec<Attempt> = ask(
        &service,
        &format!(
            "SELECT attempt, gpus_milli, nodes, node_count, from_time, to_time, final_state, exit_code, is_lost, gpu_ms_held, \
             ms_between(from_time, coalesce(to_time, as_of)) AS held_ms \
             FROM attempts WHERE {of_job} AND from_time IS NOT NULL ORDER BY from_time"
        ),
    )
    .await?;
    let waits: Vec<Wait> = ask(
        &service,
        &format!(
            "SELECT since, until, as_of, ms_between(since, coalesce(until, as_of)) AS waited_ms, gpu_ms_waited, layer, \
             constraint, reason, evidence, starts_when FROM pending WHERE {of_job} ORDER BY since"
        ),
    )
    .await?;
    let running = attempts.iter().find(|attempt| attempt.to_time.is_none());
    let (state, since) = match running {
        _ if job.end_time.is_some() => ("ended", job.end_time.clone()),
        Some(attempt) => ("running", attempt.from_time.clone()),
        None => ("waiting", waits.last().filter(|wait| wait.until.is_none()).map(|wait| wait.since.clone())),
    };
    let held = match attempts.is_empty() {
        true => None,
        false => Some(GpuTime::query(&service, &of_job).await?),
    };
    let mut explanation = Explanation { state, since, attempts, waits, held, job, helps: String::new() };
    explanation.helps = recommendation::best(&explanation);
    Ok(explanation)
}

/// Finds the job.
async fn find(service: &QueryService, args: &JobArgs) -> Result<Job, CommandError> {
    let name = quoted(&args.job);
    let in_cluster =
        args.cluster.as_ref().map_or_else(String::new, |c| format!(" AND cluster = {}", quoted(c)));
    let mut found: Vec<Job> = ask(
        service,
        &format!(
            "SELECT cluster, job_id, team, user_name, pool, qos, job_name, gpus_milli, submit_time, start_time, end_time, \
             final_state, gpu_ms_held, gpu_ms_queued, gpu_ms_lost, as_of \
             FROM jobs WHERE job_id = {name}{in_cluster} ORDER BY cluster"
        ),
    )
    .await?;
    match (found.pop(), found.as_slice()) {
        (Some(job), []) => Ok(job),
        (Some(last), others) => {
            let clusters: Vec<&str> = others.iter().chain([&last]).map(|job| job.cluster.as_str()).collect();
            let clusters = clusters.join(", ");
            Err(format!("job {} is in several clusters: {clusters}; say which with --cluster", args.job)
                .into())
        }
        (None, _) => Err(unknown(service, args).await?),
    }
}

/// Error for an unknown job, with similar ids.
async fn unknown(service: &QueryService, args: &JobArgs) -> Result<CommandError, CommandError> {
    #[derive(Deserialize)]
    struct Near {
        cluster: String,
        job_id: String,
    }
    let name = quoted(&args.job);
    // Tasks of an array first, then ids that differ by a character or two.
    let near: Vec<Near> = ask(
        service,
        &format!(
            "SELECT cluster, job_id FROM jobs \
             WHERE job_id = {name} OR starts_with(job_id, {name} || '_') OR levenshtein(job_id, {name}) <= 2 \
             ORDER BY job_id <> {name}, NOT starts_with(job_id, {name} || '_'), levenshtein(job_id, {name}), job_id, cluster LIMIT 5"
        ),
    )
    .await?;
    let place = args.cluster.as_ref().map_or_else(String::new, |c| format!(" in cluster {c}"));
    let near: Vec<String> =
        near.iter().map(|near| format!("{} (cluster {})", near.job_id, near.cluster)).collect();
    let hint = if near.is_empty() {
        "see: tidegate sql \"SELECT cluster, job_id FROM jobs LIMIT 20\"".to_owned()
    } else {
        format!("named alike: {}", near.join(", "))
    };
    Ok(format!("there is no job {}{place}; {hint}", args.job).into())
}
