//! Promises to owners: while the autopilot acts nobody's jobs wait longer than before, and nobody
//! lacks for long what it has lent.
//!
//! The wait promised is the 95th percentile of the thirty days before the autopilot first acted,
//! with the slack of `[promise]`, or the one that the policy names. The journal keeps it, so that
//! it cannot drift with what the autopilot does. While a promise is broken the guard takes nothing
//! more from that owner (`guard/promise.rs`); giving back goes on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_units::{Micros, Millis};

use crate::policy::PromiseRules;
use crate::state::{ClusterState, Owner, OwnerName, OwnerPromise, Waits};

const HOUR_US: i64 = 3_600_000_000;
/// Time over which unmet demand counts.
const WINDOW_US: i64 = 30 * 24 * HOUR_US;

/// An entry of the journal about an owner's promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromiseEvent {
    /// The owner.
    pub owner: OwnerName,
    /// What is recorded.
    #[serde(flatten)]
    pub what: Promised,
}

/// What is recorded about a promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "promise", rename_all = "snake_case")]
pub enum Promised {
    /// The owner's waits before the autopilot acts for the first time.
    Before(Waits),
    /// For so long since the last such entry it lacked GPUs that it had lent.
    Unmet {
        /// Time, ms.
        unmet_ms: i64,
    },
    /// Its promise does not hold from now on.
    Broken {
        /// Which one, with numbers.
        why: String,
    },
    /// It holds again.
    Kept,
}

impl PromiseEvent {
    /// The entry in words.
    pub fn describe(&self) -> String {
        let Self { owner, what } = self;
        match what {
            Promised::Before(waits) => format!(
                "before the autopilot first acts, 95 % of the waits of {owner} are within {} ({} jobs)",
                duration(waits.p95_ms),
                waits.jobs
            ),
            Promised::Unmet { unmet_ms } => {
                format!("{owner} lacked GPUs that it had lent, for {}", duration(*unmet_ms))
            }
            Promised::Broken { why } => format!("the promise to {owner} is broken: {why}"),
            Promised::Kept => format!("the promise to {owner} holds again"),
        }
    }
}

/// Promises of all owners, folded from the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Promises {
    /// When an action first began.
    acted_us: Option<i64>,
    before: BTreeMap<OwnerName, Waits>,
    /// Unmet time by owner and hour, ms.
    unmet: BTreeMap<OwnerName, BTreeMap<i64, i64>>,
    broken: BTreeMap<OwnerName, String>,
}

impl Promises {
    /// Folds an entry in. Waits count only before the first action, and the newest of them.
    pub fn fold(&mut self, event: PromiseEvent, at_us: i64) {
        let PromiseEvent { owner, what } = event;
        match what {
            Promised::Before(waits) if self.acted_us.is_none() => {
                self.before.insert(owner, waits);
            }
            Promised::Before(_) => {}
            Promised::Unmet { unmet_ms } => {
                let hour = self.unmet.entry(owner).or_default().entry(at_us.div_euclid(HOUR_US)).or_default();
                *hour = hour.saturating_add(unmet_ms.max(0));
            }
            Promised::Broken { why } => {
                self.broken.insert(owner, why);
            }
            Promised::Kept => {
                self.broken.remove(&owner);
            }
        }
    }

    /// An action began: from here on waits are those under the autopilot.
    pub fn acted(&mut self, at_us: i64) {
        self.acted_us.get_or_insert(at_us);
    }

    /// Whether no action has begun yet.
    pub fn is_before(&self) -> bool {
        self.acted_us.is_none()
    }

    /// Owners whose promise does not hold, with the reason.
    pub fn broken(&self) -> &BTreeMap<OwnerName, String> {
        &self.broken
    }

    /// Forgets unmet time that no longer counts at `now_us`.
    pub fn forget(&mut self, now_us: i64) {
        let oldest = now_us.saturating_sub(WINDOW_US).div_euclid(HOUR_US);
        self.unmet.values_mut().for_each(|hours| hours.retain(|hour, _| *hour >= oldest));
        self.unmet.retain(|_, hours| !hours.is_empty());
    }

