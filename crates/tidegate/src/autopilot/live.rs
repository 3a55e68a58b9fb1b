//! The loop on a real cluster: look, plan, act, every few seconds, until told to stop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use tidegate_autopilot::action::ActionId;
use tidegate_autopilot::executor::{
    Executor, ExecutorState, Journal, JournalEvent, PolicyAdopted, Role, Settings, StepReport,
};
use tidegate_autopilot::forecast::{SelectedForecast, Series};
use tidegate_autopilot::intent::{IntentEvent, Limits, Transition};
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::rollout::{Rollout, check_candidate};
use tidegate_autopilot::slo::ObjectiveStatus;
use tidegate_autopilot::target::Target;
use tidegate_control::authority::Signers;
use tidegate_control::slurm::{SlurmConfig, SlurmTarget};
use tidegate_control::{Approval, Control, Informed, LogForecasts, LogJournal, Pager, PagerConfig};
use tidegate_log::EventLog;
use tidegate_server::{AutopilotKept, Metrics, ObjectiveKept, QueryService};
use tokio::sync::watch;

use crate::commands::{CommandError, ask, policy};

/// History that the forecast learns from when it begins, days.
const LEARNED_DAYS: u32 = 28;

/// What a site says of its autopilot: the file of `tidegate autopilot run`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the cluster, as its collectors spell it.
    cluster: String,
    /// Policy: a name that comes with the program, or a file beside this one.
    #[serde(default = "shipped")]
    policy: String,
    /// Between two looks at the cluster, seconds.
    #[serde(default = "five")]
    look_every_s: u64,
    /// Between two plans, seconds.
    #[serde(default = "sixty")]
    plan_every_s: u64,
    /// How long it may act without renewing its lease, seconds: another takes over after that.
    #[serde(default = "thirty")]
    lease_s: u64,
    /// The Slurm it acts on.
    slurm: Option<SlurmConfig>,
    /// Who signs policies and approvals; where it is left out nobody has to.
    authority: Option<Authority>,
    /// Where alerts about the autopilot itself go.
    pager: Option<PagerConfig>,
    #[serde(skip)]
    folder: PathBuf,
    /// Policy that only thinks, by name or file, instead of the policy's own.
    #[serde(skip)]
    shadow: Option<String>,
}

/// Whose word counts. It stands here and not in the policy: a policy must not say who may sign it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Authority {
    /// File in OpenSSH's `allowed_signers` format, beside this one.
    signers: PathBuf,
}

fn shipped() -> String {
    "default".to_owned()
}

fn five() -> u64 {
    5
}

fn thirty() -> u64 {
    30
}

fn sixty() -> u64 {
    60
}

impl Config {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// It cannot be read, is no such file, or says what cannot be.
    pub fn read(file: &Path) -> Result<Self, CommandError> {
        let at = file.display();
        let text = std::fs::read_to_string(file).map_err(|e| format!("read {at}: {e}"))?;
        let mut config: Self = toml::from_str(&text).map_err(|e| format!("{at}: {e}"))?;
        config.folder = file.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let Some(slurm) = &config.slurm else {
            return Err(format!(
                "{at}: it names no cluster to act on; add a [slurm] section, which may be empty"
            )
            .into());
        };
        let mut problems = slurm.problems();
        for (name, value) in [
            ("look_every_s", config.look_every_s),
            ("plan_every_s", config.plan_every_s),
            ("lease_s", config.lease_s),
        ] {
            if !(1..=86_400).contains(&value) {
                problems.push(format!("{name} is {value}; use 1 to 86400"));
            }
        }
        if config.lease_s < 3 * config.look_every_s {
            problems.push(format!(
                "lease_s is {} and look_every_s {}: a lease must outlast three looks, or it is lost between two",
                config.lease_s, config.look_every_s
            ));
        }
        problems.extend(config.pager.iter().flat_map(PagerConfig::problems));
        match problems.is_empty() {
            true => Ok(config),
            false => Err(format!("{at}: {}", problems.join("; ")).into()),
        }
    }

