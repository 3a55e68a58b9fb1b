//! `tidegate import`: imports history from files and servers into the log and the tables.

mod faults;
mod samples;
mod steps;
mod write;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use tidegate_events::Event;
use tidegate_import::{Fleet, FleetError, ImportOptions, ImportSummary, Mapping, Source, import};
use tidegate_lake::pipeline::Plan;
use tidegate_lake::runner::Progress;
use tidegate_log::tail::Cursor;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, TopicConfig, TopicPartition};

use self::write::WriteArgs;
use super::{CommandError, CommandResult, Workspace, block_on};

/// Import history: Slurm accounting, job tables, traces, samples of GPUs, steps, faults
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sacct --allusers --parsable2 --starttime 2025-01-01 --format ALL > jobs.txt
  tidegate import sacct jobs.txt --cluster prod --timezone Europe/Berlin
  tidegate import jobs trace.parquet --map ms_itp_jobs
  tidegate import jobs jobs.csv.gz --map my_mapping.toml
  tidegate import sacct jobs.txt --cluster prod --nodes 'gpu[01-64]:8:a100:batch' --nodes 'big[1-4]:16'
  tidegate import samples gpus.parquet --map gpu_samples_csv --cluster prod
  tidegate import samples --prometheus http://prometheus:9090 --from 2026-10-01 --cluster prod

A history without nodes cannot show what was free while a job waited: declare nodes with --nodes.
Importing a file again changes nothing. Rejected rows go to the table dead_letters with file, line
and reason, and the exit status is 3.")]
pub struct ImportArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Import the output of Slurm's `sacct --parsable2`
    #[command(after_help = "Examples:
  tidegate import sacct jobs.txt --cluster prod --timezone Europe/Berlin
  tidegate import sacct jobs.txt --cluster prod --nodes 'gpu[01-64]:8:a100:batch'")]
    Sacct {
        /// File to read (plain or gzip); `-` is standard input
        file: PathBuf,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Import a table of jobs, quotas, nodes or faults (CSV, CSV.gz or Parquet) by a mapping
    #[command(after_help = "Examples:
  tidegate import jobs trace.parquet --map ms_itp_jobs
  tidegate import jobs jobs.csv.gz --map my_mapping.toml")]
    Jobs {
        /// File to read; `-` is standard input
        file: PathBuf,
        /// Name of a shipped mapping, or path of your own (schemas/imports/README.md says how to
        /// write one)
        #[arg(long, value_name = "NAME|PATH.toml")]
        map: String,
        #[command(flatten)]
        common: CommonArgs,
    },
    Samples(samples::SamplesArgs),
    Steps(steps::StepsArgs),
    Faults(faults::FaultsArgs),
}

#[derive(Debug, Args)]
struct CommonArgs {
    #[command(flatten)]
    write: WriteArgs,
    /// Cluster of all rows; overrides the file
    #[arg(long)]
    cluster: Option<String>,
    /// Time zone of times without one, e.g. Europe/Berlin [default: the mapping's, else UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Nodes, for a history that has none: [CLUSTER/]NAMES:GPUS[:MODEL[:POOLS]] with names as a
    /// Slurm hostlist, or a table with the columns node, gpus, gpu_model, pool, cluster; a node
    /// without a pool is in every pool. May be repeated
    #[arg(long, value_name = "SPEC|FILE")]
    nodes: Vec<String>,
    /// Time from which these nodes exist, RFC 3339 [default: the first job]. Give it if exports
    /// overlap, so that all agree
    #[arg(long, value_name = "TIME", requires = "nodes")]
    nodes_since: Option<DateTime<Utc>>,
}

pub fn run(args: ImportArgs) -> CommandResult {
    let (file, map, common) = match args.command {
        Command::Samples(args) => return samples::run(args),
        Command::Steps(args) => return steps::run(args),
        Command::Faults(args) => return faults::run(args),
        Command::Sacct { file, common } => (file, "sacct".to_owned(), common),
        Command::Jobs { file, map, common } => (file, map, common),
    };
    let mapping = Mapping::load(&map)?;
    let options = ImportOptions {
        cluster: common.cluster.clone(),
        timezone: common.timezone.as_deref().map(zone).transpose()?,
        topics: common.write.log.topics(),
        fleet: fleet(&common)?,
        ..ImportOptions::default()
    };
    import_file(file, &mapping, &options, &common.write)
}

/// Imports a file, and reports it.
fn import_file(
    file: PathBuf,
    mapping: &Mapping,
    options: &ImportOptions,
    write: &WriteArgs,
) -> CommandResult {
    // Check pipelines before anything is written.
    let plan = block_on(Plan::compile(write.data.load_pipelines()?))??;
    let source = Source::from_argument(file);
    source.check()?;
    let workspace = Workspace::open(&write.data.data, &write.log)?;

    let started = Instant::now();
    let bar = ReadBar::new();
    let summary = import(source, mapping, options, workspace.log.as_ref(), &mut |p| bar.show(&p))?;
    bar.finish();

    let tables = write.update_tables(&workspace, plan)?;
    report(&summary, tables, started.elapsed());
    Ok(write.exit_code(summary.rejected()))
}

