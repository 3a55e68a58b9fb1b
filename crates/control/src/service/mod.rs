//! The autopilot's service loop on a real cluster: observe, plan, act, every few seconds.
//!
//! The loop knows no signals, no metrics library and no tables: whether to stop, where status and
//! lines go, and past demand come in as arguments.

mod approvals;
mod config;
mod doctor;
mod policy;
mod saved;
mod status;
mod switch;
#[cfg(test)]
mod tests;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_autopilot::executor::{EntriesRefused, Executor, JournalEvent, Role, Settings};
use tidegate_autopilot::forecast::{SelectedForecast, Series};
use tidegate_autopilot::intent::Limits;
use tidegate_autopilot::rollout::Rollout;
use tidegate_autopilot::target::Target;
use tidegate_events::{Micros, Millis};
use tidegate_log::EventLog;
use tidegate_log::poison::DeathWatch;

use crate::authority::Signers;
use crate::control_folder::ControlFolder;
use crate::enriched_target::EnrichedTarget;
use crate::forecast_reader::ForecastReader;
use crate::journal::{JournalKey, LogJournal};
use crate::newest_plan::NewestPlanFile;
use crate::pager::Pager;
use crate::plan_archive::PlanArchive;
use crate::slurm::{SlurmConfig, SlurmTarget};
use crate::spans::{self, Traced};

pub use crate::error::ServiceError;
pub use config::ServiceConfig;
pub use doctor::{Check, Verdict, examine};
use saved::{Saved, Snapshots};
use status::StepLines;

pub use status::{ServiceStatus, WaitingAction};
pub use switch::check as check_switch;

/// Spacing of the observations that the forecast learns from, microseconds.
const OBSERVATION_US: i64 = 600_000_000;

/// Step reports before the first start from which it learns, ms. Ten thousand GPUs write about a
/// thousand a second.
pub(crate) const STEPS_MS: i64 = 6 * 3_600_000;

/// Plans recorded at once because what they say has changed, though they decide nothing new.
const MOST_CHANGED_PLANS: u32 = 6;

/// Name under which the service notes that it reads the journal.
pub const READER: &str = "autopilot";

/// Demand of one team in one pool over one hour, for the forecast to learn from.
#[derive(Debug, Clone, PartialEq)]
pub struct DemandHour {
    /// Start of the hour, microseconds since 1970.
    pub at_us: i64,
    /// Pool.
    pub pool: String,
    /// Team.
    pub team: String,
    /// GPUs held and queued for, on average.
    pub gpus: f64,
}

/// Where the loop reports to, and when it stops.
pub struct Hooks<'a> {
    /// Whether to stop.
    pub stopped: &'a dyn Fn() -> bool,
    /// Takes lines for people.
    pub line: &'a dyn Fn(&str),
    /// Takes the status after each step.
    pub status: &'a dyn Fn(ServiceStatus),
}

impl std::fmt::Debug for Hooks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// An autopilot that has opened its cluster, ready to run.
pub struct Service {
    config: ServiceConfig,
    executor: Executor<LogJournal, SelectedForecast>,
    forecasts: ForecastReader,
    target: EnrichedTarget<SlurmTarget>,
    control: ControlFolder,
    /// Lines about the candidates that run beside the policy.
    candidates: Vec<String>,
    signers: Option<Signers>,
    /// Fingerprint of the key with which it proves its journal entries.
    proven_by: Option<String>,
    /// Number of the policy's statement, where it is signed.
    adopted: Option<u64>,
    /// Journal entries that do not count and are not recorded yet.
    refused: Option<EntriesRefused>,
    /// Generation of the first proven entry, as the data folder says it.
    proofs_kept: Option<u64>,
    /// Why a switch that says `on` was off at the last step.
    switch_refused: Option<String>,
    pager: Option<Pager>,
    log: Arc<dyn EventLog>,
    snapshots: Snapshots,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { config, executor, target, .. } = self;
        let mut shown = f.debug_struct("Service");
        shown.field("config", config).field("executor", executor).field("target", target);
        shown.finish_non_exhaustive()
    }
}

