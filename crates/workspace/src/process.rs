//! What a command needs of its process: runtime, log lines, signals, exit status.

use std::error::Error;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use tidegate_log::LogError;
use tidegate_telemetry::SpanLayer;
use tidegate_text::{LinesOf, shown_lines};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::{CommandError, CommandResult, chain};

/// Sends log lines to stderr, filtered by `RUST_LOG`. They are plain, with control characters
/// escaped: what they quote comes from outside.
pub fn init_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,tidegate=info,deltalake_core=off"));
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_ansi(false);
    let lines = lines.with_writer(|| LinesOf(std::io::stderr())).with_filter(filter);
    tracing_subscriber::registry().with(lines).with(SpanLayer::filtered()).init();
}

/// Runs an async command to completion.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, CommandError> {
    // Nested views make deep plans, and planning recurses.
    let threads =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(8 << 20).build()?;
    Ok(threads.block_on(future))
}

/// Runs an async command on one thread.
///
/// For commands that work through history: each table is computed from another, so handing batches
/// between threads costs more than it gains.
pub fn block_on_one_thread<T>(future: impl Future<Output = T>) -> Result<T, CommandError> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future))
}

/// Binds an address for HTTP. Errors name the flag to change.
pub async fn bind(option: &str, listen: &str) -> Result<TcpListener, CommandError> {
    TcpListener::bind(listen).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("{listen} is in use by another process; choose another address with {option}, e.g. {option} 127.0.0.1:0").into()
        }
        _ => format!("listen on {listen}: {e}; write {option} HOST:PORT, e.g. 127.0.0.1:8433").into(),
    })
}

/// Sets `stop` at the first SIGINT or SIGTERM; the second one exits with status 130.
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

/// Exit status of a command that gave up because the log did not answer: `EX_TEMPFAIL` of
/// sysexits.h. Running it again later may help.
pub const LOG_UNAVAILABLE: u8 = 75;

/// Prints an error with its causes. Returns the exit status: [`LOG_UNAVAILABLE`] if the log did not
/// answer, else 1.
pub fn exit_code(result: CommandResult) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidegate: {}", shown_lines(&chain(error.as_ref())));
            match causes(error.as_ref())
                .any(|cause| cause.downcast_ref::<LogError>().is_some_and(LogError::is_passing))
            {
                true => ExitCode::from(LOG_UNAVAILABLE),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// The error and its causes.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}

/// Replaces an error caused by a full disk with one that names the folder to free space in.
///
/// The cause is found at any depth; other errors are returned unchanged.
pub fn name_full_disk(error: CommandError, data: &Path) -> CommandError {
    let is_full = |cause: &(dyn Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        matches!(io, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge))
    };
    let is_full = causes(error.as_ref()).any(is_full);
    if is_full { LogError::Full { dir: data.to_path_buf() }.into() } else { error }
}

/// Who is at the keyboard, as the environment says; a name that is too long is cut.
pub fn user_name() -> String {
    let named = std::env::var("SUDO_USER").or_else(|_| std::env::var("USER"));
    named.map_or_else(|_| "somebody".to_owned(), |name| name.chars().take(128).collect())
}