    /// Adds to each owner what the journal holds of its promise.
    pub fn annotate(&self, state: &mut ClusterState) {
        let oldest = state.at_us.saturating_sub(WINDOW_US).div_euclid(HOUR_US);
        for (name, owner) in &mut state.owners {
            let hours = self.unmet.get(name).into_iter().flat_map(|hours| hours.range(oldest..));
            let promise = OwnerPromise {
                before: self.before.get(name).copied(),
                unmet_ms: hours.fold(0, |sum: i64, (_, ms)| sum.saturating_add(*ms)),
            };
            owner.promise = (promise != OwnerPromise::default()).then_some(promise);
        }
    }
}

/// Longest that 95 % of the owner's waits may be, ms. `None`: too few waits are known from before
/// the autopilot acted, and the policy names none.
pub fn wait_limit_ms(rules: &PromiseRules, name: &str, owner: &Owner) -> Option<i64> {
    if let Some(seconds) = rules.owner_wait_p95_s.get(name) {
        return Some(Millis::from_secs(i64::from(*seconds)).0);
    }
    let before = owner.promise?.before.filter(|waits| waits.jobs >= rules.least_jobs)?;
    // Waits are far below 2^53 ms.
    let longer = (before.p95_ms as f64 * rules.wait_longer) as i64;
    Some(before.p95_ms.saturating_add(longer.max(Millis::from_secs(rules.wait_slack_s).0)))
}

/// Longest that the owner may lack what it lent in thirty days, ms.
pub fn unmet_limit_ms(rules: &PromiseRules, name: &str) -> i64 {
    let own = rules.owner_unmet_minutes.get(name).copied().unwrap_or(rules.unmet_minutes);
    i64::from(own) * 60_000
}

/// Why the promise to an owner is broken. `None`: it holds, or too little is known to judge it.
pub fn breach(rules: &PromiseRules, name: &str, owner: &Owner) -> Option<String> {
    let limit_ms = wait_limit_ms(rules, name, owner);
    let waits = owner.waits.filter(|waits| waits.jobs >= rules.least_jobs);
    if let Some((limit_ms, waits)) = limit_ms.zip(waits).filter(|(limit_ms, waits)| waits.p95_ms > *limit_ms)
    {
        return Some(format!(
            "95 % of its waits of the last 30 days are within {}, and {} is promised",
            duration(waits.p95_ms),
            duration(limit_ms)
        ));
    }
    let (unmet_ms, most_ms) =
        (owner.promise.map_or(0, |promise| promise.unmet_ms), unmet_limit_ms(rules, name));
    (unmet_ms > most_ms).then(|| {
        format!(
            "in the last 30 days it lacked GPUs that it had lent for {}, and {} is the most",
            duration(unmet_ms),
            duration(most_ms)
        )
    })
}

/// Owners that lack GPUs which they lent: what they need is within their quota and more than what
/// the loans leave.
pub fn lacking(state: &ClusterState) -> impl Iterator<Item = &OwnerName> {
    let lacks = |(name, owner): &(&OwnerName, &Owner)| {
        owner.shares.iter().any(|(pool, share)| {
            let left = share.quota_gpus.saturating_sub(state.lent_gpus(name, pool));
            share.demand_gpus.is_some_and(|demand| demand.min(share.quota_gpus) > left)
        })
    };
    state.owners.iter().filter(lacks).map(|(name, _)| name)
}

