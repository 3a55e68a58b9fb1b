//! One module per command. What several of them need stands here.

pub mod import;
pub mod pipeline;
pub mod sql;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tidegate_lake::exec::Limits;
use tidegate_lake::lake::Lake;
use tidegate_lake::pipeline::Pipeline;
use tidegate_lake::plan::Plan;
use tidegate_lake::runner::{Pace, Runner};
use tidegate_log::{DataDir, EmbeddedLog, EmbeddedOptions};
use url::Url;

/// Any failure of a command; printed with its causes, once, by [`exit_code`].
pub type CommandError = Box<dyn Error + Send + Sync>;
pub type CommandResult = Result<ExitCode, CommandError>;

/// Some rows were refused; everything else was done.
pub const EXIT_REJECTS: u8 = 3;

/// Where the data is; the same for every command.
#[derive(Debug, Clone, Args)]
pub struct DataArgs {
    /// Data folder: the event log and the lake
    #[arg(long, value_name = "DIR", default_value = "tidegate-data", env = "TIDEGATE_DATA")]
    pub data: PathBuf,

    /// Folder with further pipelines (*.sql); may be given several times
    #[arg(long = "pipelines", value_name = "DIR", env = "TIDEGATE_PIPELINES", value_delimiter = ':')]
    pub pipelines: Vec<PathBuf>,
}

impl DataArgs {
    /// The shipped pipelines and the user's own.
    pub fn load_pipelines(&self) -> Result<Vec<Pipeline>, CommandError> {
        let mut pipelines = tidegate_lake::shipped::shipped();
        for folder in &self.pipelines {
            pipelines.extend(load_folder(folder)?);
        }
        Ok(pipelines)
    }
}

/// Every pipeline file (*.sql) of a folder, by name.
pub fn load_folder(folder: &Path) -> Result<Vec<Pipeline>, CommandError> {
    let listing = std::fs::read_dir(folder).map_err(|e| format!("read pipelines folder {}: {e}", folder.display()))?;
    let mut files = listing.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "sql"));
    files.sort();
    Ok(files.iter().map(|file| Pipeline::load(file)).collect::<Result<_, _>>()?)
}

/// A data folder opened for writing: no other process can write to it meanwhile.
pub struct Opened {
    pub folder: DataDir,
    pub log: Arc<EmbeddedLog>,
}

impl Opened {
    pub fn open(data: &Path) -> Result<Self, CommandError> {
        let folder = DataDir::open(data)?;
        let log = Arc::new(EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?);
        Ok(Self { folder, log })
    }

    /// Opens the lake and attaches it to the log.
    pub async fn runner(&self, pipelines: Vec<Pipeline>, pace: Pace) -> Result<Runner<EmbeddedLog>, CommandError> {
        let plan = Plan::compile(pipelines).await?;
        let lake = Lake::open(&lake_url(&self.folder)?, plan, Limits::default()).await?;
        Ok(Runner::start(Arc::clone(&self.log), lake, pace).await?)
    }
}

/// The lake's address inside a data folder.
pub fn lake_url(folder: &DataDir) -> Result<Url, CommandError> {
    let lake = std::path::absolute(folder.lake())?;
    Url::from_directory_path(&lake).map_err(|()| format!("{} is not an absolute path", lake.display()).into())
}

/// Runs an async command to its end.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, CommandError> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(future))
}

/// Log lines go to stderr; RUST_LOG chooses which.
pub fn init_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,tidegate=info"));
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

/// The error and its causes on one line, none said twice.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
