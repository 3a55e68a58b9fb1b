//! Checks a whole site for the autopilot: the deployment file and policy, the scheduler, its jobs,
//! and what the log tells. It reads, and changes nothing on the cluster or the log.

mod cluster;
mod deployment;
mod jobs;
mod knowledge;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use tidegate_log::EventLog;

use super::config::ServiceConfig;
use crate::slurm::SlurmTarget;

/// Most names that a check lists.
const LISTED: usize = 8;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is as it should be.
    Ok,
    /// The autopilot works, and would do more or better.
    Warning,
    /// Something that the site asks for cannot work.
    Missing,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub check: &'static str,
    /// Result.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// How to mend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), fix: None }
    }

    fn warning(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), fix: Some(fix.into()) }
    }

    fn missing(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Missing, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Checks the site of a deployment file, whose autopilot uses the folder `data`. `log` is its log,
/// or why that is not at hand: then the newest plan in the folder says what the log told.
pub fn examine(file: &Path, data: &Path, log: Result<&Arc<dyn EventLog>, &str>) -> Vec<Check> {
    let config = match ServiceConfig::read(file) {
        Ok(config) => config,
        Err(error) => {
            let fix = "deploy/autopilot/slurm.toml is an example with every section";
            return vec![Check::missing("deployment", error.to_string(), fix)];
        }
    };
    let mut checks = vec![Check::ok("deployment", file.display().to_string())];
    let (policy, rollout) = deployment::policy(&config, &mut checks).unzip();
    deployment::steering(&config, policy.as_ref(), data, &mut checks);
    let slurm = config.slurm.clone().unwrap_or_default();
    let opened = SlurmTarget::open(slurm.clone()).and_then(|target| Ok((target.survey()?, target)));
    let (survey, target) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let fix = "is slurmctld up (scontrol ping), and do conf and programs of [slurm] name it?";
            checks.push(Check::missing("scheduler", error.to_string(), fix));
            return checks;
        }
    };
    let known = knowledge::gather(&config, policy.as_ref(), data, log, target, &mut checks);
    cluster::check(&config, policy.as_ref(), &survey, known.as_ref(), &mut checks);
    cluster::candidates(&config, &rollout.unwrap_or_default(), &survey, &mut checks);
    jobs::check(&config, &survey, known.as_ref(), &mut checks);
    if let Some(known) = &known {
        knowledge::check(known, &mut checks);
    }
    checks
}

/// The first names of a list, and how many more there are.
fn listed<T: std::fmt::Display>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    let shown = names.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