/// A time for people: 45 s, 12.50 min, 3.20 h. Two digits tell a limit from what just passes it.
fn duration(ms: i64) -> String {
    let seconds = Micros(Millis(ms).to_micros().0).0 as f64 / 1e6;
    match seconds {
        ..60.0 => format!("{seconds:.0} s"),
        60.0..7_200.0 => format!("{:.2} min", seconds / 60.0),
        _ => format!("{:.2} h", seconds / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::state::{Loan, Share, Writer};

    const MINUTE_MS: i64 = 60_000;

    fn waits(minutes: i64, jobs: u32) -> Waits {
        Waits { p95_ms: minutes * MINUTE_MS, jobs }
    }

    fn owner(before: Option<Waits>, now: Waits, unmet_minutes: i64) -> Owner {
        let promise = Some(OwnerPromise { before, unmet_ms: unmet_minutes * MINUTE_MS });
        Owner { waits: Some(now), promise, ..Owner::default() }
    }

    #[test]
    fn a_promise_breaks_beyond_the_wait_of_before_and_its_slack() {
        let rules = PromiseRules { wait_longer: 0.5, wait_slack_s: 600, ..Policy::shipped().promise };
        let broken = |before, now| breach(&rules, "a", &owner(Some(before), now, 0)).is_some();
        assert!(!broken(waits(60, 100), waits(90, 100)));
        assert!(broken(waits(60, 100), waits(91, 100)));
        assert!(!broken(waits(0, 100), waits(10, 100)), "ten minutes never count");
        assert!(broken(waits(0, 100), waits(11, 100)));
        assert!(!broken(waits(0, 19), waits(900, 100)), "too few are known of before");
        assert!(!broken(waits(0, 100), waits(900, 19)), "too few are known of now");
        let named = PromiseRules { owner_wait_p95_s: [("a".to_owned(), 60)].into(), ..rules.clone() };
        assert!(breach(&named, "a", &owner(None, waits(2, 100), 0)).is_some(), "the policy names a limit");
        assert!(breach(&named, "b", &owner(None, waits(2, 100), 0)).is_none());
    }

    #[test]
    fn a_promise_breaks_when_an_owner_lacked_what_it_lent_for_too_long() {
        let rules = PromiseRules {
            unmet_minutes: 30,
            owner_unmet_minutes: [("strict".to_owned(), 0)].into(),
            ..Policy::shipped().promise
        };
        let of = |name, minutes| breach(&rules, name, &owner(None, waits(0, 0), minutes));
        assert!(of("a", 30).is_none() && of("strict", 0).is_none());
        assert!(of("a", 31).unwrap().contains("31.00 min, and 30.00 min is the most"));
        assert!(of("strict", 1).is_some());
    }

    #[test]
    fn what_lacks_is_what_the_loans_do_not_leave_of_the_quota() {
        let mut state = ClusterState::default();
        let share = |demand| Share { quota_gpus: 16, demand_gpus: demand, ..Share::default() };
        let of = |demand| Owner { shares: [("p".to_owned(), share(demand))].into(), ..Owner::default() };
        // Without a loan nobody lacks anything, however much it wants.
        state.owners = [("a".to_owned(), of(Some(40))), ("b".to_owned(), of(None))].into();
        assert_eq!(lacking(&state).count(), 0);
        let loan = Loan {
            from: "a".into(),
            to: "b".into(),
            pool: "p".into(),
            gpus: 8,
            nodes: Default::default(),
            since_us: 0,
            expires_us: 1,
            reclaim_within_ms: 0,
            reclaiming_since_us: None,
            reclaiming_gpus: 0,
            reclaiming_nodes: Default::default(),
            writer: Writer::Other,
            jobs: Default::default(),
        };
        state.loans.insert("l".into(), loan);
        assert_eq!(lacking(&state).collect::<Vec<_>>(), ["a"]);
        state.owners.insert("a".into(), of(Some(8)));
        assert_eq!(lacking(&state).count(), 0);
    }

    #[test]
    fn the_journal_keeps_what_was_before_the_first_action() {
        let mut promises = Promises::default();
        let event = |what| PromiseEvent { owner: "a".into(), what };
        let annotated = |promises: &Promises, at_us| {
            let owners = [("a".to_owned(), Owner::default())].into();
            let mut state = ClusterState { at_us, owners, ..ClusterState::default() };
            promises.annotate(&mut state);
            state.owners["a"].promise
        };
        assert_eq!(annotated(&promises, 0), None);
        promises.fold(event(Promised::Before(waits(5, 30))), 0);
        promises.fold(event(Promised::Before(waits(6, 40))), 1);
        promises.acted(2);
        promises.fold(event(Promised::Before(waits(99, 99))), 3);
        promises.fold(event(Promised::Unmet { unmet_ms: 7 }), HOUR_US);
        promises.fold(event(Promised::Unmet { unmet_ms: 5 }), 2 * HOUR_US);
        let both = OwnerPromise { before: Some(waits(6, 40)), unmet_ms: 12 };
        assert_eq!(annotated(&promises, 3 * HOUR_US), Some(both));
        // A restart reads the same from what was saved.
        let text = serde_json::to_string(&promises).unwrap();
        let mut promises: Promises = serde_json::from_str(&text).unwrap();
        let later_us = WINDOW_US + HOUR_US + HOUR_US / 2;
        promises.forget(later_us);
        assert_eq!(annotated(&promises, later_us).unwrap().unmet_ms, 12);
        promises.forget(later_us + HOUR_US);
        assert_eq!(annotated(&promises, later_us + HOUR_US).unwrap().unmet_ms, 5);
    }
}
