//! Drives every open action as far as it can go now.

use super::{Executor, Journal, OnlineForecast, StepError};
use crate::action::{Action, ActionId};
use crate::guard::{KillSwitch, Refusal, Rule, Verdict};
use crate::intent::{Intent, NextStep, Outcome, Stage, Transition};
use crate::state::ClusterState;
use crate::target::{Effect, Notice, Target, TargetError};

/// Bound on steps per action and call, against endless loops.
const MOST_STEPS: usize = 16;

/// Whether an action advanced or must wait.
enum Progress {
    Advanced,
    Waiting,
}

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// `state` is `None` if the cluster could not be observed. Then nothing begins, but actions in
    /// flight are still read back.
    pub(super) fn drive_all(
        &mut self,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> KillSwitch,
        state: Option<&ClusterState>,
        now_us: i64,
    ) -> Result<(), StepError> {
        self.tried = state.map(|state| self.try_due(state, now_us)).unwrap_or_default();
        for id in self.journaled.open() {
            let is_counted_on = self.tried.expected.contains_key(&id);
            for _ in 0..MOST_STEPS {
                if let Progress::Waiting = self.drive(&id, target, switch, state, now_us)? {
                    break;
                }
            }
            if let Some(state) = state.filter(|_| is_counted_on && self.is_off(&id)) {
                self.tried = self.try_due(state, now_us);
            }
        }
        Ok(())
    }

    fn drive(
        &mut self,
        id: &ActionId,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> KillSwitch,
        state: Option<&ClusterState>,
        now_us: i64,
    ) -> Result<Progress, StepError> {
        let (Some(generation), Some(intent)) = (self.generation, self.journaled.intents.get(id).cloned())
        else {
            return Ok(Progress::Waiting);
        };
        match intent.next(generation, now_us, &self.settings.limits) {
            NextStep::Over | NextStep::Wait { .. } => Ok(Progress::Waiting),
            NextStep::StandDown => Err(StepError::Fenced),
            NextStep::Record(what) => self.transition(id, what, now_us),
            NextStep::Lease => {
                let holder = self.settings.holder.clone();
                self.transition(id, Transition::Leased { holder }, now_us)
            }
            NextStep::Notify(action) => {
                let Some(state) = state else { return Ok(Progress::Waiting) };
                match self.may_begin(&intent, &action, switch, state, now_us) {
                    Some(Ok(())) => self.notify(&intent, &action, target, switch, state, now_us),
                    Some(Err(refusal)) => self.drop_intent(id, refusal, now_us),
                    None => Ok(Progress::Waiting),
                }
            }
            NextStep::Begin(action) => {
                let Some(state) = state else { return Ok(Progress::Waiting) };
                self.begin(&intent, &action, target, switch, state, now_us)
            }
            NextStep::ReadBack(action) => self.read_back(&intent, &action, target, switch, state, now_us),
            NextStep::Compensate(undoing) => self.compensate(&intent, &undoing, target, switch, now_us),
        }
    }

    fn transition(&mut self, id: &str, what: Transition, now_us: i64) -> Result<Progress, StepError> {
        self.record_step(id, what, now_us)?;
        Ok(Progress::Advanced)
    }

    fn drop_intent(&mut self, id: &str, refusal: Refusal, now_us: i64) -> Result<Progress, StepError> {
        self.transition(id, Transition::Dropped { refusal: Some(refusal) }, now_us)
    }

    /// Whether the guard lets it begin. `None`: an action before it is not applied yet.
    fn may_begin(
        &mut self,
        intent: &Intent,
        action: &Action,
        switch: &mut dyn FnMut() -> KillSwitch,
        state: &ClusterState,
        now_us: i64,
    ) -> Option<Result<(), Refusal>> {
        let waits = |id: &ActionId| {
            let before = self.journaled.intents.get(id).map(|intent| &intent.stage);
            matches!(
                before,
                Some(
                    Stage::Proposed
                        | Stage::Approved
                        | Stage::Leased { .. }
                        | Stage::Applying { applied_us: None, .. }
                )
            )
        };
        if action.after.iter().any(waits) {
            return None;
        }
        let mut history = self.history(switch(), now_us);
        // It may have been sent before with the answer lost; its own beginning does not count
        // against it.
        history.past.retain(|past| past.id != intent.decision.action.id);
        match self.verdict(&intent.decision, action, state, &history, now_us) {
            Verdict::Allowed => Some(self.fits_the_copy(intent, action, state, now_us)),
            Verdict::Refused(refusal) => Some(Err(refusal)),
        }
    }

    fn notify(
        &mut self,
        intent: &Intent,
        action: &Action,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> KillSwitch,
        state: &ClusterState,
        now_us: i64,
    ) -> Result<Progress, StepError> {
        let notified = matches!(intent.stage, Stage::Leased { noticed_us: Some(_), .. });
        match target.notify(action) {
            Ok(Notice::Unsupported) => self.begin(intent, action, target, switch, state, now_us),
            Ok(Notice::Waiting { .. }) if notified => Ok(Progress::Waiting),
            Ok(Notice::Waiting { .. }) => {
                self.record_step(&action.id, Transition::Noticed, now_us)?;
                Ok(Progress::Waiting)
            }
            Ok(Notice::Acknowledged { saved_step, .. }) => {
                if !notified {
                    self.record_step(&action.id, Transition::Noticed, now_us)?;
                }
                self.transition(&action.id, Transition::Acknowledged { saved_step }, now_us)
            }
            Err(TargetError::StaleGeneration { .. }) => Err(StepError::Fenced),
            // Unknown whether they were notified. Notifying again reaches nobody twice.
            Err(TargetError::Unreachable { .. } | TargetError::Unknown { .. }) => Ok(Progress::Waiting),
            Err(refused) => {
                let refusal = Refusal { rule: Rule::Precondition, why: refused.to_string() };
                self.drop_intent(&action.id, refusal, now_us)
            }
        }
    }

    fn begin(
        &mut self,
        intent: &Intent,
        action: &Action,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> KillSwitch,
        state: &ClusterState,
        now_us: i64,
    ) -> Result<Progress, StepError> {
        match self.may_begin(intent, action, switch, state, now_us) {
            None => return Ok(Progress::Waiting),
            Some(Err(refusal)) => return self.drop_intent(&action.id, refusal, now_us),
            Some(Ok(())) => {}
        }
        if matches!(intent.stage, Stage::Leased { noticed_us: Some(_), acknowledged: false }) {
            self.end_notice(action, target, now_us)?;
        }
        self.record_waits_before(state, now_us)?;
        self.record_beginning(&action.id, now_us)?;
        self.apply(action, target, now_us)
    }

    /// Looks a last time whether the jobs have acknowledged a notice that ran out: they may have
    /// done so since the last poll. Records which it was.
    fn end_notice(&mut self, action: &Action, target: &mut dyn Target, now_us: i64) -> Result<(), StepError> {
        let ended = match target.notify(action) {
            Ok(Notice::Acknowledged { saved_step, .. }) => Transition::Acknowledged { saved_step },
            Err(TargetError::StaleGeneration { .. }) => return Err(StepError::Fenced),
            // It no longer takes notices, so it ignores none.
            Ok(Notice::Unsupported) => return Ok(()),
            Ok(Notice::Waiting { .. }) | Err(_) => Transition::NoticeIgnored,
        };
        self.record_step(&action.id, ended, now_us)
    }

    fn apply(
        &mut self,
        action: &Action,
        target: &mut dyn Target,
        now_us: i64,
    ) -> Result<Progress, StepError> {
        let answer = target.apply(action);
        let Some(intent) = self.journaled.intents.get(&action.id) else { return Ok(Progress::Waiting) };
        let outcome = intent.on_apply(&answer, now_us);
        self.apply_outcome(&action.id, outcome, now_us)
    }

    fn read_back(
        &mut self,
        intent: &Intent,
        action: &Action,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> KillSwitch,
        state: Option<&ClusterState>,
        now_us: i64,
    ) -> Result<Progress, StepError> {
        let answer = target.read_back(action);
        let outcome = intent.on_read_back(&answer, now_us, &self.settings.limits);
        match (outcome, state) {
            // It was sent but did not arrive. Ask the guard again whether it may begin.
            (Outcome::Again, Some(state)) => match self.may_begin(intent, action, switch, state, now_us) {
                Some(Ok(())) => {
                    // Its budget is used now, not when it was sent in vain.
                    self.record_step(&action.id, Transition::Applying, now_us)?;
                    self.apply(action, target, now_us)
                }
                Some(Err(refusal)) if refusal.rule == Rule::Switch => Ok(Progress::Waiting),
                Some(Err(refusal)) => self.transition(
                    &action.id,
                    Transition::Failed { why: refusal.why, applied: false },
                    now_us,
                ),
                None => Ok(Progress::Waiting),
            },
            (Outcome::Again, None) => Ok(Progress::Waiting),
            // A half-applied action is finished regardless of rules that applied before it began.
            (Outcome::Finish, _) if switch() == KillSwitch::On => self.apply(action, target, now_us),
            (Outcome::Finish, _) => Ok(Progress::Waiting),
            (outcome, _) => self.apply_outcome(&action.id, outcome, now_us),
        }
    }

    fn apply_outcome(&mut self, id: &str, outcome: Outcome, now_us: i64) -> Result<Progress, StepError> {
        match outcome {
            Outcome::Record(what) => self.transition(id, what, now_us),
            Outcome::StandDown => Err(StepError::Fenced),
            Outcome::Again | Outcome::Finish | Outcome::Wait => Ok(Progress::Waiting),
        }
    }

    /// Undoes the possible effects of a failed action. Needs only the kill switch and the
    /// generation; rests do not delay undoing.
    fn compensate(
        &mut self,
        intent: &Intent,
        undoing: &Action,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> KillSwitch,
        now_us: i64,
    ) -> Result<Progress, StepError> {
        let id = &intent.decision.action.id;
        if matches!(intent.stage, Stage::Failed { .. }) {
            return self.transition(id, Transition::Compensating, now_us);
        }
        match target.read_back(undoing) {
            // What somebody else changed is theirs. Nothing of ours is left.
            Ok(Effect::Done { .. } | Effect::Overridden { .. }) => {
                return self.transition(id, Transition::Compensated, now_us);
            }
            Ok(Effect::Partial { .. }) => return Ok(Progress::Waiting),
            Ok(Effect::Absent) => {}
            Err(TargetError::StaleGeneration { .. }) => return Err(StepError::Fenced),
            Err(_) => return Ok(Progress::Waiting),
        }
        match target.read_back(&intent.action()) {
            // It never took effect, or its effect is gone. A target would refuse to undo that
            // forever.
            Ok(Effect::Absent | Effect::Overridden { .. }) => {
                return self.transition(id, Transition::Compensated, now_us);
            }
            Ok(Effect::Done { .. } | Effect::Partial { .. }) if switch() == KillSwitch::On => {}
            Err(TargetError::StaleGeneration { .. }) => return Err(StepError::Fenced),
            Ok(Effect::Done { .. } | Effect::Partial { .. }) | Err(_) => return Ok(Progress::Waiting),
        }
        match target.apply(undoing) {
            Err(TargetError::StaleGeneration { .. }) => Err(StepError::Fenced),
            // What cannot be undone is retried at each poll, and shows as COMPENSATING in the
            // tables until a person helps.
            _ => Ok(Progress::Waiting),
        }
    }
}
