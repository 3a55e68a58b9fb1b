//! Names of job states.

use tidegate_events::FinalState;

/// Phase of a job: what its state means for its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPhase {
    /// Pending; holds no devices.
    Waiting,
    /// Holds its nodes, which are being prepared. Its start time may still move.
    Starting,
    /// Running.
    Running,
    /// Suspended; keeps its devices.
    Suspended,
    /// Releasing its devices; its final state may still change.
    Ending,
    /// Ended in this state.
    Over(FinalState),
}

/// Phase of a state that accounting prints; `None` for an unknown name.
pub(crate) fn phase_in_accounting(name: &str) -> Option<JobPhase> {
    use FinalState as F;
    use JobPhase as Phase;
    let over = match name {
        "PENDING" => return Some(Phase::Waiting),
        "CONFIGURING" => return Some(Phase::Starting),
        "RUNNING" | "SIGNALING" | "STAGE_OUT" | "STOPPED" => return Some(Phase::Running),
        "SUSPENDED" => return Some(Phase::Suspended),
        "COMPLETING" => return Some(Phase::Ending),
        "COMPLETED" => F::Completed,
        "FAILED" | "LAUNCH_FAILED" | "RECONFIG_FAIL" | "SPECIAL_EXIT" => F::Failed,
        "CANCELLED" | "REVOKED" => F::Cancelled,
        "TIMEOUT" | "DEADLINE" => F::Timeout,
        "NODE_FAIL" | "BOOT_FAIL" => F::NodeFail,
        "OUT_OF_MEMORY" => F::OutOfMemory,
        "PREEMPTED" => F::Preempted,
        "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" => F::Requeued,
        "RESIZING" => F::Resized,
        name if name.starts_with("CANCELLED by ") => F::Cancelled,
        _ => return None,
    };
    Some(Phase::Over(over))
}

/// Phase of a job in the queue, from all its state names: one base state, and flags that take
/// precedence over it.
///
/// An unknown name counts as [`JobPhase::Ending`]: nothing is concluded until the job shows a name
/// that is known.
///
/// In the queue, `REQUEUED`, `REQUEUE_HOLD` and `SPECIAL_EXIT` are flags of a job that waits again,
/// and `RESIZING` is one of a running job.
pub(crate) fn phase_in_queue(names: &[String]) -> JobPhase {
    use JobPhase as Phase;
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has("COMPLETING") {
        return Phase::Ending;
    }
    if has("CONFIGURING") || has("POWER_UP_NODE") {
        return Phase::Starting;
    }
    if let Some(base) = names.iter().find(|name| !is_flag(name)) {
        return phase_in_accounting(base).unwrap_or(Phase::Ending);
    }
    if has("RESIZING") || has("SIGNALING") || has("STAGE_OUT") || has("STOPPED") {
        Phase::Running
    } else if has("REQUEUE_HOLD") || has("SPECIAL_EXIT") {
        Phase::Waiting
    } else if has("REVOKED") {
        Phase::Over(FinalState::Cancelled)
    } else {
        // A job on its way back to the queue holds its devices until it is there.
        Phase::Ending
    }
}

fn is_flag(name: &str) -> bool {
    matches!(
        name,
        "RESIZING"
            | "SIGNALING"
            | "STAGE_OUT"
            | "STOPPED"
            | "REVOKED"
            | "REQUEUED"
            | "REQUEUE_FED"
            | "REQUEUE_HOLD"
            | "SPECIAL_EXIT"
            | "LAUNCH_FAILED"
            | "RECONFIG_FAIL"
            | "POWER_UP_NODE"
            | "RECONFIGURING"
            | "UPDATE_DB"
            | "STAGING"
            | "EXPEDITING"
            | "HOLD"
    )
}

#[cfg(test)]
mod tests {
    use super::JobPhase as Phase;
    use super::*;

    #[test]
    fn flags_go_before_states() {
        let names = |text: &str| text.split('+').map(str::to_owned).collect::<Vec<_>>();
        let cases = [
            ("RUNNING", Phase::Running),
            ("RUNNING+COMPLETING", Phase::Ending),
            ("RUNNING+CONFIGURING", Phase::Starting),
            ("RUNNING+RESIZING", Phase::Running),
            ("RESIZING", Phase::Running),
            ("PENDING+REQUEUED", Phase::Waiting),
            ("REQUEUED", Phase::Ending),
            ("REQUEUE_HOLD", Phase::Waiting),
            ("COMPLETED", Phase::Over(FinalState::Completed)),
            ("DANCING", Phase::Ending),
        ];
        for (text, expected) in cases {
            assert_eq!(phase_in_queue(&names(text)), expected, "{text}");
        }
    }
}
