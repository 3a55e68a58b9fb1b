//! Deployment file of `tidegate autopilot run`: the cluster, the policy, and who may sign.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::ServiceError;
use crate::pager::PagerConfig;
use crate::slurm::SlurmConfig;

/// Deployment of an autopilot at a site.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// Name of the cluster, as its collectors spell it.
    pub(super) cluster: String,
    /// Policy: a name that comes with the program, or a file beside this one.
    #[serde(default = "default_policy")]
    pub(super) policy: String,
    /// Seconds between two observations of the cluster.
    #[serde(default = "default_look_every_s")]
    pub(super) look_every_s: u64,
    /// Seconds between two plans.
    #[serde(default = "default_plan_every_s")]
    pub(super) plan_every_s: u64,
    /// Seconds that a lease holds without being renewed; another process takes over after that.
    #[serde(default = "default_lease_s")]
    pub(super) lease_s: u64,
    /// The Slurm cluster to act on.
    pub(super) slurm: Option<SlurmConfig>,
    /// Who signs policies and approvals; without it no signature is required.
    pub(super) authority: Option<Authority>,
    /// Where alerts about the autopilot itself go.
    pub(super) pager: Option<PagerConfig>,
    /// Folder of the file.
    #[serde(skip)]
    pub(super) folder: PathBuf,
    /// Shadow policy by name or file, instead of the policy's own.
    #[serde(skip)]
    pub(super) shadow: Option<String>,
}

/// Whose signatures count. This stands here and not in the policy: a policy must not say who may
/// sign it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Authority {
    /// File in OpenSSH's `allowed_signers` format, beside this one.
    pub signers: PathBuf,
    /// Private key with which this process proves its journal entries, beside this one; without it
    /// entries count unproven.
    pub key: Option<PathBuf>,
}

fn default_policy() -> String {
    "default".to_owned()
}

fn default_look_every_s() -> u64 {
    5
}

fn default_plan_every_s() -> u64 {
    60
}

fn default_lease_s() -> u64 {
    30
}

impl ServiceConfig {
    /// Reads and checks a deployment file.
    ///
    /// # Errors
    /// The file cannot be read, is not valid TOML, or contradicts itself.
    pub fn read(file: &Path) -> Result<Self, ServiceError> {
        let at = file.display();
        let text = std::fs::read_to_string(file).map_err(|e| format!("read {at}: {e}"))?;
        let mut config: Self = toml::from_str(&text).map_err(|e| format!("{at}: {e}"))?;
        config.folder = file.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let problems = config.problems();
        match problems.is_empty() {
            true => Ok(config),
            false => Err(format!("{at}: {}", problems.join("; ")).into()),
        }
    }

    fn problems(&self) -> Vec<String> {
        let Some(slurm) = &self.slurm else {
            return vec![
                "it names no cluster to act on; add a [slurm] section, which may be empty".to_owned(),
            ];
        };
        let mut problems = slurm.problems();
        for (name, value) in [
            ("look_every_s", self.look_every_s),
            ("plan_every_s", self.plan_every_s),
            ("lease_s", self.lease_s),
        ] {
            if !(1..=86_400).contains(&value) {
                problems.push(format!("{name} is {value}; use 1 to 86400"));
            }
        }
        if self.lease_s < 3 * self.look_every_s {
            problems.push(format!(
                "lease_s is {} and look_every_s {}: a lease must outlast three looks, or it is lost between two",
                self.lease_s, self.look_every_s
            ));
        }
        problems.extend(self.pager.iter().flat_map(PagerConfig::problems));
        problems
    }

    /// Name of the cluster, as its collectors spell it.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Runs this policy, by name or file, as the shadow instead of the policy's own.
    #[must_use]
    pub fn shadowed_by(self, shadow: Option<String>) -> Self {
        Self { shadow, ..self }
    }
}
