//! Names of node states.

use std::collections::BTreeSet;

/// State of a node: one base state and any number of flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeState {
    base: String,
    flags: BTreeSet<String>,
}

/// Whether a node can run jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// Idle or in use.
    Up,
    /// Down, failed, not responding, or powered down.
    Down,
    /// No state that this crate knows.
    Unknown,
}

impl NodeState {
    /// Parses the text of `scontrol`: `MIXED+DRAIN`, `DOWN*`.
    pub fn parse(text: &str) -> Self {
        let mut parts = text.split('+');
        let printed = parts.next().unwrap_or_default();
        let base = printed.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let mut flags: BTreeSet<String> = parts.map(str::to_owned).collect();
        for mark in printed[base.len()..].chars() {
            let flag = match mark {
                '*' => "NOT_RESPONDING",
                '$' => "MAINTENANCE",
                '~' => "POWERED_DOWN",
                '#' => "POWERING_UP",
                '%' => "POWERING_DOWN",
                '!' => "POWER_DOWN",
                '@' => "REBOOT_REQUESTED",
                '^' => "REBOOT_ISSUED",
                _ => continue,
            };
            flags.insert(flag.to_owned());
        }
        Self { base: base.to_owned(), flags }
    }

    /// From the names of `sinfo --json`, in any case: `state` first, then `state_flags`.
    pub(crate) fn from_names<'a>(names: impl IntoIterator<Item = &'a String>) -> Self {
        let mut names = names.into_iter().map(|name| name.to_uppercase());
        Self { base: names.next().unwrap_or_default(), flags: names.collect() }
    }

    fn has(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.base == *name || self.flags.contains(*name))
    }

    /// Whether the node can run jobs, drained or not.
    pub fn availability(&self) -> Availability {
        let down = [
            "DOWN",
            "FAIL",
            "ERROR",
            "NOT_RESPONDING",
            "INVALID_REG",
            "POWERED_DOWN",
            "POWERING_DOWN",
            "POWER_DOWN",
        ];
        if self.has(&down) {
            Availability::Down
        } else if self.has(&["IDLE", "MIXED", "ALLOCATED", "COMPLETING"]) {
            Availability::Up
        } else {
            Availability::Unknown
        }
    }

    /// Whether the node is drained or being drained.
    pub fn is_draining(&self) -> bool {
        self.has(&["DRAIN", "DRAINING", "DRAINED", "FAIL"])
    }

    /// The state without what changes with every job: `UP` stands for idle, mixed and allocated.
    ///
    /// `MIXED+DRAIN` is `UP+DRAIN`, `DOWN*` is `DOWN+NOT_RESPONDING`. Flags are sorted.
    pub fn administrative(&self) -> String {
        let mut state = match self.base.as_str() {
            "IDLE" | "MIXED" | "ALLOCATED" => "UP".to_owned(),
            other => other.to_owned(),
        };
        for flag in self.flags.iter().filter(|flag| !matches!(flag.as_str(), "PLANNED" | "COMPLETING")) {
            state.push('+');
            state.push_str(flag);
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(NodeState::parse(text).administrative(), expected, "{text}");
        }
    }
}
