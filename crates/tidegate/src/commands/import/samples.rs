//! `tidegate import samples`: samples of GPUs from files and from Prometheus.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::{DateTime, NaiveDate, Utc};
use clap::{Args, ValueEnum};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use tidegate_import::{
    Credentials, FileFormat, ImportOptions, Kind, Mapping, PrometheusOptions, PrometheusProgress,
    PrometheusSummary, import_prometheus,
};
use tidegate_lake::pipeline::Plan;

use super::super::sql::duration;
use super::super::{CommandError, CommandResult, Workspace, block_on};
use super::write::WriteArgs;
use super::{import_file, report_end, time, zone};

/// Samples that the server may still lack, before now.
const NOT_YET_COMPLETE: Duration = Duration::from_secs(300);
/// Longest file with a token or password, bytes.
const SECRET_BYTES: u64 = 16 << 10;
/// The mapping of what a dcgm-exporter names.
const DCGM_MAPPING: &str = "dcgm_long";
const HOUR_MS: u64 = 3_600_000;

/// Import samples of GPUs: a file by a mapping, or from Prometheus or VictoriaMetrics
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate import samples --prometheus http://prometheus:9090 --from 2026-10-01 --cluster prod
  tidegate import samples --prometheus http://vmselect:8481/select/0/prometheus --cluster prod \\
      --from 2026-10-01 --to 2026-11-01T12:00:00Z --step 30s --matcher '{job=\"dcgm-exporter\"}'
  tidegate import samples --prometheus http://prometheus:9090 --remote-read --from 2026-10-01 --cluster prod
  tidegate import samples dcgm.csv.gz --map dcgm_long --cluster prod
  tidegate import samples gpus.parquet --map gpu_samples_csv --cluster prod
  tidegate import samples pages.txt --format dcgm-text --step 30s --cluster prod

A dcgm-exporter's metrics (DCGM_FI_...) are read by /api/v1/query_range, or with --remote-read by
/api/v1/read, whole UTC hours between --from and --to. A sample is the last value of a step and
stands for it; what the server does not have is unknown, not zero. --format dcgm-text reads pages
that were saved one after the other, each after a line with its time:
while date -u +'# %FT%TZ' && curl -s HOST:9400/metrics; do sleep 30; done >> pages.txt.
Importing the same time or file again changes nothing. Rows and series
that name no GPU go to the table dead_letters, and the exit status is 3.")]
pub(super) struct SamplesArgs {
    /// File to read (CSV, CSV.gz or Parquet); `-` is standard input
    #[arg(required_unless_present = "prometheus", requires = "read_as")]
    file: Option<PathBuf>,
    /// Mapping of the file: name of a shipped one, or path of your own (schemas/imports/README.md)
    #[arg(long, value_name = "NAME|PATH.toml", requires = "file", group = "read_as")]
    map: Option<String>,
    /// The file is no table: `dcgm-text`, pages of a dcgm-exporter with their times
    #[arg(long, value_name = "FORMAT", requires = "file", group = "read_as")]
    format: Option<Format>,
    /// Time zone of the file's times without one [default: the mapping's, else UTC]
    #[arg(long, value_name = "ZONE", requires = "file")]
    timezone: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Cluster of all samples; overrides the file
    #[arg(long, required_unless_present = "file")]
    cluster: Option<String>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Files that are no tables.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    DcgmText,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// Server with Prometheus' HTTP API: the address before /api/v1
    #[arg(long, value_name = "URL", conflicts_with = "file", requires = "from")]
    prometheus: Option<String>,
    /// Begin: a date (UTC) or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = moment, requires = "prometheus")]
    from: Option<DateTime<Utc>>,
    /// End [default: five minutes ago]
    #[arg(long, value_name = "TIME", value_parser = moment, requires = "prometheus")]
    to: Option<DateTime<Utc>>,
    /// Time between samples, or between pages; divides an hour
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    step: Duration,
    /// Only series with these labels, e.g. '{cluster="prod"}'
    #[arg(long, value_name = "SELECTOR", requires = "prometheus")]
    matcher: Option<String>,
    /// Read raw samples by Prometheus' remote read in place of queries: its limits of queries do
    /// not apply. VictoriaMetrics has no remote read
    #[arg(long, requires = "prometheus")]
    remote_read: bool,
    /// Label that names the node [default: Hostname, else instance without its port]
    #[arg(long, value_name = "LABEL", requires = "prometheus")]
    node_label: Option<String>,
    /// File with a bearer token for the server
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    bearer_token_file: Option<PathBuf>,
    /// Name for basic authentication
    #[arg(long, value_name = "NAME", requires = "password_file", conflicts_with = "bearer_token_file")]
    user: Option<String>,
    /// File with the password of --user
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// Time limit of one question to the server
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    timeout: Duration,
    /// Take answers that the server calls partial or warns about
    #[arg(long, requires = "prometheus")]
    allow_partial: bool,
}

pub(super) fn run(args: SamplesArgs) -> CommandResult {
    match args.file {
        Some(file) => {
            let map = args.map.as_deref().unwrap_or(DCGM_MAPPING);
            let mapping = Mapping::load(map)?;
            let format = args.format.map_or(FileFormat::Table, |Format::DcgmText| FileFormat::DcgmText);
            let interval_ms = args.format.map(|_| interval_ms(args.server.step)).transpose()?;
            if !matches!(mapping.kind, Kind::GpuSamples | Kind::PoolSamples) {
                return Err(
                    format!("mapping {map} is not of samples; `tidegate import jobs` takes it").into()
                );
            }
            let options = ImportOptions {
                cluster: args.cluster,
                timezone: args.timezone.as_deref().map(zone).transpose()?,
                topics: args.write.log.topics(),
                format,
                interval_ms,
                ..ImportOptions::default()
            };
            import_file(file, &mapping, &options, &args.write)
        }
        None => import_from_server(args.server, args.cluster.unwrap_or_default(), &args.write),
    }
}

