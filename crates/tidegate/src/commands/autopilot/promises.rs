//! Promises to owners, as `tidegate autopilot record` shows them.

use serde::Serialize;
use tidegate_autopilot::executor::PlanRecord;
use tidegate_autopilot::promise::{breach, unmet_limit_ms, wait_limit_ms};
use tidegate_autopilot::state::{Owner, Waits};

/// How the promise to one owner stands.
#[derive(Debug, Serialize)]
pub struct Line {
    owner: String,
    /// `kept`, `broken`, or `unknown` if too few waits are known.
    promise: &'static str,
    waits: Option<Waits>,
    waits_before: Option<Waits>,
    wait_limit_ms: Option<i64>,
    unmet_ms: i64,
    unmet_limit_ms: i64,
    why: Option<String>,
}

/// Promises as a plan found them, by its own policy.
pub fn lines(planned: PlanRecord) -> Vec<Line> {
    let (rules, state) = (planned.policy.promise, planned.state);
    let line = |(name, owner): (&String, &Owner)| {
        let why = breach(&rules, name, owner);
        let limit_ms = wait_limit_ms(&rules, name, owner);
        let is_known = limit_ms.is_some() && owner.waits.is_some_and(|waits| waits.jobs >= rules.least_jobs);
        let promise = match why {
            Some(_) => "broken",
            None if is_known => "kept",
            None => "unknown",
        };
        Line {
            owner: name.clone(),
            promise,
            waits: owner.waits,
            waits_before: owner.promise.and_then(|promise| promise.before),
            wait_limit_ms: limit_ms,
            unmet_ms: owner.promise.map_or(0, |promise| promise.unmet_ms),
            unmet_limit_ms: unmet_limit_ms(&rules, name),
            why,
        }
    };
    state.owners.iter().map(line).collect()
}

/// Prints the promises as a table.
pub fn print(lines: &[Line]) {
    if lines.is_empty() {
        return;
    }
    say!("");
    say!(
        "{:20}{:>9}{:>22}{:>14}{:>14}{:>26}",
        "owner",
        "promise",
        "95 % wait, min (jobs)",
        "before",
        "promised",
        "lacked what it lent, min"
    );
    for line in lines {
        let minutes = |ms: i64| ms as f64 / 60_000.0;
        let shown = |waits: Option<Waits>| {
            waits.map_or("unknown".to_owned(), |waits| {
                format!("{:.1} ({})", minutes(waits.p95_ms), waits.jobs)
            })
        };
        let promised = line.wait_limit_ms.map_or("unknown".to_owned(), |ms| format!("{:.1}", minutes(ms)));
        let unmet = format!("{:.1} of {:.1}", minutes(line.unmet_ms), minutes(line.unmet_limit_ms));
        let (now, before) = (shown(line.waits), shown(line.waits_before));
        say!("{:20}{:>9}{now:>22}{before:>14}{promised:>14}{unmet:>26}", line.owner, line.promise);
    }
    for (owner, why) in lines.iter().filter_map(|line| Some((&line.owner, line.why.as_ref()?))) {
        say!("{owner}: {why}; nothing more is taken from it");
    }
}
