//! `--demo cluster`: a simulated site, whose past is made at once and whose present goes on.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};
use tidegate_control::{ControlFolder, PlanArchive};
use tidegate_demo::{CLUSTER, Feed, Pilot, Site, Times, prices, topology};
use tidegate_import::topology::{label, read};
use tidegate_lake::runner::Runner;
use tidegate_log::EventLog;
use tidegate_server::{Metrics, QueryService};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::UpArgs;
use super::demo::{self, Speed};
use super::replay::EndsWhenDropped;
use super::tour::{self, Phase};
use crate::autopilot::steering::LastStep;
use crate::commands::import::one_partition;
use crate::commands::price::enter_book;
use crate::commands::{CommandError, Workspace};

/// The end of the past is passed at `--demo-speed`, so that one sees it happen, ms.
const REPLAYED_MS: i64 = 2 * 3_600_000;
/// Default of `--demo-speed`: those two hours take a minute.
const SPEED: Speed = Speed::MsPerSecond(120_000);
/// Distance of readings in the past, and from then on, ms.
const PAST_STEP_MS: i64 = 60_000;
const STEP_MS: i64 = 10_000;
/// What is made of the past between two appends, ms.
const APPENDED_MS: i64 = 6 * 3_600_000;
const TICK: Duration = Duration::from_millis(200);

/// What the site runs on.
struct Stage {
    log: Arc<dyn EventLog>,
    archive: PlanArchive,
    speed: Speed,
    stopped: watch::Receiver<bool>,
    phase: watch::Sender<Phase>,
    /// Turns true once the past is on the log.
    made: EndsWhenDropped,
    /// Turns true once the tables have it; then the site goes on.
    tabled: watch::Receiver<bool>,
    /// End when it is now.
    until_present: bool,
    /// Where people steer its autopilot once it is now, and what they see of it.
    control: ControlFolder,
    last_step: Arc<LastStep>,
}

/// A site that runs on a thread, and the story that is printed of it.
pub struct Player {
    site: JoinHandle<Result<bool, CommandError>>,
    tour: JoinHandle<()>,
    phase: watch::Receiver<Phase>,
    made: watch::Receiver<bool>,
    tabled: watch::Sender<bool>,
    over: watch::Receiver<bool>,
}

impl Player {
    /// Starts both.
    ///
    /// # Errors
    /// The clock is before 1970.
    pub fn start(
        args: &UpArgs,
        workspace: &Workspace,
        service: &QueryService,
        url: &str,
        stopped: &watch::Receiver<bool>,
        last_step: Arc<LastStep>,
    ) -> Result<Self, CommandError> {
        let times = Times::until(now_ms()?);
        let (phase, seen) = watch::channel(Phase::Past);
        let (made, is_made) = watch::channel(false);
        let (tabled, is_tabled) = watch::channel(false);
        let (playing, over) = watch::channel(false);
        let playing = EndsWhenDropped(playing);
        let stage = Stage {
            log: Arc::clone(&workspace.log),
            archive: PlanArchive::in_data(workspace.folder.path()),
            speed: args.demo_speed.unwrap_or(SPEED),
            stopped: stopped.clone(),
            phase,
            made: EndsWhenDropped(made),
            tabled: is_tabled,
            until_present: args.exit_when_done,
            control: ControlFolder::in_data(workspace.folder.path()),
            last_step,
        };
        let site = tokio::task::spawn_blocking(move || {
            let _playing = playing;
            run(times, stage)
        });
        let (url, data) = (url.to_owned(), args.data.data.display().to_string());
        let tour = tour::narrate(service.clone(), times, seen.clone(), url, data, over.clone());
        Ok(Self { site, tour: tokio::spawn(tour), phase: seen, made: is_made, tabled, over })
    }

    /// Puts the past into the tables while it is made, and lets the site go on when they have all
    /// of it: behind a present in fast motion they would repair it slowly.
    ///
    /// # Errors
    /// Log or tables cannot be used.
    pub async fn table_past(&self, runner: &mut Runner, metrics: &Metrics) -> Result<(), CommandError> {
        runner.run(self.made.clone(), &mut |progress| metrics.observe(progress)).await?;
        if !*self.over.borrow() {
            runner.catch_up(&mut |progress| metrics.observe(progress)).await?;
        }
        self.tabled.send_replace(true);
        Ok(())
    }

    /// True once the site is over: it came to the present and was to end there, was stopped, or
    /// failed.
    pub fn over(&self) -> watch::Receiver<bool> {
        self.over.clone()
    }

