//! Next step of an intent, and the meaning of the target's answers.

use serde::{Deserialize, Serialize};
use tidegate_units::Millis;

use super::{Intent, Stage, Transition};
use crate::action::Action;
use crate::policy::Mode;
use crate::target::{Effect, Receipt, TargetError};

/// Time limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// From asking the target to verification.
    pub verify_within_ms: i64,
    /// Interval between polls of the target.
    pub look_every_ms: i64,
}

impl Default for Limits {
    /// Fifteen minutes and five seconds.
    fn default() -> Self {
        Self { verify_within_ms: 900_000, look_every_ms: 5_000 }
    }
}

/// Next step of an intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Finished.
    Over,
    /// Nothing to do until then, unless an event arrives.
    Wait {
        /// When to ask again.
        until_us: i64,
    },
    /// Record this transition.
    Record(Transition),
    /// Record a lease under our generation, for a new intent or one taken over.
    Lease,
    /// Notify the jobs, then record `Noticed` or `Acknowledged`.
    Notify(Action),
    /// Ask the kill switch and the guard; if both allow it, record `Applying`, then apply.
    Begin(Action),
    /// Read the effect back and interpret the answer.
    ReadBack(Action),
    /// Record `Compensating`, apply this action, read it back, and record `Compensated` once done.
    Compensate(Action),
    /// A newer generation is active: stop acting.
    StandDown,
}

/// Meaning of a target's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Record this transition.
    Record(Transition),
    /// Nothing was done: apply again.
    Again,
    /// It was begun, but the target's acceptance was never received: apply again, which finishes
    /// it.
    Finish,
    /// Poll again later.
    Wait,
    /// The lease is lost: stop acting.
    StandDown,
}

impl Intent {
    /// Next step at `now_us` for the holder of `generation`.
    pub fn next(&self, generation: u64, now_us: i64, limits: &Limits) -> NextStep {
        if self.is_over() {
            return NextStep::Over;
        }
        if generation < self.generation {
            return NextStep::StandDown;
        }
        let late = now_us >= self.decision.action.expires_us;
        let too_late = || NextStep::Record(Transition::Dropped { refusal: None });
        match &self.stage {
            Stage::Proposed if late => too_late(),
            Stage::Proposed => match self.decision.mode {
                Mode::Act => NextStep::Record(Transition::approved_by_policy()),
                Mode::Approve => NextStep::Wait { until_us: self.decision.action.expires_us },
                Mode::Stop | Mode::Observe | Mode::Suggest => {
                    NextStep::Wait { until_us: self.decision.action.expires_us }
                }
            },
            Stage::Approved if late => too_late(),
            Stage::Approved => NextStep::Lease,
            // Take over an intent under our own generation before doing anything for it.
            _ if self.generation < generation => NextStep::Lease,
            Stage::Leased { .. } if late => too_late(),
            Stage::Leased { noticed_us, acknowledged } => {
                self.leased(*noticed_us, *acknowledged, now_us, limits)
            }
            Stage::Applying { .. } => NextStep::ReadBack(self.action()),
            Stage::Failed { .. } | Stage::Compensating { .. } => {
                self.undoing(now_us, limits).map_or(NextStep::Over, NextStep::Compensate)
            }
            Stage::Verified { .. } | Stage::Dropped | Stage::Yielded | Stage::Compensated { .. } => {
                NextStep::Over
            }
        }
    }

    fn leased(&self, noticed_us: Option<i64>, acknowledged: bool, now_us: i64, limits: &Limits) -> NextStep {
        let notice_us = Millis(self.decision.action.notice_ms).to_micros().0;
        if notice_us == 0 || acknowledged {
            return NextStep::Begin(self.action());
        }
        match noticed_us {
            None => NextStep::Notify(self.action()),
            Some(since) if now_us >= since + notice_us => NextStep::Begin(self.action()),
            // Poll for their answer.
            Some(_) if limits.look_every_ms > 0 => NextStep::Notify(self.action()),
            Some(since) => NextStep::Wait { until_us: since + notice_us },
        }
    }

    /// Meaning of the target's answer to `apply`.
    pub fn on_apply(&self, answer: &Result<Receipt, TargetError>, now_us: i64) -> Outcome {
        match answer {
            Ok(receipt) => Outcome::Record(Transition::Applied { receipt: receipt.clone() }),
            Err(TargetError::StaleGeneration { .. }) => Outcome::StandDown,
            Err(
                TargetError::Refused { .. } | TargetError::Precondition(_) | TargetError::Unsupported { .. },
            ) => self.failed(answer.as_ref().err().map(ToString::to_string).unwrap_or_default(), false),
            Err(TargetError::Unreachable { .. }) if now_us >= self.decision.action.expires_us => {
                self.failed("the target could not be reached in time".to_owned(), false)
            }
            // Nothing was done, or it is unknown: read back first.
            Err(TargetError::Unreachable { .. } | TargetError::Unknown { .. }) => Outcome::Wait,
        }
    }

    /// Meaning of the target's answer to `read_back`.
    pub fn on_read_back(
        &self,
        answer: &Result<Effect, TargetError>,
        now_us: i64,
        limits: &Limits,
    ) -> Outcome {
        let Stage::Applying { since_us, applied_us } = self.stage else { return Outcome::Wait };
        let over = now_us >= applied_us.unwrap_or(since_us) + Millis(limits.verify_within_ms).to_micros().0;
        match answer {
            Ok(Effect::Done { .. }) => Outcome::Record(Transition::Verified),
            Ok(Effect::Overridden { found }) => Outcome::Record(Transition::Yielded { found: found.clone() }),
            Ok(Effect::Partial { missing }) if over => self.failed(format!("half done: {missing}"), true),
            Ok(Effect::Partial { .. }) if applied_us.is_none() => Outcome::Finish,
            Ok(Effect::Absent) if applied_us.is_some() && over => {
                self.failed("the target took it and nothing came of it".to_owned(), true)
            }
            Ok(Effect::Absent) if applied_us.is_none() && now_us < self.decision.action.expires_us => {
                Outcome::Again
            }
            Ok(Effect::Absent) if applied_us.is_none() => {
                self.failed("it was not begun in time".to_owned(), false)
            }
            Ok(Effect::Partial { .. } | Effect::Absent) => Outcome::Wait,
            Err(TargetError::StaleGeneration { .. }) => Outcome::StandDown,
            // An unreadable effect is neither done nor failed.
            Err(_) => Outcome::Wait,
        }
    }

    fn failed(&self, why: String, applied: bool) -> Outcome {
        Outcome::Record(Transition::Failed { why, applied })
    }
}
