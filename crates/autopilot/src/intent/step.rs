//! What to do next with an intent, and what an answer of the target means.

use serde::{Deserialize, Serialize};

use super::{Intent, Stage, Transition};
use crate::action::Action;
use crate::policy::Mode;
use crate::target::{Effect, Receipt, TargetError};

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// From being asked of the target to being seen done.
    pub verify_within_ms: i64,
    /// Between two looks at the target.
    pub look_every_ms: i64,
}

impl Default for Limits {
    /// Fifteen minutes, five seconds.
    fn default() -> Self {
        Self { verify_within_ms: 900_000, look_every_ms: 5_000 }
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing more, ever.
    Over,
    /// Nothing until then, unless something is told.
    Wait {
        /// When to ask again.
        until_us: i64,
    },
    /// Record this.
    Record(Transition),
    /// Record a lease under the own generation: it is new, or what another left behind.
    Lease,
    /// Tell the jobs, then record `Noticed`, or `Acknowledged`.
    Notify(Action),
    /// Ask the switch and the guard; if both let it, record `Applying`, then apply.
    Begin(Action),
    /// Ask the target what it came to, and judge the answer.
    ReadBack(Action),
    /// Record `Compensating`, apply this, read it back, record `Compensated` once it is done.
    Compensate(Action),
    /// Somebody newer is at it: stop acting.
    StandDown,
}

/// What an answer of the target means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Record this.
    Record(Transition),
    /// Nothing was done: apply again.
    Again,
    /// It was begun, and whoever began it never heard that it was taken: apply again, which
    /// finishes it.
    Finish,
    /// Look again later.
    Wait,
    /// The lease is lost: stop acting.
    StandDown,
}

impl Intent {
    /// What whoever holds `generation` does next at `now_us`.
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
                Mode::Act => NextStep::Record(Transition::Approved { by: "policy".to_owned() }),
                Mode::Approve => NextStep::Wait { until_us: self.decision.action.expires_us },
                Mode::Stop | Mode::Observe | Mode::Suggest => {
                    NextStep::Wait { until_us: self.decision.action.expires_us }
                }
            },
            Stage::Approved if late => too_late(),
            Stage::Approved => NextStep::Lease,
            // Before anything is done on behalf of another's lease, it becomes one's own.
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
        let notice_us = self.decision.action.notice_ms * 1000;
        if notice_us == 0 || acknowledged {
            return NextStep::Begin(self.action());
        }
        match noticed_us {
            None => NextStep::Notify(self.action()),
            Some(since) if now_us >= since + notice_us => NextStep::Begin(self.action()),
            // Ask again whether they have answered.
            Some(_) if limits.look_every_ms > 0 => NextStep::Notify(self.action()),
            Some(since) => NextStep::Wait { until_us: since + notice_us },
        }
    }

    /// What the target's answer to `apply` means.
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
            // Nothing was done, or nobody knows: the target is looked at before anything else.
            Err(TargetError::Unreachable { .. } | TargetError::Unknown { .. }) => Outcome::Wait,
        }
    }

    /// What the target's answer to `read_back` means.
    pub fn on_read_back(
        &self,
        answer: &Result<Effect, TargetError>,
        now_us: i64,
        limits: &Limits,
    ) -> Outcome {
        let Stage::Applying { since_us, applied_us } = self.stage else { return Outcome::Wait };
        let over = now_us >= applied_us.unwrap_or(since_us) + limits.verify_within_ms * 1000;
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
            // What cannot be seen is neither done nor failed.
            Err(_) => Outcome::Wait,
        }
    }

    fn failed(&self, why: String, applied: bool) -> Outcome {
        Outcome::Record(Transition::Failed { why, applied })
    }
}