impl Service {
    /// Opens policy, cluster, journal and pager. Changes nothing on the cluster. The journal is
    /// read from the newest snapshot in the data folder on; `group` says on the log how far the
    /// snapshots reach. Where earlier lives died twice of the journal, as the folder `deaths` notes
    /// it, it acts no more and pages.
    ///
    /// # Errors
    /// The policy is wrong or lacks signatures, the cluster cannot be reached, or the log has no
    /// topic for the journal.
    pub fn open(
        config: ServiceConfig,
        data: &Path,
        deaths: &Path,
        log: &Arc<dyn EventLog>,
        group: &str,
    ) -> Result<Self, ServiceError> {
        let mut snapshots = Snapshots::in_data(data, &config.cluster, group);
        let saved = snapshots.restore(log.as_ref())?;
        let acting = config.acting_policy(log, &saved)?;
        let slurm = SlurmTarget::open(config.slurm.clone().unwrap_or_default())?;
        let begun_ms = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        let holder = format!("{}/{}/{begun_ms}", host.trim(), std::process::id());
        let journal = LogJournal::open(Arc::clone(log), &config.cluster, &holder)?;
        let keys = config.journal_keys()?;
        let proven_by = keys.as_ref().and_then(|keys| keys.key.as_ref()).map(JournalKey::fingerprint);
        let journal = journal.archiving(PlanArchive::in_data(data)).resumed(&saved.positions);
        let journal = journal.proving(keys, saved.chains).showing(NewestPlanFile::in_data(data));
        let journal = journal.watched_by(DeathWatch::begin(deaths, READER));
        // Held at what still fits into an i64 as microseconds.
        let most_s = Micros(i64::MAX).floor_secs();
        let ms = |seconds: u64| Millis::from_secs(i64::try_from(seconds).map_or(most_s, |s| s.min(most_s))).0;
        let settings = Settings {
            holder,
            lease_ms: ms(config.lease_s),
            plan_every_ms: ms(config.plan_every_s),
            most_changed: MOST_CHANGED_PLANS,
            limits: Limits { look_every_ms: ms(config.look_every_s), ..Limits::default() },
            ..Settings::default()
        };
        let names = config.slurm.as_ref().map(SlurmConfig::series_names).unwrap_or_default();
        let forecast = SelectedForecast::new(&acting.policy, names);
        let forecasts = ForecastReader::new(Arc::clone(log), &config.cluster, begun_ms)?;
        let steps_since_ms = Some(begun_ms - STEPS_MS);
        let target = EnrichedTarget::new(slurm, Arc::clone(log), &config.cluster, steps_since_ms)?;
        let Saved { executor: journaled, read, positions, .. } = saved;
        let mut target = target.resumed(read, &positions);
        let mut begin = vec![journal.position()?];
        begin.extend(target.read_so_far()?.1);
        snapshots.begin(log.as_ref(), begin)?;
        if let Some(canary) = &acting.rollout.canary {
            canary.check_owners(&target.observe()?)?;
        }
        let candidates = describe_rollout(&acting.rollout);
        let mut executor = Executor::new(acting.policy, settings, journal, forecast)
            .with_rollout(acting.rollout)
            .resumed(journaled);
        let issued = acting.adopted.as_ref().and_then(|adopted| adopted.issued.as_ref());
        let adopted = issued.map(|issued| issued.adopted.sequence);
        if let Some(adopted) = acting.adopted {
            executor.record_when_leading(JournalEvent::Policy(adopted));
        }
        let pager = config.pager.as_ref().map(|pager| Pager::start(pager, &config.folder, &config.cluster));
        Ok(Self {
            executor,
            forecasts,
            target,
            control: ControlFolder::in_data(data),
            signers: acting.signers,
            proven_by,
            adopted,
            refused: None,
            proofs_kept: None,
            switch_refused: None,
            pager: pager.transpose()?,
            config,
            candidates,
            log: Arc::clone(log),
            snapshots,
        })
    }

    /// Lines for people: what it can do on this cluster, by which policy, and whether the switch
    /// lets it.
    pub fn describe(&self) -> Vec<String> {
        let capabilities = self.target.capabilities();
        let kinds: Vec<&str> = capabilities.kinds.iter().map(|kind| kind.name()).collect();
        let mut lines = vec![
            format!("cluster {} on {}: it can {}", self.config.cluster, capabilities.name, kinds.join(", ")),
            format!("policy  {}", self.executor.policy().name),
            format!("switch  {}", self.control.describe().unwrap_or_else(|e| format!("cannot be read: {e}"))),
        ];
        lines.extend(self.candidates.iter().cloned());
        lines.push(match &self.signers {
            Some(signers) => format!("signers {}", signers.describe()),
            None => {
                "signers none: policies and approvals count unsigned, an approval by its login".to_owned()
            }
        });
        lines.push(match &self.proven_by {
            Some(key) => {
                format!("journal proven by {key}; entries that nobody listed has signed do not count")
            }
            None => "journal not proven: whoever can write the topic autopilot is believed".to_owned(),
        });
        lines.extend(capabilities.lacking.iter().map(|lacking| format!("lacks   {lacking}")));
        lines
    }

    /// Name of the cluster, as its collectors spell it.
    pub fn cluster(&self) -> &str {
        &self.config.cluster
    }

    /// Whose signatures on approvals and on the switch count; `None`: nobody needs to sign.
    pub fn signers(&self) -> Option<&Signers> {
        self.signers.as_ref()
    }

