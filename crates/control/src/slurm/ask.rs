//! Runs Slurm's commands for the target, and maps their failures to target errors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_autopilot::target::TargetError;
use tidegate_slurm::{CommandError, SlurmClient, submitted_job};

use super::config::{SlurmConfig, is_word};

/// Name of this target in errors.
pub(super) const SLURM: &str = "slurm";

/// Access to Slurm: queries by `client`, changes by [`Slurm::run`].
#[derive(Debug, Clone)]
pub(super) struct Slurm {
    pub client: SlurmClient,
}

/// Why a command that changes something failed; the caller decides what that means.
#[derive(Debug)]
pub(super) enum ChangeError {
    /// Slurm refused, in its own words; part of the change may have been made.
    Rejected(String),
    /// Slurm was not reached: nothing was changed.
    Unreachable(String),
    /// It took too long: the change may have been made.
    Unknown(String),
}

/// Current time, microseconds since 1970.
pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn unreachable(why: impl Into<String>) -> TargetError {
    TargetError::Unreachable { target: SLURM.to_owned(), why: why.into() }
}

pub(super) fn unknown(why: impl Into<String>) -> TargetError {
    TargetError::Unknown { target: SLURM.to_owned(), why: why.into() }
}

/// Maps the failure of a query.
pub(super) fn unanswered(error: CommandError) -> TargetError {
    match error {
        CommandError::Unusable { .. } | CommandError::TooLong { .. } => unknown(error.to_string()),
        _ => unreachable(error.to_string()),
    }
}

impl ChangeError {
    pub(super) fn from_command(error: CommandError) -> Self {
        match &error {
            CommandError::Spawn { .. } => Self::Unreachable(error.to_string()),
            CommandError::TimedOut { .. } | CommandError::TooLong { .. } | CommandError::Unusable { .. } => {
                Self::Unknown(error.to_string())
            }
            CommandError::Failed { .. } if error.is_connection_failure() => {
                Self::Unreachable(error.to_string())
            }
            CommandError::Failed { .. } => Self::Rejected(error.to_string()),
        }
    }

    /// The target error, if nothing of the change is in effect.
    pub(super) fn as_error(&self, action: &str) -> TargetError {
        match self {
            Self::Rejected(why) => refused(action, why.clone()),
            Self::Unreachable(why) => unreachable(why.clone()),
            Self::Unknown(why) => unknown(why.clone()),
        }
    }
}

pub(super) fn refused(action: &str, why: impl Into<String>) -> TargetError {
    TargetError::Refused { target: SLURM.to_owned(), action: action.to_owned(), why: why.into() }
}

impl Slurm {
    pub(super) fn new(config: &SlurmConfig) -> Self {
        let client = SlurmClient {
            folder: config.programs.clone(),
            conf: config.conf.clone(),
            time_limit: Duration::from_millis(config.command_ms),
            most_bytes: SlurmClient::MOST_BYTES,
        };
        Self { client }
    }

    /// Checks that slurmctld answers; other programs keep trying for seconds when it does not.
    pub(super) fn reach(&self) -> Result<(), TargetError> {
        match self.client.ping() {
            Ok(ping) if ping.is_up => Ok(()),
            Ok(ping) => Err(unreachable(format!("slurmctld does not answer: {}", ping.message))),
            Err(error) => Err(unreachable(format!("slurmctld does not answer: {error}"))),
        }
    }

    /// Runs a command that changes something.
    pub(super) fn run(&self, program: &str, args: &[&str]) -> Result<String, ChangeError> {
        self.client.text(program, args).map_err(ChangeError::from_command)
    }

    /// Submits a script with this environment and nothing of ours; returns the job's id.
    pub(super) fn submit(
        &self,
        args: &[String],
        script: &str,
        env: &[(&str, &str)],
    ) -> Result<String, ChangeError> {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let answer = self.client.submit(&args, script, env).map_err(ChangeError::from_command)?;
        let job = submitted_job(&answer).to_owned();
        if is_word(&job) {
            Ok(job)
        } else {
            Err(ChangeError::Unknown(format!("sbatch gave no job id but {answer:?}")))
        }
    }
}
