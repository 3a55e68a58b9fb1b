//! One module per command. What several of them need stands here.

pub mod autopilot;
pub mod backtest;
pub mod explain;
pub mod import;
pub mod insight;
pub mod log;
mod opened;
pub mod pipeline;
pub mod plan;
pub mod policy;
pub mod price;
pub mod schema;
pub mod sim;
pub mod sql;
pub mod status;
pub mod topology;
mod tried;
pub mod up;

use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveTime};
use clap::Args;
use indicatif::HumanCount;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::engine::Limits;
use tidegate_lake::maintenance::Maintenance;
use tidegate_lake::maintenance::retention::Retention;
use tidegate_lake::pipeline::Pipeline;
use tidegate_lake::pipeline::Plan;
use tidegate_lake::pipeline::gpu_peaks;
use tidegate_lake::runner::Pace;
use tidegate_log::{DataDir, LogError};
use tidegate_server::{Encoded, Format, Overrides, QueryLimits, QueryService};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use url::Url;

pub use tidegate_node::chain;

pub use opened::{LogArgs, Opened, PlaceArgs, group_of};

/// Any failure of a command; printed with its causes, once, by [`exit_code`].
pub type CommandError = Box<dyn Error + Send + Sync>;
pub type CommandResult = Result<ExitCode, CommandError>;

/// Some rows were refused; everything else was done.
pub const EXIT_REJECTS: u8 = 3;

/// A stretch of seeds, `A..B` without B.
pub fn seeds(text: &str) -> Result<(u64, u64), String> {
    let bounds = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    bounds.filter(|(from, to)| from < to).ok_or_else(|| "write A..B with A below B, e.g. 0..20".into())
}

/// A time on a command line or in a file, ms since 1970.
pub fn time_ms(text: &str) -> Result<i64, CommandError> {
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").map(|day| day.and_time(NaiveTime::MIN).and_utc());
    let time = day.or_else(|_| DateTime::parse_from_rfc3339(text).map(|time| time.to_utc()));
    let time = time.map_err(|_| {
        format!("the time is {text:?}; write 2026-01-31, which is 00:00 UTC, or 2026-01-31T12:00:00+01:00")
    })?;
    Ok(time.timestamp_millis())
}

/// Where the data is; the same for every command.
#[derive(Debug, Clone, Args)]
pub struct DataArgs {
    /// Data folder: the event log and the lake
    #[arg(long, value_name = "DIR", default_value = "tidegate-data", env = "TIDEGATE_DATA")]
    pub data: PathBuf,

    /// Folder with further pipelines (*.sql); may be given several times
    #[arg(long = "pipelines", value_name = "DIR", env = "TIDEGATE_PIPELINES", value_delimiter = ':')]
    pub pipelines: Vec<PathBuf>,

    /// CSV file with peaks of GPUs that go before the shipped ones, of the form of
    /// schemas/gpu_peaks.csv: table gpu_peaks
    #[arg(long, value_name = "FILE", env = "TIDEGATE_PEAKS")]
    pub peaks: Option<PathBuf>,
}

impl DataArgs {
    /// The shipped pipelines and the user's own.
    pub fn load_pipelines(&self) -> Result<Vec<Pipeline>, CommandError> {
        let mut pipelines = tidegate_lake::pipeline::shipped();
        if let Some(file) = &self.peaks {
            let text =
                std::fs::read_to_string(file).map_err(|e| format!("read peaks {}: {e}", file.display()))?;
            let own = gpu_peaks::with_file(&file.display().to_string(), &text)?;
            pipelines.retain(|shipped| shipped.name != gpu_peaks::TABLE);
            pipelines.push(own);
        }
        for folder in &self.pipelines {
            pipelines.extend(load_folder(folder)?);
        }
        Ok(pipelines)
    }
}

