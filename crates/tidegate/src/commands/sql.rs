//! `tidegate sql`: runs one query, or a prompt, on the committed tables of a data folder.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tidegate_lake::pipeline::parse_duration_ms;
use tidegate_log::LogError;
use tidegate_server::{Encoded, Format, Overrides, QueryError, QueryLimits};

use super::{CommandError, CommandResult, Committed, DataArgs, block_on, query_memory};

mod prompt;

/// Query the tables with SQL; without a query, open a prompt
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate sql describe
  tidegate sql \"describe jobs\"
  tidegate sql \"SELECT team, sum(gpu_ms_held) / 3600000 AS gpu_hours FROM usage_1d GROUP BY team ORDER BY 2 DESC\"
  tidegate sql --format csv --output jobs.csv \"SELECT * FROM jobs WHERE cluster = 'prod'\"
  tidegate sql - < query.sql

Queries only read. They may run beside a writer, and see what it has committed. Standard output gets
data only.")]
pub struct SqlArgs {
    /// The query; `-` reads it from standard input
    query: Option<String>,
    #[command(flatten)]
    data: DataArgs,
    /// Output format: table, json, jsonl, csv, arrow (IPC stream) or parquet
    #[arg(long, default_value_t = Format::Table, hide_possible_values = true)]
    format: Format,
    /// Write rows to this file instead of standard output; it appears once complete
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Fail if the result has more rows
    #[arg(long, value_name = "ROWS", default_value_t = QueryLimits::default().rows_max)]
    max_rows: u64,
    /// Time limit of a query, e.g. 90s or 10m
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
    /// Memory of a query, e.g. 512M or 4G; beyond it, sorts and groupings spill to the temporary
    /// folder
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = query_memory)]
    memory: usize,
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let ms = parse_duration_ms(text)?;
    Ok(Duration::from_millis(ms.unsigned_abs()))
}

/// Opens the tables; without any, says how to make some.
async fn open(args: &SqlArgs) -> Result<Committed, CommandError> {
    let limits = QueryLimits {
        memory_bytes: args.memory,
        rows_max: args.max_rows,
        time_max: args.timeout,
        ..QueryLimits::default()
    };
    Committed::open(&args.data, limits).await.map_err(|error| match error.downcast_ref::<LogError>() {
        Some(LogError::NotADataDir { dir }) => {
            let dir = dir.display();
            format!("{error}\n  tidegate import sacct FILE --data {dir}\n  tidegate up --demo --data {dir}")
                .into()
        }
        _ => error,
    })
}

/// Runs one query. Returns the rows written, or `None` if `out` was closed.
async fn answer(
    tables: &Committed,
    sql: &str,
    format: Format,
    out: &mut (dyn Write + Send),
) -> Result<Option<u64>, CommandError> {
    let rows = tables.service().query(sql, Overrides::default()).await.map_err(explained)?;
    let mut encoded = Encoded::new(rows, format).map_err(explained)?;
    while let Some(piece) = encoded.next().await.map_err(explained)? {
        match out.write_all(&piece).and_then(|()| out.flush()) {
            Ok(()) => {}
            // The reader closed the pipe (`| head`).
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(None),
            Err(e) => return Err(format!("write the result: {e}").into()),
        }
    }
    Ok(Some(encoded.rows_written()))
}

/// Adds a remedy to the error.
fn explained(error: QueryError) -> CommandError {
    match error.hint() {
        Some(hint) => format!("{error}\nhint: {hint}").into(),
        None => error.into(),
    }
}

/// Prints the result of a query, like `tidegate sql` without options.
pub fn show(data: DataArgs, query: &str) -> CommandResult {
    run(SqlArgs {
        query: Some(query.to_owned()),
        data,
        format: Format::Table,
        output: None,
        max_rows: QueryLimits::default().rows_max,
        timeout: Duration::from_secs(600),
        memory: 1 << 30,
    })
}

pub fn run(args: SqlArgs) -> CommandResult {
    let query = match args.query.as_deref() {
        Some("-") => Some(from_stdin()?),
        Some(query) => Some(query.to_owned()),
        None if std::io::stdin().is_terminal() => None,
        None => Some(from_stdin()?),
    };
    block_on(async {
        let mut tables = open(&args).await?;
        match (query, &args.output) {
            (Some(query), Some(file)) => into_file(&tables, &query, args.format, file).await?,
            (Some(query), None) => {
                answer(&tables, &query, args.format, &mut std::io::stdout()).await?;
            }
            (None, Some(_)) => return Err("--output needs a query".into()),
            (None, None) => prompt::run(&mut tables, args.format).await?,
        }
        Ok(ExitCode::SUCCESS)
    })?
}

fn from_stdin() -> Result<String, CommandError> {
    let mut query = String::new();
    std::io::stdin()
        .read_to_string(&mut query)
        .map_err(|e| format!("read the query from standard input: {e}"))?;
    Ok(query)
}

/// Writes to a temporary file and renames it at the end: a failed query leaves no partial result.
async fn into_file(tables: &Committed, query: &str, format: Format, file: &Path) -> Result<(), CommandError> {
    let failed = |what: &str, path: &Path, e: std::io::Error| format!("{what} {}: {e}", path.display());
    // Devices and pipes cannot be replaced by renaming.
    if file.exists() && !file.is_file() {
        let mut out = File::options().write(true).open(file).map_err(|e| failed("open", file, e))?;
        answer(tables, query, format, &mut out).await?;
        return Ok(());
    }
    let name = file.file_name().ok_or_else(|| format!("{} names no file", file.display()))?;
    let aside = file.with_file_name(format!("{}.partial", name.to_string_lossy()));
    let mut out = File::create(&aside).map_err(|e| failed("create", &aside, e))?;
    let answered = answer(tables, query, format, &mut out).await;
    let kept = match answered {
        Ok(_) => std::fs::rename(&aside, file).map_err(|e| failed("rename to", file, e).into()),
        Err(e) => Err(e),
    };
    if kept.is_err() {
        // Best effort: the original error is what the user must see.
        std::fs::remove_file(&aside).ok();
    }
    kept
}
