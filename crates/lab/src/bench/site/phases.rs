//! What is done to a site, each phase in a process of its own: so each has a peak of memory of its
//! own, and begins with what a restart would find.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_lake::pipeline::shipped;
use tidegate_lake::runner::{Pace, Runner};
use tidegate_server::{QueryLimits, QueryService};
use tidegate_signals::{RunMode, SignalService};
use tidegate_workspace::{CommandError, LogArgs, Workspace, ask, block_on, block_on_one_thread};

use super::drive::{self, REFRESHES, ROUND_MS};
use super::feed::{Feed, Sending};
use super::questions::ask_all;
use super::spread::Times;
use super::{DAY_MS, START_MS, Site};
use crate::bench::{Stopwatch, peak_rss_mib};

/// The state of a site beside its data folder.
const STATE: &str = "site.json";
/// Days of jobs that are generated at a time.
const DAYS_AT_A_TIME: i64 = 30;

/// One phase; started by `bench year` and `bench live`.
#[derive(Debug, Args)]
pub struct PhaseArgs {
    #[arg(value_enum)]
    phase: Phase,
    /// Folder of the site
    folder: PathBuf,
    /// The site, as JSON
    site: String,
    /// Rounds of ten seconds in which one node sends, then in which all do, uncounted
    #[arg(long, default_value_t = 0)]
    thin_rounds: u32,
    #[arg(long, default_value_t = 0)]
    warm_rounds: u32,
    /// Rounds that are measured
    #[arg(long, default_value_t = 0)]
    rounds: u32,
    /// Leave signals out
    #[arg(long)]
    no_signals: bool,
}

impl PhaseArgs {
    /// Whether the phase measures `tidegate up`.
    pub fn is_of_a_service(&self) -> bool {
        self.phase != Phase::Make
    }
}

/// What a phase does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// Makes the past.
    Make,
    /// Goes on live.
    Live,
    /// Asks what dashboards ask, as often as there are rounds.
    Ask,
    /// Starts again.
    Restart,
}

/// What is known of a site beside its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub site: Site,
    /// End of what its log holds, ms.
    pub next_ms: i64,
    /// Feeds that wrote to its log.
    pub lives: u64,
    /// Samples in its log.
    pub samples: u64,
}

impl State {
    /// Reads the state of a site; `None` if it was not finished.
    pub fn read(folder: &Path) -> Result<Option<Self>, CommandError> {
        match std::fs::read(folder.join(STATE)) {
            Ok(json) => Ok(Some(serde_json::from_slice(&json)?)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn write(&self, folder: &Path) -> Result<(), CommandError> {
        Ok(std::fs::write(folder.join(STATE), serde_json::to_vec(self)?)?)
    }
}

/// The data folder of a site.
pub fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// What making the past took.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Made {
    pub events: u64,
    pub samples: u64,
    pub cpu_s: f64,
    pub wall_s: f64,
    pub peak_rss_mib: f64,
}

/// What the live part took.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Lived {
    /// Time of the data, and CPU time of the pipelines for it.
    pub data_s: f64,
    pub cpu_s: f64,
    pub samples: u64,
    pub events: u64,
    /// Of a commit, and of an update of joined tables.
    pub flush_s: Times,
    pub joined_s: Times,
    /// Commits, data files and their bytes.
    pub commits: u64,
    pub files: u64,
    pub bytes: u64,
    pub peak_rss_mib: f64,
    /// CPU seconds until signals had read the log afterwards; `None` if they were left out.
    pub signals_cpu_s: Option<f64>,
}

/// What a start took.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Restarted {
    pub first_answer: Started,
    /// Until signals are derived from what is new, from when they begin; `None` if they were left
    /// out.
    pub first_signal: Option<Started>,
    pub peak_rss_mib: f64,
}

/// Time until something is there.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Started {
    pub cpu_s: f64,
    pub wall_s: f64,
}

impl Started {
    fn since(watch: &Stopwatch) -> Result<Self, CommandError> {
        let (cpu_s, wall_s) = watch.read()?;
        Ok(Self { cpu_s, wall_s })
    }
}

