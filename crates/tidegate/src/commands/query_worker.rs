//! The process in which queries of users run, see `tidegate_server::workers`. Started by the
//! processes that serve SQL.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidegate_lake::catalog::CatalogSource;
use tidegate_lake::catalog::pinned::PinnedLake;
use tidegate_lake::pipeline::Plan;
use tidegate_log::DataDir;
use tidegate_server::QueryLimits;
use tidegate_server::workers::{Program, Workers, run_in_background, runtime, work, yield_to_others};
use tokio::signal::unix::{SignalKind, signal};

use super::{CommandError, CommandResult, DataArgs, lake_url};

/// Stack of the thread that parses what users wrote.
const STACK_BYTES: usize = 64 << 20;

/// Answer queries that come on standard input, a socket
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct QueryWorkerArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Bytes that a query may hold
    #[arg(long)]
    memory: usize,
    /// Threads of a query
    #[arg(long)]
    threads: usize,
    /// Longest time limit of a query, ms
    #[arg(long)]
    time_max_ms: u64,
    /// Run where no other process wants a processor
    #[arg(long)]
    background: bool,
}

/// Starts the workers of a process that serves SQL.
pub fn workers(data: &DataArgs, source: CatalogSource, limits: QueryLimits) -> Result<Workers, CommandError> {
    let data = data.clone();
    let program: Program = Arc::new(move |memory_bytes, background| {
        // This program, also after another one was installed in its place.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tidegate").arg("query-worker").arg("--data").arg(&data.data);
        for folder in &data.pipelines {
            command.arg("--pipelines").arg(folder);
        }
        if let Some(peaks) = &data.peaks {
            command.arg("--peaks").arg(peaks);
        }
        command.args(["--memory", &memory_bytes.to_string(), "--threads", &limits.threads.to_string()]);
        command.args(["--time-max-ms", &limits.time_max.as_millis().to_string()]);
        if background {
            command.arg("--background");
        }
        command
    });
    let workers = Workers::start(source, limits, program);
    workers.map_err(|e| format!("start the processes for queries: {e}").into())
}

pub fn run(args: QueryWorkerArgs) -> CommandResult {
    match args.background {
        true => run_in_background()?,
        false => yield_to_others()?,
    }
    let answering = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let answered =
            runtime().map_err(CommandError::from).and_then(|threads| threads.block_on(answer(&args)));
        answered.map_err(|e| tidegate_workspace::chain(e.as_ref()))
    })?;
    match answering.join() {
        // Threads of a query that was given up may still compute.
        Ok(Ok(())) => std::process::exit(0),
        Ok(Err(error)) => Err(error.into()),
        Err(_panicked) => Err("the process for queries failed".into()),
    }
}

async fn answer(args: &QueryWorkerArgs) -> Result<(), CommandError> {
    // A terminal and systemd send these to all processes; a worker ends when its parent has.
    let _ignored = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let socket = tokio::net::UnixStream::from_std(socket)?;
    let folder = DataDir::open_shared(&args.data.data)?;
    let plan = Plan::compile(args.data.load_pipelines()?).await?;
    let lake = PinnedLake::new(lake_url(&folder)?, plan)?;
    let limits = QueryLimits {
        memory_bytes: args.memory,
        threads: args.threads,
        rows_max: u64::MAX,
        time_max: Duration::from_millis(args.time_max_ms),
        ..QueryLimits::default()
    };
    Ok(work(socket, lake, limits).await?)
}