fn import_from_server(args: ServerArgs, cluster: String, write: &WriteArgs) -> CommandResult {
    let to = args.to.unwrap_or_else(|| Utc::now() - NOT_YET_COMPLETE);
    let options = PrometheusOptions {
        credentials: credentials(&args)?,
        url: args.prometheus.unwrap_or_default(),
        from_ms: args.from.map_or(0, |from| from.timestamp_millis()),
        to_ms: to.timestamp_millis(),
        step_ms: i64::try_from(args.step.as_millis()).unwrap_or(i64::MAX),
        matcher: args.matcher,
        remote_read: args.remote_read,
        node_label: args.node_label,
        cluster,
        patience: args.timeout,
        allow_partial: args.allow_partial,
        topics: write.log.topics(),
    };
    // Check pipelines before anything is written.
    let plan = block_on(Plan::compile(write.data.load_pipelines()?))??;
    let workspace = Workspace::open(&write.data.data, &write.log)?;
    let started = Instant::now();
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("asking {bar:30} {msg} ({eta} left)")?);
    let summary = import_prometheus(&options, workspace.log.as_ref(), &mut |p| show(&bar, &p))?;
    bar.finish_and_clear();
    let tables = write.update_tables(&workspace, plan)?;
    report(&summary, &options.cluster);
    let rejected = summary.series_rejected.values().sum();
    report_end(tables, started.elapsed(), rejected);
    Ok(write.exit_code(rejected))
}

fn show(bar: &ProgressBar, p: &PrometheusProgress) {
    bar.set_length(p.total_ms.cast_unsigned());
    bar.set_position(p.done_ms.cast_unsigned());
    bar.set_message(format!("{} samples", HumanCount(p.samples)));
}

fn report(summary: &PrometheusSummary, cluster: &str) {
    say!("questions asked  {:>12}", HumanCount(summary.queries).to_string());
    say!("values read      {:>12}", HumanCount(summary.values).to_string());
    say!("samples          {:>12}", HumanCount(summary.samples).to_string());
    let rejected: u64 = summary.series_rejected.values().sum();
    say!("series rejected  {:>12}", HumanCount(rejected).to_string());
    for (code, count) in &summary.series_rejected {
        say!("  {code:<24} {count:>6}");
    }
    say!("events written   {:>12}", HumanCount(summary.events_written).to_string());
    say!("already present  {:>12}", HumanCount(summary.events_already_present).to_string());
    say!("hours imported   {} .. {} UTC", time(summary.from_ms), time(summary.to_ms));
    match summary.samples_ms {
        Some((first, last)) => say!("cluster          {cluster}: {} .. {} UTC", time(first), time(last)),
        None => say!("cluster          {cluster}: no samples in this time"),
    }
    if !summary.names_unused.is_empty() {
        say!("not used         {}", tidegate_text::shown(&summary.names_unused.join(", ")));
    }
    for warning in &summary.warnings {
        say!("the server warns {}", tidegate_text::shown(warning));
    }
}

/// A date, or a time in RFC 3339.
fn moment(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(date) = text.parse::<NaiveDate>() {
        return Ok(date.and_time(chrono::NaiveTime::MIN).and_utc());
    }
    let time = DateTime::parse_from_rfc3339(text);
    time.map(|time| time.to_utc())
        .map_err(|error| format!("{error}; write 2026-10-01 or 2026-10-01T12:00:00Z"))
}

/// Milliseconds between pages.
fn interval_ms(step: Duration) -> Result<u64, CommandError> {
    let ms = u64::try_from(step.as_millis()).unwrap_or(u64::MAX);
    match (1..=HOUR_MS).contains(&ms) && HOUR_MS.is_multiple_of(ms) {
        true => Ok(ms),
        false => Err("--step must divide an hour, as 30s and 1m do".into()),
    }
}

fn credentials(args: &ServerArgs) -> Result<Option<Credentials>, CommandError> {
    if let Some(file) = &args.bearer_token_file {
        let token = secret("--bearer-token-file", file)?;
        return match token.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Some(Credentials::Token(token))),
            false => Err(format!("--bearer-token-file {} holds no token", file.display()).into()),
        };
    }
    let (Some(user), Some(file)) = (&args.user, &args.password_file) else { return Ok(None) };
    if user.is_empty() || user.contains(':') || user.chars().any(char::is_control) {
        return Err("--user: a name for basic authentication has no colon and no control characters".into());
    }
    let password = secret("--password-file", file)?;
    Ok(Some(Credentials::Basic { user: user.clone(), password }))
}

/// What a file holds, without the blanks and line breaks around it.
fn secret(option: &str, file: &Path) -> Result<String, CommandError> {
    let opened = std::fs::File::open(file);
    let mut text = String::new();
    opened
        .and_then(|file| file.take(SECRET_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot read {option} {}: {error}", file.display()))?;
    let secret = text.trim();
    if secret.is_empty() || text.len() as u64 > SECRET_BYTES || secret.chars().any(char::is_control) {
        return Err(format!("{option} {} holds nothing that can be sent", file.display()).into());
    }
    Ok(secret.to_owned())
}