/// How a command that works through history paces itself.
#[derive(Debug, Clone, Args)]
pub struct PaceArgs {
    /// Tuning: commit the tables about every so many events (10 samples count as one); fewer bound
    /// memory further and cost time
    #[arg(long, value_name = "EVENTS", default_value_t = Pace::default().flush_events, hide_short_help = true,
          value_parser = clap::value_parser!(u64).range(1..))]
    flush_events: u64,
    /// Tuning: with --follow, seconds after which what came in is committed at the latest
    #[arg(long, value_name = "SECONDS", default_value_t = Pace::default().flush_every.as_secs_f64(), hide_short_help = true,
          value_parser = seconds)]
    flush_every: f64,
}

/// How long tables keep their rows.
#[derive(Debug, Clone, Args)]
pub struct KeepArgs {
    /// Drop rows of a table that are older than so many days, counted from its newest one, e.g.
    /// gpu_samples=30; may be given several times. Hours and days that are stored of them stay, and
    /// no longer change for what comes late
    #[arg(long, value_name = "TABLE=DAYS", value_parser = table_and_days)]
    keep: Vec<(String, u32)>,
}

fn table_and_days(text: &str) -> Result<(String, u32), String> {
    let (table, days) = text.split_once('=').ok_or("write TABLE=DAYS, e.g. gpu_samples=30")?;
    let days = days.parse().ok().filter(|days| (1..=36_500).contains(days));
    Ok((table.into(), days.ok_or("days are a whole number from 1 to 36500")?))
}

impl KeepArgs {
    /// What maintenance does then.
    pub async fn maintenance(&self, pipelines: &[Pipeline]) -> Result<Maintenance, CommandError> {
        let days = |(table, days): &(String, u32)| (table.clone(), chrono::Duration::days((*days).into()));
        let retention = match self.keep.is_empty() {
            true => Retention::default(),
            false => {
                let plan = Plan::compile(pipelines.to_vec()).await?;
                Retention::new(self.keep.iter().map(days).collect(), &plan)?
            }
        };
        Ok(Maintenance { retention, ..Maintenance::default() })
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|s| (0.01..=3600.0).contains(s)).ok_or_else(|| "write 0.01 to 3600".into())
}

impl PaceArgs {
    pub fn pace(&self) -> Pace {
        let pace = Pace::default();
        // What is read at a time is committed together; no event is as small as this.
        let read_bytes = usize::try_from(self.flush_events.saturating_mul(64)).unwrap_or(usize::MAX);
        let flush_every = Duration::from_secs_f64(self.flush_every);
        Pace {
            flush_every,
            flush_events: self.flush_events,
            read_bytes: pace.read_bytes.min(read_bytes),
            ..pace
        }
    }
}

/// Every pipeline file (*.sql) of a folder, by name.
pub fn load_folder(folder: &Path) -> Result<Vec<Pipeline>, CommandError> {
    let listing =
        std::fs::read_dir(folder).map_err(|e| format!("read pipelines folder {}: {e}", folder.display()))?;
    let mut files = listing.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "sql"));
    files.sort();
    Ok(files.iter().map(|file| Pipeline::load(file)).collect::<Result<_, _>>()?)
}

/// Rows of a table, for display.
#[derive(Debug, Deserialize)]
pub struct TableCount {
    table_name: String,
    row_count: u64,
}

impl std::fmt::Display for TableCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<20} {:>12} rows", self.table_name, HumanCount(self.row_count).to_string())
    }
}

/// Rows of every table that is stored. What is computed when asked for may take long.
pub async fn table_counts(service: &QueryService) -> Result<Vec<TableCount>, CommandError> {
    let catalog = service.catalog();
    let mut counts = Vec::new();
    for name in catalog.tables.keys().filter(|name| !catalog.views.contains(*name)) {
        let sql = format!("SELECT '{name}' AS table_name, count(*) AS row_count FROM {name}");
        counts.extend(ask(service, &sql).await?);
    }
    Ok(counts)
}