    /// Lets the forecast learn from past hours, in the order of their time.
    pub fn learn(&mut self, hours: &[DemandHour]) {
        for DemandHour { at_us, pool, team, gpus } in hours {
            let series = Series { owner: team, pool };
            (0..6).for_each(|step| {
                let at_us = at_us + step * OBSERVATION_US;
                self.executor.learn(|forecast| forecast.past().observe(series, at_us, *gpus));
            });
        }
    }

    /// Runs until told to stop; with `once`, makes a single step.
    ///
    /// # Errors
    /// The clock stands before 1970. What cannot be reached for a while is waited for.
    pub fn run(mut self, once: bool, hooks: &Hooks<'_>) -> Result<(), ServiceError> {
        let mut lines = StepLines::default();
        while !(hooks.stopped)() {
            self.step(&mut lines, hooks)?;
            if once {
                break;
            }
            if self.snapshots.is_due() {
                self.save();
            }
            wait(Duration::from_secs(self.config.look_every_s), hooks.stopped);
        }
        self.save();
        Ok(())
    }

    /// Saves what was folded and read so far. Failure is logged: the next start reads more.
    fn save(&mut self) {
        let now_ms = chrono::Utc::now().timestamp_millis();
        let stands = self.executor.journal().position().and_then(|journal| {
            let (read, mut positions) = self.target.read_so_far()?;
            positions.push(journal);
            Ok((read, positions))
        });
        match stands {
            Ok((read, positions)) => {
                let state = (self.executor.state(), read, self.executor.journal().chains());
                self.snapshots.save(self.log.as_ref(), state, positions, now_ms);
            }
            Err(error) => tracing::warn!("the state of the autopilot is not saved now: {error}"),
        }
    }

    fn step(&mut self, lines: &mut StepLines, hooks: &Hooks<'_>) -> Result<(), ServiceError> {
        if let Some(why) = self.pager.as_ref().and_then(Pager::trouble) {
            tracing::warn!("the pager does not take alerts, and is retried until it does: {why}");
        }
        if self.is_superseded() {
            tracing::warn!(
                "a newer policy acts on the cluster than the one read at the start: this process waits; restart it"
            );
            return Ok(());
        }
        let given = self.control.approved();
        let led_before = lines.leads();
        let approved = self.counted_approvals(&given, led_before);
        let rejected = self.control.rejected();
        self.executor.reject(rejected.iter().cloned().map(Into::into).collect());
        let now_us = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?;
        self.read_forecasts();
        self.record_refused(led_before);
        self.keep_proofs();
        let last = self.record_switch(led_before);
        let Self { control, signers, config, executor, target, .. } = self;
        let mut switch = || match signers {
            None => control.switch(),
            Some(signers) => {
                switch::find(control, signers, &config.cluster, last.as_ref(), chrono::Utc::now()).switch
            }
        };
        let step = || executor.step(&mut Traced(target), &mut switch, &approved, now_us);
        match spans::step(&config.cluster, step) {
            Ok(step) => {
                let leads = matches!(step.role, Role::Leading { .. });
                if leads {
                    let checked: &[_] = if self.signers.is_none() || led_before { &given } else { &[] };
                    self.control.discard(checked, &rejected);
                    approvals::warn_of_late(&rejected, &step);
                    self.page(now_us);
                }
                (hooks.status)(ServiceStatus::after(&self.config.cluster, &self.executor, &step, now_us));
                lines.lines(&step).iter().for_each(|line| (hooks.line)(line));
                if let Some(error) = &step.observe_error {
                    tracing::warn!("the cluster cannot be observed, nothing is begun: {error}");
                }
            }
            Err(error) => {
                tracing::warn!("the autopilot waits, and begins nothing: {error}");
                self.page_stopped(now_us);
            }
        }
        Ok(())
    }

    /// Takes in forecasts published since the last step. Those it has grow old if the log cannot be
    /// read, and old ones are not used.
    fn read_forecasts(&mut self) {
        let Self { forecasts, executor, .. } = self;
        executor.learn(|forecast| {
            if let Err(error) = forecasts.read(forecast.published()) {
                tracing::warn!("published forecasts cannot be read: {error}");
            }
        });
    }
}

fn describe_rollout(rollout: &Rollout) -> Vec<String> {
    let shadow = rollout.shadow.iter().map(|shadow| format!("shadow  {}: it only thinks", shadow.name));
    let canary = rollout.canary.iter().map(|canary| {
        let owners: Vec<&str> = canary.owners.iter().map(String::as_str).collect();
        format!("canary  {} for {}", canary.policy.name, owners.join(", "))
    });
    shadow.chain(canary).collect()
}

/// Waits, but not longer than until told to stop.
fn wait(time: Duration, stopped: &dyn Fn() -> bool) {
    const SLICE: Duration = Duration::from_millis(50);
    let mut waited = Duration::ZERO;
    while waited < time && !stopped() {
        std::thread::sleep(SLICE);
        waited += SLICE;
    }
}
