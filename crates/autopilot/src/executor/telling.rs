//! When a plan that decides nothing new is recorded all the same: when it says something else than
//! the last recorded one, within a budget.
//!
//! On a busy cluster most plans say something else, and each record costs kilobytes. The budget is
//! a token bucket: one token comes back in the time after which an unchanged plan is recorded
//! anyway. A burst of changes costs at most one bucket of records; constant change costs none more.

use tidegate_units::Millis;

use crate::action::ActionId;
use crate::fingerprint::fingerprint;
use crate::planner::{Plan, Report};

/// What the last recorded plan said, and how much of the budget is used.
#[derive(Debug, Default)]
pub(super) struct Telling {
    contents: Option<u64>,
    /// Until when what was spent fills up again, µs since 1970.
    spent_until_us: i64,
}

impl Telling {
    /// Whether a plan says something else than the last recorded one.
    pub(super) fn is_news(&self, contents: u64) -> bool {
        self.contents != Some(contents)
    }

    /// Whether a budget of `most` plans, which fills by one every `every_ms`, has one left.
    pub(super) fn may_spend(&self, now_us: i64, every_ms: i64, most: u32) -> bool {
        let every_us = Millis(every_ms).to_micros().0;
        self.spent(now_us, every_us) <= every_us.saturating_mul(i64::from(most))
    }

    /// Notes what a recorded plan said, for whatever reason it was recorded. News is taken out of
    /// the budget.
    pub(super) fn recorded(&mut self, contents: u64, now_us: i64, every_ms: i64, most: u32) {
        if self.is_news(contents) {
            let every_us = Millis(every_ms).to_micros().0;
            let whole_us = every_us.saturating_mul(i64::from(most));
            self.spent_until_us = now_us + self.spent(now_us, every_us).min(whole_us);
        }
        self.contents = Some(contents);
    }

    /// Time in which the budget would be full again after one more, µs.
    fn spent(&self, now_us: i64, every_us: i64) -> i64 {
        (self.spent_until_us.max(now_us) - now_us).saturating_add(every_us)
    }
}

/// Hash of what a plan says: counts, objects, reasons and advice. Numbers inside a text do not
/// count: they differ in every plan.
pub(super) fn contents(plan: &Plan, report: &Report) -> u64 {
    let considered = report.considered.iter().map(|it| (it.kind, &it.object, without_numbers(&it.reason)));
    let considered: Vec<_> = considered.collect();
    let advice = report.advice.iter().map(|it| (it.what, &it.object, it.better));
    let advice: Vec<_> = advice.collect();
    fingerprint(&(considered, advice, &report.looked_at, &plan.policy_hash, &plan.canary_hash))
}

/// Whether a plan still holds all decisions that stand of the one before. Only then may it become
/// the parent of the next without being decided upon: a decision that is left out would get
/// another id when it returns.
pub(super) fn keeps(plan: &Plan, standing: &[ActionId]) -> bool {
    standing.iter().all(|id| plan.decisions.iter().any(|decision| decision.action.id == *id))
}

fn without_numbers(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_allows_a_burst_and_then_one_in_each_interval() {
        const MINUTE_US: i64 = 60_000_000;
        let mut telling = Telling::default();
        let times = |telling: &mut Telling, from: u64, to: u64| -> Vec<u64> {
            let mut taken = Vec::new();
            for minute in from..to {
                let now_us = minute as i64 * MINUTE_US;
                if telling.is_news(minute) && telling.may_spend(now_us, 600_000, 6) {
                    telling.recorded(minute, now_us, 600_000, 6);
                    taken.push(minute);
                }
            }
            taken
        };
        assert_eq!(times(&mut telling, 0, 60), [0, 1, 2, 3, 4, 5, 10, 20, 30, 40, 50]);
        assert_eq!(times(&mut telling, 60, 1440).len(), 138, "one in ten minutes");
        // What is recorded anyway is taken out as well, but never more than there is.
        (0..20).for_each(|at| telling.recorded(5_000 + at, 1440 * MINUTE_US, 600_000, 6));
        assert_eq!(times(&mut telling, 1441, 1452), [1450]);
        // After a quiet hour it is full again; what is no news costs nothing.
        telling.recorded(1450, 1500 * MINUTE_US, 600_000, 6);
        assert_eq!(times(&mut telling, 1520, 1526).len(), 6);
        assert!(!Telling::default().may_spend(0, 600_000, 0), "no budget, no plan");
    }

    #[test]
    fn a_number_in_a_reason_is_no_news() {
        assert_eq!(without_numbers("resized 30 s ago; 8 GPUs"), without_numbers("resized 95 s ago; 16 GPUs"));
        assert_ne!(without_numbers("its scaling is unknown"), without_numbers("8 GPUs are its maximum"));
    }
}
