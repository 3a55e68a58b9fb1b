//! Asking Slurm: each question within a time, each answer judged.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_autopilot::target::TargetError;
use tidegate_slurm::{CommandError, SlurmClient, submitted_job};

use super::config::{SlurmConfig, is_word};

/// Name of this target in errors.
pub(super) const SLURM: &str = "slurm";

/// Slurm, to be asked and told.
#[derive(Debug, Clone)]
pub(super) struct Slurm {
    pub client: SlurmClient,
}

/// Why a change was not made, before it is known what that means.
#[derive(Debug)]
pub(super) enum Failed {
    /// Slurm's own words; whether anything was done is to be looked at.
    Said(String),
    /// Slurm was not reached: nothing was done.
    Away(String),
    /// It took too long: it may have been done.
    Hung(String),
}

/// Microseconds since 1970 now.
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

/// Why a question was not answered.
pub(super) fn unanswered(error: CommandError) -> TargetError {
    match error {
        CommandError::Unusable { .. } => unknown(error.to_string()),
        _ => unreachable(error.to_string()),
    }
}

impl Failed {
    pub(super) fn of(error: CommandError) -> Self {
        match &error {
            CommandError::Spawn { .. } => Self::Away(error.to_string()),
            CommandError::TimedOut { .. } | CommandError::Unusable { .. } => Self::Hung(error.to_string()),
            CommandError::Failed { .. } if error.is_connection_failure() => Self::Away(error.to_string()),
            CommandError::Failed { .. } => Self::Said(error.to_string()),
        }
    }

    /// As an error, where nothing of the change is there.
    pub(super) fn as_error(&self, action: &str) -> TargetError {
        match self {
            Self::Said(why) => refused(action, why.clone()),
            Self::Away(why) => unreachable(why.clone()),
            Self::Hung(why) => unknown(why.clone()),
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
        };
        Self { client }
    }

    /// Whether slurmctld is there: other programs try for seconds.
    pub(super) fn reach(&self) -> Result<(), TargetError> {
        match self.client.ping() {
            Ok(ping) if ping.is_up => Ok(()),
            Ok(ping) => Err(unreachable(format!("slurmctld does not answer: {}", ping.message))),
            Err(error) => Err(unreachable(format!("slurmctld does not answer: {error}"))),
        }
    }

    /// Tells Slurm to change something.
    pub(super) fn tell(&self, program: &str, args: &[&str]) -> Result<String, Failed> {
        self.client.text(program, args).map_err(Failed::of)
    }

    /// Submits a script with its environment and nothing of ours; says the number of the job.
    pub(super) fn submit(
        &self,
        args: &[String],
        script: &str,
        env: &[(&str, &str)],
    ) -> Result<String, Failed> {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let answer = self.client.submit(&args, script, env).map_err(Failed::of)?;
        let job = submitted_job(&answer).to_owned();
        if is_word(&job) { Ok(job) } else { Err(Failed::Hung(format!("sbatch gave no job but {answer:?}"))) }
    }
}