    /// Waits on the calling thread until the past is made.
    pub fn past(&self) -> impl FnOnce() + Send + use<> {
        let (phase, over) = (self.phase.clone(), self.over.clone());
        move || {
            while *phase.borrow() == Phase::Past && !*over.borrow() {
                std::thread::sleep(TICK);
            }
        }
    }

    /// What became of the site.
    ///
    /// # Errors
    /// Why it could not go on.
    pub async fn end(self) -> Result<(), CommandError> {
        let ended = self.site.await?;
        self.tour.await?;
        ended.map(|_| ())
    }
}

/// Makes the past and goes on until stopped. Returns whether it came to the present.
///
/// # Errors
/// A bundled trace cannot be used, or the log cannot be written.
fn run(times: Times, stage: Stage) -> Result<bool, CommandError> {
    let folder = tempfile::tempdir()?;
    demo::bundle(folder.path())?;
    let from = DateTime::from_timestamp_millis(times.start_ms).unwrap_or_default();
    enter_book(&stage.log, &prices(&from.to_rfc3339_opts(SecondsFormat::Secs, true)))?;
    label(&read(&topology())?, CLUSTER, times.start_ms, stage.log.as_ref(), one_partition())?;
    let feed = Feed::new(Arc::clone(&stage.log), now_ms()?.unsigned_abs())?;
    let pilot = Pilot::new(Arc::clone(&stage.log), stage.archive.clone())?;
    let (site, last_step) = (Site::new(folder.path(), times)?, Arc::clone(&stage.last_step));
    let mut running = Running { site, feed, pilot, last_step };
    let mut appended_ms = times.start_ms;
    while running.site.now_ms() < times.present_ms - REPLAYED_MS {
        if *stage.stopped.borrow() {
            running.feed.flush()?;
            return Ok(false);
        }
        running.step(PAST_STEP_MS)?;
        let now_ms = running.site.now_ms();
        if now_ms - appended_ms >= APPENDED_MS {
            running.feed.flush()?;
            appended_ms = now_ms;
        }
    }
    running.feed.flush()?;
    let Stage { made, tabled, stopped, .. } = &stage;
    made.0.send_replace(true);
    stage.phase.send_replace(Phase::Tabled);
    while !*tabled.borrow() {
        if *stopped.borrow() {
            return Ok(false);
        }
        std::thread::sleep(TICK);
    }
    running.go_on(&stage)
}

/// The site with its collectors and its autopilot.
struct Running {
    site: Site,
    feed: Feed,
    pilot: Pilot,
    last_step: Arc<LastStep>,
}

impl Running {
    fn step(&mut self, step_ms: i64) -> Result<(), CommandError> {
        let observed = self.site.advance(self.site.now_ms() + step_ms)?;
        self.feed.take(observed)?;
        if let Some(status) = self.pilot.follow(&mut self.site)? {
            self.last_step.set(Some(status));
        }
        Ok(())
    }

    /// Fast until it is now, and then by the clock.
    fn go_on(mut self, stage: &Stage) -> Result<bool, CommandError> {
        self.feed.take(self.site.go_live())?;
        let (began_ms, began) = (self.site.now_ms(), Instant::now());
        let mut is_present = false;
        while !*stage.stopped.borrow() {
            let (clock_ms, step_ms) = (now_ms()?, if is_present { STEP_MS } else { PAST_STEP_MS });
            let until_ms = began_ms.saturating_add(stage.speed.covers_ms(began.elapsed())).min(clock_ms);
            while self.site.now_ms() + step_ms <= until_ms && !*stage.stopped.borrow() {
                self.step(step_ms)?;
            }
            self.feed.flush()?;
            if !is_present && self.site.now_ms() + step_ms > clock_ms {
                is_present = true;
                let at = DateTime::from_timestamp_millis(clock_ms).unwrap_or_default();
                let at = at.to_rfc3339_opts(SecondsFormat::Secs, true);
                stage.control.set(&ControlFolder::on("the demo", &at))?;
                self.pilot.listen_to(stage.control.clone());
                stage.phase.send_replace(Phase::Present);
                if stage.until_present {
                    return Ok(true);
                }
            } else if !is_present {
                stage.phase.send_replace(Phase::Fast);
            }
            std::thread::sleep(TICK);
        }
        self.feed.flush()?;
        Ok(is_present)
    }
}

fn now_ms() -> Result<i64, CommandError> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}
