//! Policies from files, and the rollout candidates that a policy names.

use std::path::Path;

use tidegate_autopilot::policy::{NAMED, Policy};
use tidegate_autopilot::rollout::Rollout;

use crate::error::ServiceError;

/// Reads a policy file, laid over the shipped policy.
///
/// # Errors
/// The file cannot be read, or a key of it is wrong.
pub fn read_policy(file: &Path) -> Result<Policy, ServiceError> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("read {}: {e}", file.display()))?;
    parse_policy(file, &text)
}

/// Parses the text of a policy file; `file` is for messages.
pub(crate) fn parse_policy(file: &Path, text: &str) -> Result<Policy, ServiceError> {
    Policy::parse(text).map_err(|e| format!("{}: {e}", file.display()).into())
}

/// The policy of that name that comes with the program, or else of that file.
///
/// # Errors
/// As for [`read_policy`].
pub fn find_policy(name: &str) -> Result<Policy, ServiceError> {
    match Policy::named(name) {
        Some(policy) => Ok(policy),
        None if !Path::new(name).exists() => {
            let shipped = NAMED.map(|(name, _)| name).join(", ");
            let why = format!(
                "there is no policy {name}: it is neither a file nor one of those shipped, which are {shipped}"
            );
            Err(why.into())
        }
        None => read_policy(Path::new(name)),
    }
}

/// Takes the rollout candidates, shadow and canary, out of a policy that was read from `file`. The
/// policy gives their names, or files beside it.
///
/// # Errors
/// A candidate cannot be read, or does not fit the policy.
pub fn take_rollout(policy: &mut Policy, file: &Path) -> Result<Rollout, ServiceError> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let found = Rollout::from_policy(policy, |name| match Policy::named(name) {
        Some(policy) => Ok(policy),
        None => read_policy(&folder.join(name)).map_err(|e| e.to_string()),
    });
    found.map_err(|e| format!("{}: {e}", file.display()).into())
}
