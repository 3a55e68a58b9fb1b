//! The loop on a real cluster: look, plan, act, every few seconds, until told to stop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use tidegate_actuator::slurm::{SlurmConfig, SlurmTarget};
use tidegate_actuator::{Control, Informed, LogForecasts, LogJournal};
use tidegate_autopilot::actuator::{Actuator, Role, Settings, Stepped};
use tidegate_autopilot::candidate::{Candidates, fits};
use tidegate_autopilot::forecast::{Chosen, Series};
use tidegate_autopilot::intent::Limits;
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::target::Target;
use tidegate_log::EventLog;
use tidegate_server::QueryService;
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
    #[serde(skip)]
    folder: PathBuf,
    /// Policy that only thinks, by name or file, instead of the policy's own.
    #[serde(skip)]
    shadow: Option<String>,
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
    fn tried(&self, policy: &mut Policy) -> Result<Candidates, CommandError> {
        let mut tried = policy::candidates(policy, &self.folder.join(&self.policy))?;
        if let Some(name) = &self.shadow {
            let shadow = policy::named(name)?;
            fits(policy, &shadow).map_err(|why| format!("--shadow {name}: {why}"))?;
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
}

/// An autopilot that has looked at its cluster once, ready to run.
pub struct Live {
    config: Config,
    actuator: Actuator<LogJournal, Chosen>,
    forecasts: LogForecasts,
    target: Informed<SlurmTarget>,
    control: Control,
    /// What is tried beside its policy, for people.
    beside: Vec<String>,
}

impl Live {
    /// Opens everything; nothing is changed on the cluster, but that Slurm keeps a held job with the autopilot's notes.
    ///
    /// # Errors
    /// The policy is wrong, the cluster cannot be reached, or the log has no topic for it.
    pub fn open(config: Config, data: &Path, log: &Arc<dyn EventLog>) -> Result<Self, CommandError> {
        let mut policy = config.policy()?;
        let tried = config.tried(&mut policy)?;
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
        let forecast = Chosen::new(policy.forecast, names);
        let forecasts = LogForecasts::new(Arc::clone(log), &config.cluster, begun)?;
        let mut target = Informed::new(slurm, Arc::clone(log), &config.cluster)?;
        let control = Control::of(data);
        let mut beside: Vec<String> =
            tried.shadow.iter().map(|shadow| format!("shadow  {}: it only thinks", shadow.name)).collect();
        if let Some(canary) = &tried.canary {
            canary.known_in(&target.observe()?)?;
            let owners: Vec<&str> = canary.owners.iter().map(String::as_str).collect();
            beside.push(format!("canary  {} for {}", canary.policy.name, owners.join(", ")));
        }
        let actuator = Actuator::new(policy, settings, journal, forecast).beside(tried);
        Ok(Self { actuator, forecasts, target, control, config, beside })
    }

    /// What it can do, by what policy, and whether it may: for people.
    pub fn told(&self) -> Vec<String> {
        let capabilities = self.target.capabilities();
        let kinds: Vec<&str> = capabilities.kinds.iter().map(|kind| kind.name()).collect();
        let mut told = vec![
            format!("cluster {} on {}: it can {}", self.config.cluster, capabilities.name, kinds.join(", ")),
            format!("policy  {}", self.actuator.policy().name),
            format!("switch  {}", self.control.told().unwrap_or_else(|e| format!("cannot be read: {e}"))),
        ];
        told.extend(self.beside.iter().cloned());
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
                self.actuator.learn(|forecast| forecast.past().observe(of, at_us + step * 600_000_000, *gpus))
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

    /// Runs until told to stop; with `once` a single look.
    ///
    /// # Errors
    /// The log is broken for good. That it cannot be reached for a while is waited for.
    pub fn run(mut self, stopped: &watch::Receiver<bool>, once: bool) -> Result<(), CommandError> {
        let mut role = None;
        while !*stopped.borrow() {
            let approved = self.control.approved();
            let now_us = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?;
            let Self { forecasts, actuator, .. } = &mut self;
            actuator.learn(|forecast| {
                // What is known of it grows old meanwhile, and is not used then.
                if let Err(error) = forecasts.read(forecast.published()) {
                    tracing::warn!("published forecasts cannot be read: {error}");
                }
            });
            let control = &self.control;
            match self.actuator.step(&mut self.target, &mut || control.switch(), &approved, now_us) {
                Ok(stepped) => {
                    if matches!(stepped.role, Role::Acts { .. }) {
                        control.took_up(&approved);
                    }
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

    /// Runs on a thread of its own. That it fails stops nothing else, and is said.
    pub fn spawn(self, stopped: watch::Receiver<bool>) -> JoinHandle<()> {
        std::thread::spawn(move || {
            if let Err(error) = self.run(&stopped, false) {
                tracing::error!(
                    "the autopilot has stopped, all else goes on: {}",
                    crate::commands::chain(error.as_ref())
                );
            }
        })
    }
}

fn tell(stepped: &Stepped, before: &mut Option<Role>) {
    let Stepped { role, planned, steps, blind } = stepped;
    if before.as_ref() != Some(role) {
        match role {
            Role::Acts { generation } => say!("holds the lease, generation {generation}"),
            // Whoever holds it renews it all the time.
            Role::Waits(_) if matches!(before, Some(Role::Waits(_))) => {}
            Role::Waits(held) => {
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
}