    /// Lets another policy think beside it, by name or file.
    #[must_use]
    pub fn shadowed_by(self, shadow: Option<String>) -> Self {
        Self { shadow, ..self }
    }

    /// What is tried beside the policy, taken out of it.
    fn tried(&self, policy: &mut Policy) -> Result<Rollout, CommandError> {
        let mut tried = policy::candidates(policy, &self.folder.join(&self.policy))?;
        if let Some(name) = &self.shadow {
            let shadow = policy::named(name)?;
            check_candidate(policy, &shadow).map_err(|why| format!("--shadow {name}: {why}"))?;
            tried.shadow = Some(shadow);
        }
        Ok(tried)
    }

    fn policy(&self) -> Result<Policy, CommandError> {
        match Policy::named(&self.policy) {
            Some(policy) => Ok(policy),
            None => policy::read(&self.folder.join(&self.policy)),
        }
    }

    fn signers(&self) -> Result<Option<Signers>, CommandError> {
        let file = self.authority.as_ref().map(|authority| self.folder.join(&authority.signers));
        Ok(file.map(|file| Signers::read(&file)).transpose()?)
    }

    /// The policy, if its signatures suffice for what it changes against `before`, the last that
    /// acted.
    fn signed_policy(
        &self,
        signers: &Signers,
        before: &Policy,
    ) -> Result<(Policy, PolicyAdopted), CommandError> {
        if Policy::named(&self.policy).is_some() {
            let name = &self.policy;
            return Err(format!(
                "policy {name:?} comes with the program and nobody signed it, but [authority] asks for signatures: write it to a file \
                 (tidegate policy show {name} > policy.toml), sign that and name it"
            )
            .into());
        }
        let file = self.folder.join(&self.policy);
        // What is signed is what is used, also if somebody writes the file meanwhile.
        let text = std::fs::read_to_string(&file).map_err(|e| format!("read {}: {e}", file.display()))?;
        let policy = Policy::parse(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let signed = signers.admit(&file, text.as_bytes(), &policy, before, chrono::Utc::now())?;
        let taken = PolicyAdopted {
            policy: policy.name.clone(),
            file: file.display().to_string(),
            signed_by: signed.by.iter().map(ToString::to_string).collect(),
            changes: signed.changes,
        };
        Ok((policy, taken))
    }

    /// Says no to a candidate that acts for some owners and is not signed for what it changes
    /// against the policy beside it.
    fn signed_canary(
        &self,
        signers: &Signers,
        name: &str,
        canary: &Policy,
        beside: &Policy,
    ) -> Result<(), CommandError> {
        let file = self.folder.join(&self.policy).with_file_name(name);
        if Policy::named(name).is_some() {
            return Err(format!("canary {name:?} comes with the program and nobody signed it, but [authority] asks for signatures").into());
        }
        let text = std::fs::read_to_string(&file).map_err(|e| format!("read {}: {e}", file.display()))?;
        let policy = Policy::parse(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        if policy != *canary {
            return Err(format!("{} was written while it was read: start again", file.display()).into());
        }
        signers.admit(&file, text.as_bytes(), &policy, beside, chrono::Utc::now())?;
        Ok(())
    }
}

/// An autopilot that has looked at its cluster once, ready to run.
pub struct Live {
    config: Config,
    executor: Executor<LogJournal, SelectedForecast>,
    forecasts: LogForecasts,
    target: Informed<SlurmTarget>,
    control: Control,
    /// What is tried beside its policy, for people.
    beside: Vec<String>,
    signers: Option<Signers>,
    pager: Option<Pager>,
}

impl Live {
    /// Opens everything; nothing is changed on the cluster, but that Slurm keeps a held job with
    /// the autopilot's notes.
    ///
    /// # Errors
    /// The policy is wrong or lacks signatures, the cluster cannot be reached, or the log has no
    /// topic for it.
    pub fn open(config: Config, data: &Path, log: &Arc<dyn EventLog>) -> Result<Self, CommandError> {
        let signers = config.signers()?;
        let (mut policy, taken) = match &signers {
            None => (config.policy()?, None),
            Some(signers) => {
                let before = last_policy(log, &config.cluster)?;
                let (policy, taken) = config.signed_policy(signers, &before)?;
                (policy, Some(taken))
            }
        };
        let named = policy.canary.policy.clone();
        let tried = config.tried(&mut policy)?;
        if let (Some(signers), Some(canary)) = (&signers, &tried.canary) {
            config.signed_canary(signers, &named, &canary.policy, &policy)?;
        }
        let slurm = SlurmTarget::open(config.slurm.clone().unwrap_or_default())?;
        let begun = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        let holder = format!("{}/{}/{begun}", host.trim(), std::process::id());
        let journal = LogJournal::open(Arc::clone(log), &config.cluster, &holder)?;
        let ms = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX / 1_000_000) * 1_000;
        let settings = Settings {
            holder,
            lease_ms: ms(config.lease_s),
            plan_every_ms: ms(config.plan_every_s),
            limits: Limits { look_every_ms: ms(config.look_every_s), ..Limits::default() },
            ..Settings::default()
        };
        let names = config.slurm.as_ref().map(SlurmConfig::series_names).unwrap_or_default();
        let forecast = SelectedForecast::new(policy.forecast, names);
        let forecasts = LogForecasts::new(Arc::clone(log), &config.cluster, begun)?;
        let mut target = Informed::new(slurm, Arc::clone(log), &config.cluster)?;
        let control = Control::of(data);
        let mut beside: Vec<String> =
            tried.shadow.iter().map(|shadow| format!("shadow  {}: it only thinks", shadow.name)).collect();
        if let Some(canary) = &tried.canary {
            canary.check_owners(&target.observe()?)?;
            let owners: Vec<&str> = canary.owners.iter().map(String::as_str).collect();
            beside.push(format!("canary  {} for {}", canary.policy.name, owners.join(", ")));
        }
        let mut executor = Executor::new(policy, settings, journal, forecast).with_rollout(tried);
        if let Some(taken) = taken {
            executor.record_when_leading(JournalEvent::Policy(taken));
        }
        let pager = config.pager.as_ref().map(|pager| Pager::start(pager, &config.folder, &config.cluster));
        let pager = pager.transpose()?;
        Ok(Self { executor, forecasts, target, control, signers, pager, config, beside })
    }

    /// What it can do, by what policy, and whether it may: for people.
    pub fn told(&self) -> Vec<String> {
        let capabilities = self.target.capabilities();
        let kinds: Vec<&str> = capabilities.kinds.iter().map(|kind| kind.name()).collect();
        let mut told = vec![
            format!("cluster {} on {}: it can {}", self.config.cluster, capabilities.name, kinds.join(", ")),
            format!("policy  {}", self.executor.policy().name),
            format!("switch  {}", self.control.told().unwrap_or_else(|e| format!("cannot be read: {e}"))),
        ];
        told.extend(self.beside.iter().cloned());
        told.push(match &self.signers {
            Some(signers) => format!("signers {}", signers.told()),
            None => {
                "signers none: policies and approvals count unsigned, an approval by its login".to_owned()
            }
        });
        told.extend(capabilities.lacking.iter().map(|lacking| format!("lacks   {lacking}")));
        told
    }

    async fn learn(&mut self, service: &QueryService) -> Result<usize, CommandError> {
        #[derive(Deserialize)]
        struct Hour {
            at_us: i64,
            pool: String,
            team: String,
            gpus: f64,
        }
        let cluster = crate::commands::quoted(&self.config.cluster);
        let hours: Vec<Hour> = ask(
            service,
            &format!(
                "SELECT CAST(window_start AS BIGINT) AS at_us, pool, team, \
                 CAST(sum(gpu_ms_held + gpu_ms_queued) AS DOUBLE) / 3600000 AS gpus FROM usage_1h \
                 WHERE cluster = {cluster} AND pool IS NOT NULL AND team IS NOT NULL \
                 AND window_start >= now() - INTERVAL '{LEARNED_DAYS} days' GROUP BY window_start, pool, team ORDER BY 1, 2, 3"
            ),
        )
        .await?;
        for Hour { at_us, pool, team, gpus } in &hours {
            let of = Series { owner: team, pool };
            (0..6).for_each(|step| {
                self.executor.learn(|forecast| forecast.past().observe(of, at_us + step * 600_000_000, *gpus))
            });
        }
        Ok(hours.len())
    }

    /// Lets the forecast learn from the tables, if they have something; that they have not is said.
    pub async fn learn_from(&mut self, service: &QueryService) {
        match self.learn(service).await {
            Ok(hours) => tracing::info!("the forecast has learned from {hours} hours of teams and pools"),
            Err(error) => {
                tracing::warn!("the forecast begins with nothing: {}", crate::commands::chain(error.as_ref()))
            }
        }
    }

    /// Runs until told to stop; with `once` a single look. `metrics` show how it does.
    ///
    /// # Errors
    /// The log is broken for good. That it cannot be reached for a while is waited for.
    pub fn run(
        mut self,
        stopped: &watch::Receiver<bool>,
        once: bool,
        metrics: &Metrics,
    ) -> Result<(), CommandError> {
        let mut role = None;
        while !*stopped.borrow() {
            let given = self.control.approved();
            // Before the first look nothing is known of what was decided, and no signature can be
            // checked.
            let looks = matches!(role, Some(Role::Leading { .. }));
            let approved = self.judged(&given, looks);
            let now_us = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?;
            let Self { forecasts, executor, .. } = &mut self;
            executor.learn(|forecast| {
                // What is known of it grows old meanwhile, and is not used then.
                if let Err(error) = forecasts.read(forecast.published()) {
                    tracing::warn!("published forecasts cannot be read: {error}");
                }
            });
            let control = &self.control;
            match self.executor.step(&mut self.target, &mut || control.switch(), &approved, now_us) {
                Ok(stepped) => {
                    if matches!(stepped.role, Role::Leading { .. }) {
                        if self.signers.is_none() || looks {
                            control.took_up(&given);
                        }
                        if let Some(pager) = &self.pager {
                            pager.tell(self.executor.state().slo.firing().cloned().collect());
                        }
                    }
                    metrics
                        .observe_autopilot(&self.kept(matches!(stepped.role, Role::Leading { .. }), now_us));
                    tell(&stepped, &mut role);
                }
                Err(error) => tracing::warn!("the autopilot waits, and begins nothing: {error}"),
            }
            if once {
                break;
            }
            wait(Duration::from_secs(self.config.look_every_s), stopped);
        }
        Ok(())
    }

    /// How it does, for monitoring.
    fn kept(&self, acts: bool, now_us: i64) -> AutopilotKept {
        let standings = self.executor.state().slo.status(&self.executor.policy().slo, now_us);
        let kept = |standing: &ObjectiveStatus| ObjectiveKept {
            objective: standing.series.objective.name(),
            kind: standing.series.kind.map_or("all", |kind| kind.name()),
            attained_ppm: standing.attained_ppm,
            budget_left_ppm: standing.budget_left_ppm,
            burn_rate_milli: standing.burn_rate_milli,
            alerts: standing.burning.iter().map(|burn| burn.severity()).collect(),
        };
        AutopilotKept {
            cluster: self.config.cluster.clone(),
            stepped_s: now_us.div_euclid(1_000_000),
            acts,
            objectives: standings.iter().map(kept).collect(),
        }
    }

    /// Approvals that count, with who gave them. Where they are signed, those that do not count are
    /// noted with the reason.
    fn judged(&mut self, given: &[Approval], looks: bool) -> Vec<(ActionId, String)> {
        if let Some(why) = self.pager.as_ref().and_then(Pager::trouble) {
            tracing::warn!(
                "the pager does not take what it is told, and is asked again until it does: {why}"
            );
        }
        let Some(signers) = &self.signers else {
            return given.iter().map(|approval| (approval.action.clone(), approval.by.clone())).collect();
        };
        let mut counted = Vec::new();
        for approval in given.iter().filter(|_| looks) {
            let action = &approval.action;
            let known = self.executor.state();
            let plan = known.intents.get(action).map(|intent| intent.plan.clone());
            // A canary is started anew the same way.
            let begun = known.canaries.get(action).map(|stands| stands.beginning());
            let Some(about) = plan.clone().or(begun) else {
                tracing::warn!("{action} was approved by {}, and nobody decided on it", approval.by);
                continue;
            };
            match signers.approval(approval, &self.config.cluster, &about, chrono::Utc::now()) {
                Ok(signer) => counted.push((action.clone(), signer.to_string())),
                Err(why) => {
                    tracing::warn!("the approval of {action} by {} does not count: {why}", approval.by);
                    if plan.is_none() {
                        continue;
                    }
                    let transition = Transition::ApprovalRefused { by: approval.by.clone(), why };
                    // When and by whose lease is written where it is recorded.
                    let event = IntentEvent { action: action.clone(), at_us: 0, generation: 0, transition };
                    self.executor.record_when_leading(JournalEvent::Step(Box::new(event)));
                }
            }
        }
        counted
    }

    /// Runs on a thread of its own. That it fails stops nothing else, and is said.
    pub fn spawn(self, stopped: watch::Receiver<bool>, metrics: Arc<Metrics>) -> JoinHandle<()> {
        std::thread::spawn(move || {
            if let Err(error) = self.run(&stopped, false, &metrics) {
                tracing::error!(
                    "the autopilot has stopped, all else goes on: {}",
                    crate::commands::chain(error.as_ref())
                );
            }
        })
    }
}

/// The policy that acted last on the cluster by its journal; before the first one the shipped,
/// which acts nowhere.
fn last_policy(log: &Arc<dyn EventLog>, cluster: &str) -> Result<Policy, CommandError> {
    let mut known = ExecutorState::default();
    LogJournal::open(Arc::clone(log), cluster, "")?.read()?.into_iter().for_each(|entry| known.fold(entry));
    Ok(known.policy.unwrap_or_else(Policy::shipped))
}

fn tell(stepped: &StepReport, before: &mut Option<Role>) {
    let StepReport { role, planned, steps, observe_error: blind } = stepped;
    if before.as_ref() != Some(role) {
        match role {
            Role::Leading { generation } => say!("holds the lease, generation {generation}"),
            // Whoever holds it renews it all the time.
            Role::Standby(_) if matches!(before, Some(Role::Standby(_))) => {}
            Role::Standby(held) => {
                say!("waits: {} holds the lease, generation {}", held.holder, held.generation)
            }
            Role::Fenced => say!("another took the lease: it begins nothing"),
        }
        *before = Some(role.clone());
    }
    if let Some((plan, decisions)) = planned {
        say!("plan {plan}: {decisions} decisions");
    }
    for (action, what) in steps {
        say!("  {action} {what}");
    }
    if let Some(error) = blind {
        tracing::warn!("the cluster cannot be seen, nothing is begun: {error}");
    }
}

fn wait(time: Duration, stopped: &watch::Receiver<bool>) {
    const PIECE: Duration = Duration::from_millis(50);
    let mut waited = Duration::ZERO;
    while waited < time && !*stopped.borrow() {
        std::thread::sleep(PIECE);
        waited += PIECE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_can_be_used() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/autopilot/slurm.toml");
        let config = Config::read(Path::new(file)).unwrap();
        assert_eq!(config.policy().unwrap().name, "default");
    }

    #[test]
    fn what_a_file_says_that_cannot_be_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("autopilot.toml");
        for (text, said) in [
            ("policy = \"auto\"\n[slurm]\n", "cluster"),
            ("cluster = \"c\"\n", "add a [slurm] section"),
            ("cluster = \"c\"\nlook_every_s = 20\n[slurm]\n", "outlast three looks"),
            ("cluster = \"c\"\nleas_s = 20\n[slurm]\n", "leas_s"),
            ("cluster = \"c\"\n[slurm]\ncommand_ms = 0\n", "command_ms is 0"),
            ("cluster = \"c\"\n[pager]\n[slurm]\n", "takes one of url, url_file and url_env"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Config::read(&file).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("autopilot.toml"), "{text}: {error}");
        }
        std::fs::write(&file, "cluster = \"c\"\npolicy = \"own.toml\"\n[slurm]\n").unwrap();
        let config = Config::read(&file).unwrap();
        assert!(config.policy().unwrap_err().to_string().contains("own.toml"));
        std::fs::write(folder.path().join("own.toml"), "name = \"own\"\n").unwrap();
        assert_eq!(config.policy().unwrap().name, "own");
        // What it tries beside itself stands beside it, and is named by whoever cannot find it.
        let own = "name = \"own\"\n[shadow]\npolicy = \"auto\"\n[canary]\npolicy = \"next.toml\"\nowners = [\"a\"]\n";
        std::fs::write(folder.path().join("own.toml"), own).unwrap();
        let tried = |config: &Config| config.tried(&mut config.policy().unwrap());
        let error = tried(&config).unwrap_err().to_string();
        assert!(error.contains("own.toml: canary.policy") && error.contains("next.toml"), "{error}");
        std::fs::write(folder.path().join("next.toml"), "name = \"next\"\n").unwrap();
        let found = tried(&config).unwrap();
        let names = (found.shadow.map(|policy| policy.name), found.canary.map(|canary| canary.policy.name));
        assert_eq!(names, (Some("auto".to_owned()), Some("next".to_owned())));
        let found = tried(&config.clone().shadowed_by(Some("default".to_owned()))).unwrap();
        assert_eq!(found.shadow.unwrap().name, "default");
        let mine = folder.path().join("own.toml").display().to_string();
        assert!(tried(&config.shadowed_by(Some(mine))).unwrap_err().to_string().contains("--shadow"));
    }