/// Runs a phase in this process; returns its report as JSON.
pub fn run(args: &PhaseArgs) -> Result<serde_json::Value, CommandError> {
    let site: Site = serde_json::from_str(&args.site)?;
    Ok(match args.phase {
        Phase::Make => serde_json::to_value(make(&args.folder, &site, !args.no_signals)?)?,
        Phase::Live => serde_json::to_value(live(args, &site)?)?,
        Phase::Ask => {
            serde_json::to_value(ask_all(&data(&args.folder), finished(&args.folder)?.next_ms, args.rounds)?)?
        }
        Phase::Restart => serde_json::to_value(restart(&args.folder, !args.no_signals)?)?,
    })
}

/// Runs a phase in a process of its own.
pub fn start<T: DeserializeOwned>(
    phase: Phase,
    folder: &Path,
    site: &Site,
    rounds: [u32; 3],
    with_signals: bool,
) -> Result<T, CommandError> {
    let [thin, warm, measured] = rounds.map(|rounds| rounds.to_string());
    let name = phase.to_possible_value().expect("no phase is hidden");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "site-phase", name.get_name()]).arg(folder).arg(serde_json::to_string(site)?);
    command.args(["--thin-rounds", &thin, "--warm-rounds", &warm, "--rounds", &measured]);
    command.args((!with_signals).then_some("--no-signals"));
    for set in ["TIDEGATE_LOG", "TIDEGATE_KAFKA_CONFIG", "TIDEGATE_PIPELINES", "TIDEGATE_DATA"] {
        command.env_remove(set);
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!(
            "the {} of the site in {} ended with {}",
            name.get_name(),
            folder.display(),
            output.status
        )
        .into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn finished(folder: &Path) -> Result<State, CommandError> {
    State::read(folder)?.ok_or_else(|| format!("there is no finished site in {}", folder.display()).into())
}

fn open(folder: &Path) -> Result<Workspace, CommandError> {
    Workspace::open(&data(folder), &LogArgs::default())
}

async fn runner(workspace: &Workspace, pace: Pace) -> Result<Runner, CommandError> {
    workspace.runner(shipped(), pace).await
}

/// Makes the past through the product's own log and lake, in bulk.
pub fn make(folder: &Path, site: &Site, with_signals: bool) -> Result<Made, CommandError> {
    std::fs::create_dir_all(folder)?;
    let wall = Instant::now();
    let watch = Stopwatch::start()?;
    let workspace = open(folder)?;
    workspace.create_topics()?;
    let (end_ms, watched_ms) = (site.past_end_ms(), site.watched_from_ms());
    let mut feed = Feed::new(site, workspace.log.as_ref(), Sending::Past, 1, (watched_ms, end_ms));
    let mut at_ms = START_MS;
    while at_ms < end_ms {
        let next_ms = (at_ms + DAYS_AT_A_TIME * DAY_MS).min(end_ms);
        feed.append_events(at_ms, next_ms)?;
        at_ms = next_ms;
    }
    let (messages, round_ms) = feed.round();
    for _ in 0..(end_ms - watched_ms) / round_ms {
        feed.append_messages(messages)?;
    }
    let (events, samples) = (feed.events, feed.samples);
    if with_signals {
        signals(&workspace, end_ms)?;
    }
    block_on_one_thread(async {
        let mut runner = runner(&workspace, Pace { refresh_every: None, ..Pace::default() }).await?;
        runner.catch_up(&mut |_| {}).await?;
        runner.maintain().await?;
        Ok::<_, CommandError>(())
    })??;
    State { site: site.clone(), next_ms: end_ms, lives: 1, samples }.write(folder)?;
    let cpu_s = watch.read()?.0;
    Ok(Made { events, samples, cpu_s, wall_s: wall.elapsed().as_secs_f64(), peak_rss_mib: peak_rss_mib()? })
}

/// Goes on where the log of a site ends: first with one node, then with all.
fn live(args: &PhaseArgs, site: &Site) -> Result<Lived, CommandError> {
    std::fs::create_dir_all(&args.folder)?;
    let begun = || State { site: site.clone(), next_ms: site.past_end_ms(), lives: 1, samples: 0 };
    let mut state = State::read(&args.folder)?.unwrap_or_else(begun);
    let workspace = open(&args.folder)?;
    workspace.create_topics()?;
    let log = workspace.log.as_ref();
    let mut lived = block_on(async {
        let mut runner = runner(&workspace, Pace::default()).await?;
        let mut lived = Lived::default();
        let parts = [
            (Sending::OneNode, args.thin_rounds, 0),
            (Sending::Live, args.warm_rounds, REFRESHES),
            (Sending::Live, args.rounds, REFRESHES),
        ];
        for (sending, rounds, refreshes) in parts.into_iter().filter(|(_, rounds, _)| *rounds > 0) {
            state.lives += 1;
            let from_ms = state.next_ms;
            state.next_ms += i64::from(rounds) * ROUND_MS;
            let mut feed = Feed::new(site, log, sending, state.lives, (from_ms, state.next_ms));
            let costs = drive::rounds(&mut runner, &mut feed, from_ms, rounds, refreshes).await?;
            state.samples += feed.samples;
            lived = Lived {
                data_s: (state.next_ms - from_ms) as f64 / 1e3,
                cpu_s: costs.cpu_s,
                samples: feed.samples,
                events: feed.events,
                flush_s: Times::of(&costs.flush),
                joined_s: Times::of(&costs.joined),
                commits: costs.commits,
                files: costs.files,
                bytes: costs.bytes,
                ..Lived::default()
            };
        }
        compare(&QueryService::new(runner.catalog(), QueryLimits::default())?, &state).await?;
        Ok::<_, CommandError>(lived)
    })??;
    lived.peak_rss_mib = peak_rss_mib()?;
    state.write(&args.folder)?;
    if !args.no_signals {
        let watch = Stopwatch::start()?;
        signals(&workspace, state.next_ms)?;
        lived.signals_cpu_s = Some(watch.read()?.0);
    }
    Ok(lived)
}

/// Fails unless the tables hold every job and sample of the site's time so far.
async fn compare(service: &QueryService, state: &State) -> Result<(), CommandError> {
    let count = "SELECT (SELECT count(*) FROM jobs) AS jobs, (SELECT count(*) FROM gpu_samples) AS samples";
    let found = ask::<Counts>(service, count).await?;
    let jobs = state.site.job_count(state.next_ms);
    match found[..] {
        [Counts { jobs: j, samples: s }] if (j, s) == (jobs, state.samples) => Ok(()),
        _ => Err(format!(
            "jobs and samples: the tables say {found:?}, the site had {jobs} and {}",
            state.samples
        )
        .into()),
    }
}

#[derive(Debug, Deserialize)]
struct Counts {
    jobs: u64,
    samples: u64,
}

/// Derives signals from what the log holds since the last time, and saves their state.
fn signals(workspace: &Workspace, now_ms: i64) -> Result<(), CommandError> {
    let (log, group) = (Arc::clone(&workspace.log), workspace.reader_group("signals")?);
    let mut service = SignalService::with_snapshots(log, &workspace.snapshots(), &group)?;
    service.catch_up(RunMode::Live, now_ms)?;
    Ok(service.save(now_ms)?)
}

/// Starts as `tidegate up` does, until a query is answered and until signals are up to date.
fn restart(folder: &Path, with_signals: bool) -> Result<Restarted, CommandError> {
    let state = finished(folder)?;
    let watch = Stopwatch::start()?;
    let workspace = open(folder)?;
    let first_answer = block_on(async {
        let runner = runner(&workspace, Pace::default()).await?;
        let service = QueryService::new(runner.catalog(), QueryLimits::default())?;
        ask::<serde_json::Value>(&service, "SELECT count(*) AS jobs FROM jobs").await?;
        Started::since(&watch)
    })??;
    let first_signal = match with_signals {
        true => {
            let watch = Stopwatch::start()?;
            signals(&workspace, state.next_ms)?;
            Some(Started::since(&watch)?)
        }
        false => None,
    };
    Ok(Restarted { first_answer, first_signal, peak_rss_mib: peak_rss_mib()? })
}