fn zone<Zone: FromStr>(name: &str) -> Result<Zone, String> {
    name.parse()
        .map_err(|_| format!("unknown time zone {name:?}; use an IANA name such as Europe/Berlin or UTC"))
}

/// Parses `--nodes`: a file is read as a table, anything else as a hostlist.
fn fleet(common: &CommonArgs) -> Result<Fleet, CommandError> {
    let mut fleet = Fleet::default();
    for nodes in &common.nodes {
        if Path::new(nodes).is_file() {
            fleet.add_table(Source::File(nodes.into()))?;
            continue;
        }
        fleet.add_spec(nodes).map_err(|error| match error {
            FleetError::Spec { .. } if !nodes.contains(':') => format!("{error}; nor is it a file").into(),
            error => CommandError::from(error),
        })?;
    }
    if let Some(since) = common.nodes_since {
        fleet.since(since.timestamp_millis());
    }
    Ok(fleet)
}

/// Layout of topics in the embedded log.
pub fn one_partition() -> TopicConfig {
    TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None }
}

/// The events that an import would append, by topic. `options` must have one partition.
pub fn to_events(
    source: Source,
    mapping: &Mapping,
    options: &ImportOptions,
) -> Result<(Vec<Event>, ImportSummary), CommandError> {
    const READ_BYTES: usize = 8 << 20;
    let folder = tempfile::tempdir()?;
    let log = EmbeddedLog::open(folder.path(), EmbeddedOptions::default())?;
    let summary = import(source, mapping, options, &log, &mut |_| {})?;
    let mut events = Vec::new();
    for (topic, _) in log.topics()? {
        let at = TopicPartition { topic, partition: 0 };
        let mut cursor = Cursor::at_start(&log, at)?;
        while cursor.is_behind() {
            for stored in &cursor.read(&log, READ_BYTES)? {
                events.push(Event::decode(stored.record.schema, &stored.record.payload)?);
            }
        }
    }
    Ok((events, summary))
}

/// Progress bar of reading a file of known size; on a terminal only.
struct ReadBar(ProgressBar);

impl ReadBar {
    fn new() -> Self {
        Self(ProgressBar::new_spinner())
    }

    fn show(&self, p: &tidegate_import::Progress) {
        if let (Some(total), None) = (p.bytes_total, self.0.length()) {
            self.0.set_length(total);
            let template = "reading {bar:30} {bytes}/{total_bytes} {msg} ({eta} left)";
            self.0.set_style(ProgressStyle::with_template(template).expect("a valid template"));
        }
        self.0.set_position(p.bytes_read);
        self.0.set_message(format!("{} rows", HumanCount(p.rows)));
    }

    fn finish(&self) {
        self.0.finish_and_clear();
    }
}

fn report(summary: &ImportSummary, tables: Option<Progress>, took: Duration) {
    say!("rows read        {:>12}", HumanCount(summary.rows_read).to_string());
    say!("rows accepted    {:>12}", HumanCount(summary.rows_accepted).to_string());
    if summary.rows_duplicate > 0 {
        say!("rows repeated    {:>12}", HumanCount(summary.rows_duplicate).to_string());
    }
    if summary.rows_skipped > 0 {
        say!("rows left out    {:>12}  (by the mapping)", HumanCount(summary.rows_skipped).to_string());
    }
    say!("rows rejected    {:>12}", HumanCount(summary.rejected()).to_string());
    for (code, count) in &summary.rows_rejected {
        say!("  {code:<24} {count:>6}");
    }
    say!("events written   {:>12}", HumanCount(summary.events_written).to_string());
    say!("already present  {:>12}", HumanCount(summary.events_already_present).to_string());
    for (cluster, (from, to)) in &summary.clusters {
        say!("cluster          {cluster}: {} .. {} UTC", time(*from), time(*to));
    }
    if summary.rows_not_checked_for_duplicates > 0 {
        say!(
            "not checked for duplicate ids (memory limit): {} rows",
            HumanCount(summary.rows_not_checked_for_duplicates)
        );
    }
    report_end(tables, took, summary.rejected());
}

/// The last lines of every report.
fn report_end(tables: Option<Progress>, took: Duration, rejected: u64) {
    if let Some(tables) = tables {
        say!(
            "tables           {} events taken in, {} bytes written",
            HumanCount(tables.records),
            HumanCount(tables.bytes)
        );
    }
    say!("took             {}", HumanDuration(took));
    if rejected > 0 {
        say!("see: tidegate sql \"SELECT origin, line, code, reason FROM dead_letters\"");
    }
}

/// `2026-11-01 12:30:00`, in UTC.
fn time(ms: i64) -> String {
    DateTime::from_timestamp_millis(ms).map_or_else(String::new, |t| t.format("%F %T").to_string())
}