    #[test]
    fn where_signers_are_named_a_policy_takes_their_signatures() {
        let carried = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../control/tests/fixtures/authority"));
        let folder = tempfile::tempdir().unwrap();
        let copy = |name: &str| std::fs::copy(carried.join(name), folder.path().join(name)).unwrap();
        for name in ["policy.toml", "allowed_signers", "policy.toml.anna.sig"] {
            copy(name);
        }
        let file = folder.path().join("autopilot.toml");
        let config = |policy: &str| {
            let text = format!(
                "cluster = \"c\"\npolicy = \"{policy}\"\n[authority]\nsigners = \"allowed_signers\"\n[slurm]\n"
            );
            std::fs::write(&file, text).unwrap();
            Config::read(&file).unwrap()
        };
        let signers = config("policy.toml").signers().unwrap().unwrap();
        let taken = |policy: &str| config(policy).signed_policy(&signers, &Policy::shipped());
        // It lends more often than the shipped policy.
        assert!(taken("policy.toml").unwrap_err().to_string().contains("two people"));
        copy("policy.toml.ben.sig");
        let (policy, taken_by) = taken("policy.toml").unwrap();
        assert_eq!((policy.name.as_str(), taken_by.signed_by.len()), ("night", 2));
        assert!(taken("auto").unwrap_err().to_string().contains("nobody signed it"));
        // So does one that acts for some owners only, against the policy beside it.
        let canary = |name: &str, canary: &Policy| {
            config("site.toml").signed_canary(&signers, name, canary, &Policy::shipped())
        };
        canary("policy.toml", &policy).unwrap();
        assert!(canary("auto", &Policy::auto()).unwrap_err().to_string().contains("nobody signed it"));
        std::fs::write(folder.path().join("next.toml"), "name = \"next\"\n").unwrap();
        let next = Policy::parse("name = \"next\"\n").unwrap();
        assert!(canary("next.toml", &next).unwrap_err().to_string().contains("ssh-keygen -Y sign"));
        let another = canary("next.toml", &policy).unwrap_err().to_string();
        assert!(another.contains("start again"), "{another}");
        std::fs::remove_file(folder.path().join("allowed_signers")).unwrap();
        assert!(config("policy.toml").signers().unwrap_err().to_string().contains("allowed_signers"));
    }
}
