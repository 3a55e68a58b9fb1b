//! Slurm's names of states: of jobs, and of nodes.

use tidegate_events::FinalState;

/// What a job's state says of its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It holds none.
    Waiting,
    /// It has its nodes, and they are being made ready: its start may still be moved.
    Starting,
    /// It runs.
    Running,
    /// It is stopped for a while and holds them.
    Suspended,
    /// It gives its devices back; how it ended is not final.
    Ending,
    /// It ended so.
    Over(FinalState),
}

/// What a state's name means; none for a name that is not known.
pub(crate) fn phase(name: &str) -> Option<Phase> {
    use FinalState as F;
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

/// What a job in the queue is in by all the names it carries: a base state, and flags that go
/// before it.
///
/// A name that is not known is taken for an end that is not final: nothing is said of it until it
/// is.
///
/// In the queue `REQUEUED`, `REQUEUE_HOLD`, `SPECIAL_EXIT` are flags of a job that waits again, and
/// `RESIZING` of one that runs.
pub fn phase_in_queue(names: &[String]) -> Phase {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has("COMPLETING") {
        return Phase::Ending;
    }
    if has("CONFIGURING") || has("POWER_UP_NODE") {
        return Phase::Starting;
    }
    if let Some(base) = names.iter().find(|name| !is_flag(name)) {
        return phase(base).unwrap_or(Phase::Ending);
    }
    if has("RESIZING") || has("SIGNALING") || has("STAGE_OUT") || has("STOPPED") {
        Phase::Running
    } else if has("REQUEUE_HOLD") || has("SPECIAL_EXIT") {
        Phase::Waiting
    } else if has("REVOKED") {
        Phase::Over(FinalState::Cancelled)
    } else {
        // What is on its way back to the queue is not through with its devices until it is there.
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

/// A node's state without what changes with every job: `UP` stands for idle, mixed and allocated.
///
/// `MIXED+DRAIN` is `UP+DRAIN`, `DOWN*` is `DOWN+NOT_RESPONDING`.
pub(super) fn node_state(text: &str) -> String {
    let mut parts = text.split('+');
    let base = parts.next().unwrap_or_default();
    let name = base.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut state = match name {
        "IDLE" | "MIXED" | "ALLOCATED" => "UP".to_owned(),
        other => other.to_owned(),
    };
    let mut flags: Vec<&str> = parts.filter(|flag| !matches!(*flag, "PLANNED" | "COMPLETING")).collect();
    for mark in base[name.len()..].chars() {
        flags.push(match mark {
            '*' => "NOT_RESPONDING",
            '$' => "MAINTENANCE",
            '~' => "POWERED_DOWN",
            '#' => "POWERING_UP",
            '%' => "POWERING_DOWN",
            '!' => "POWER_DOWN",
            '@' => "REBOOT_REQUESTED",
            '^' => "REBOOT_ISSUED",
            _ => continue,
        });
    }
    flags.sort_unstable();
    flags.dedup();
    for flag in flags {
        state.push('+');
        state.push_str(flag);
    }
    state
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn states_of_nodes_do_not_change_with_jobs() {
        let cases = [
            ("IDLE", "UP"),
            ("MIXED+PLANNED", "UP"),
            ("ALLOCATED+COMPLETING", "UP"),
            ("IDLE+DRAIN", "UP+DRAIN"),
            ("DOWN*", "DOWN+NOT_RESPONDING"),
            ("IDLE~", "UP+POWERED_DOWN"),
            ("DOWN*+DRAIN", "DOWN+DRAIN+NOT_RESPONDING"),
        ];
        for (text, expected) in cases {
            assert_eq!(node_state(text), expected, "{text}");
        }
    }
}