/// The rows of a query, however many; columns are fields by their names.
pub async fn ask<T: DeserializeOwned>(service: &QueryService, sql: &str) -> Result<Vec<T>, CommandError> {
    let all = Overrides { rows_max: Some(u64::MAX), ..Overrides::default() };
    let mut encoded = Encoded::new(service.query(sql, all).await?, Format::Json)?;
    let mut json = Vec::new();
    while let Some(piece) = encoded.next().await? {
        json.extend(piece);
    }
    Ok(serde_json::from_slice(&json)?)
}

/// Text as an SQL literal.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Queries on the tables of a data folder as they are committed; another process may be writing
/// them.
pub async fn committed(data: &DataArgs) -> Result<QueryService, CommandError> {
    let folder = DataDir::open_shared(&data.data)?;
    let plan = Plan::compile(data.load_pipelines()?).await?;
    let catalog = committed_catalog(&lake_url(&folder)?, &plan, Limits::default()).await?;
    Ok(QueryService::new(CatalogSource::fixed(catalog), QueryLimits::default())?)
}

/// The lake's address inside a data folder.
pub fn lake_url(folder: &DataDir) -> Result<Url, CommandError> {
    folder_url(&folder.lake())
}

/// A folder as the lake takes it.
pub fn folder_url(folder: &Path) -> Result<Url, CommandError> {
    let folder = std::path::absolute(folder)?;
    Url::from_directory_path(&folder)
        .map_err(|()| format!("{} is not an absolute path", folder.display()).into())
}

/// The least that a memory limit may be: planning a view of ours takes some of it.
const LEAST_QUERY_MEMORY: usize = 16 << 20;

/// A memory limit of queries.
fn query_memory(text: &str) -> Result<usize, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(format!("{text:?} is not a size; write a number and K, M or G, e.g. 512M")),
    };
    let number: usize = number.parse().map_err(|_| format!("{text:?} is not a size; write e.g. 512M"))?;
    let bytes = number.checked_mul(1 << shift);
    let bytes = bytes.ok_or_else(|| format!("{text:?} is more than this machine can address"))?;
    match bytes < LEAST_QUERY_MEMORY {
        true => Err(format!("{text:?} is too little to plan a query in; the least is 16M")),
        false => Ok(bytes),
    }
}

/// Runs an async command to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, CommandError> {
    // Views upon views make deep plans.
    let threads =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(8 << 20).build()?;
    Ok(threads.block_on(future))
}

/// Runs a command that works through history, on one thread: handing batches from thread to thread
/// costs more than it brings where one table is computed from the other.
pub fn block_on_one_thread<T>(future: impl Future<Output = T>) -> Result<T, CommandError> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future))
}

/// Listens on an address for HTTP.
pub async fn bind(listen: &str) -> Result<TcpListener, CommandError> {
    TcpListener::bind(listen).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("{listen} is in use by another process; choose another address with --listen, e.g. --listen 127.0.0.1:0").into()
        }
        _ => format!("listen on {listen}: {e}; write --listen HOST:PORT, e.g. 127.0.0.1:8428").into(),
    })
}

/// The first SIGINT or SIGTERM asks everything to end, the second one ends the process.
pub fn stop_on_signals(stop: watch::Sender<bool>) -> Result<(), CommandError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if stop.send_replace(true) {
                std::process::exit(130);
            }
        }
    });
    Ok(())
}

/// Log lines go to stderr; RUST_LOG chooses which.
pub fn init_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,tidegate=info,deltalake_core=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}

/// Prints a failure with its causes and turns the result into an exit status: 1 for a failure.
pub fn exit_code(result: CommandResult) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidegate: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Says where to free space if a full disk is the cause, whichever layer met it; other failures
/// stay as they are.
pub fn name_full_disk(error: CommandError, data: &Path) -> CommandError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error.as_ref());
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if matches!(io, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)) {
            return LogError::Full { dir: data.to_path_buf() }.into();
        }
        cause = error.source();
    }
    error
}
