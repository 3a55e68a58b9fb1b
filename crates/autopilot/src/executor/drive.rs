//! Open actions, each taken as far as it goes now.

use super::{Executor, Foresees, Journal, Meter, Stop};
use crate::action::{Action, ActionId};
use crate::guard::{Refusal, Rule, Switch, Verdict};
use crate::intent::{Intent, Judged, Stage, Step, What};
use crate::state::ClusterState;
use crate::target::{Effect, Notice, Target, TargetError};

/// More steps than any action has at one time: something goes round in circles.
const MOST_STEPS: usize = 16;

/// Whether an action may go on now.
enum Turn {
    Goes,
    Waits,
}

impl<J: Journal, F: Foresees> Executor<J, F> {
    /// `state` is `None` where the cluster could not be seen: then nothing is begun, and what is
    /// under way is still looked at.
    pub(super) fn drive_all(
        &mut self,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> Switch,
        state: Option<&ClusterState>,
        now_us: i64,
    ) -> Result<(), Stop> {
        for id in self.known.open() {
            for _ in 0..MOST_STEPS {
                if let Turn::Waits = self.drive(&id, target, switch, state, now_us)? {
                    break;
                }
            }
        }
        Ok(())
    }

    fn drive(
        &mut self,
        id: &ActionId,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> Switch,
        state: Option<&ClusterState>,
        now_us: i64,
    ) -> Result<Turn, Stop> {
        let (Some(generation), Some(intent)) = (self.mine, self.known.intents.get(id).cloned()) else {
            return Ok(Turn::Waits);
        };
        match intent.next(generation, now_us, &self.settings.limits) {
            Step::Over | Step::Wait { .. } => Ok(Turn::Waits),
            Step::StandDown => Err(Stop::Fenced),
            Step::Record(what) => self.tell(id, what, now_us),
            Step::Lease => {
                let holder = self.settings.holder.clone();
                self.tell(id, What::Leased { holder }, now_us)
            }
            Step::Notify(action) => {
                let Some(state) = state else { return Ok(Turn::Waits) };
                match self.may_begin(&intent, &action, switch, state, now_us) {
                    Some(Ok(())) => self.notify(&intent, &action, target, switch, state, now_us),
                    Some(Err(refusal)) => self.drop(id, refusal, now_us),
                    None => Ok(Turn::Waits),
                }
            }
            Step::Begin(action) => {
                let Some(state) = state else { return Ok(Turn::Waits) };
                self.begin(&intent, &action, target, switch, state, now_us)
            }
            Step::ReadBack(action) => self.read_back(&intent, &action, target, switch, state, now_us),
            Step::Compensate(undoing) => self.compensate(&intent, &undoing, target, switch, now_us),
        }
    }

    fn tell(&mut self, id: &str, what: What, now_us: i64) -> Result<Turn, Stop> {
        self.record_step(id, what, now_us)?;
        Ok(Turn::Goes)
    }

    fn drop(&mut self, id: &str, refusal: Refusal, now_us: i64) -> Result<Turn, Stop> {
        self.tell(id, What::Dropped { refusal: Some(refusal) }, now_us)
    }

    /// Whether the guard lets it begin; `None`: something before it is not done yet.
    fn may_begin(
        &self,
        intent: &Intent,
        action: &Action,
        switch: &mut dyn FnMut() -> Switch,
        state: &ClusterState,
        now_us: i64,
    ) -> Option<Result<(), Refusal>> {
        let waits = |id: &ActionId| {
            let before = self.known.intents.get(id).map(|intent| &intent.stage);
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
        // Sent before with the answer lost: its own beginning is no reason against it.
        history.past.retain(|past| past.id != intent.decision.action.id);
        match self.judge(&intent.decision, action, state, &history, now_us) {
            Verdict::Allowed => Some(Ok(())),
            Verdict::Refused(refusal) => Some(Err(refusal)),
        }
    }

    fn notify(
        &mut self,
        intent: &Intent,
        action: &Action,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> Switch,
        state: &ClusterState,
        now_us: i64,
    ) -> Result<Turn, Stop> {
        let told = matches!(intent.stage, Stage::Leased { noticed_us: Some(_), .. });
        match target.notify(action) {
            Ok(Notice::Unsupported) => self.begin(intent, action, target, switch, state, now_us),
            Ok(Notice::Waiting { .. }) if told => Ok(Turn::Waits),
            Ok(Notice::Waiting { .. }) => {
                self.record_step(&action.id, What::Noticed, now_us)?;
                Ok(Turn::Waits)
            }
            Ok(Notice::Acknowledged { .. }) => {
                if !told {
                    self.record_step(&action.id, What::Noticed, now_us)?;
                }
                self.tell(&action.id, What::Acknowledged, now_us)
            }
            Err(TargetError::StaleGeneration { .. }) => Err(Stop::Fenced),
            // Nobody knows whether they were told: they are told again, which tells nobody twice.
            Err(TargetError::Unreachable { .. } | TargetError::Unknown { .. }) => Ok(Turn::Waits),
            Err(refused) => {
                let refusal = Refusal { rule: Rule::Precondition, why: refused.to_string() };
                self.drop(&action.id, refusal, now_us)
            }
        }
    }

    fn begin(
        &mut self,
        intent: &Intent,
        action: &Action,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> Switch,
        state: &ClusterState,
        now_us: i64,
    ) -> Result<Turn, Stop> {
        match self.may_begin(intent, action, switch, state, now_us) {
            None => return Ok(Turn::Waits),
            Some(Err(refusal)) => return self.drop(&action.id, refusal, now_us),
            Some(Ok(())) => {}
        }
        self.record_step(&action.id, What::Applying, now_us)?;
        self.apply(action, target, now_us)
    }

    fn apply(&mut self, action: &Action, target: &mut dyn Target, now_us: i64) -> Result<Turn, Stop> {
        let answer = target.apply(action);
        let Some(intent) = self.known.intents.get(&action.id) else { return Ok(Turn::Waits) };
        let judged = intent.judge_apply(&answer, now_us);
        self.judged(&action.id, judged, now_us)
    }

    fn read_back(
        &mut self,
        intent: &Intent,
        action: &Action,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> Switch,
        state: Option<&ClusterState>,
        now_us: i64,
    ) -> Result<Turn, Stop> {
        let answer = target.read_back(action);
        let judged = intent.judge_read_back(&answer, now_us, &self.settings.limits);
        match (judged, state) {
            // It was sent, and did not arrive. Whether it may still be done is asked anew.
            (Judged::Again, Some(state)) => match self.may_begin(intent, action, switch, state, now_us) {
                Some(Ok(())) => {
                    // Its budget is used now, not when it was sent in vain.
                    self.record_step(&action.id, What::Applying, now_us)?;
                    self.apply(action, target, now_us)
                }
                Some(Err(refusal)) if refusal.rule == Rule::Switch => Ok(Turn::Waits),
                Some(Err(refusal)) => {
                    self.tell(&action.id, What::Failed { why: refusal.why, applied: false }, now_us)
                }
                None => Ok(Turn::Waits),
            },
            (Judged::Again, None) => Ok(Turn::Waits),
            // What is half done is not left so for reasons that were there before it was begun.
            (Judged::Finish, _) if switch() == Switch::On => self.apply(action, target, now_us),
            (Judged::Finish, _) => Ok(Turn::Waits),
            (Judged::Record(What::Verified), state) => {
                if let Some(state) = state {
                    self.meters.insert(action.id.clone(), Meter::new(&intent.decision, state));
                }
                self.tell(&action.id, What::Verified, now_us)
            }
            (judged, _) => self.judged(&action.id, judged, now_us),
        }
    }

    fn judged(&mut self, id: &str, judged: Judged, now_us: i64) -> Result<Turn, Stop> {
        match judged {
            Judged::Record(what) => self.tell(id, what, now_us),
            Judged::StandDown => Err(Stop::Fenced),
            Judged::Again | Judged::Finish | Judged::Wait => Ok(Turn::Waits),
        }
    }

    /// Undoes what an action that failed may have done: under switch and generation alone, as
    /// undoing is not kept waiting by rests.
    fn compensate(
        &mut self,
        intent: &Intent,
        undoing: &Action,
        target: &mut dyn Target,
        switch: &mut dyn FnMut() -> Switch,
        now_us: i64,
    ) -> Result<Turn, Stop> {
        let id = &intent.decision.action.id;
        if matches!(intent.stage, Stage::Failed { .. }) {
            return self.tell(id, What::Compensating, now_us);
        }
        match target.read_back(undoing) {
            // What somebody changed since is theirs: nothing of ours is left.
            Ok(Effect::Done { .. } | Effect::Overridden { .. }) => {
                return self.tell(id, What::Compensated, now_us);
            }
            Ok(Effect::Partial { .. }) => return Ok(Turn::Waits),
            Ok(Effect::Absent) => {}
            Err(TargetError::StaleGeneration { .. }) => return Err(Stop::Fenced),
            Err(_) => return Ok(Turn::Waits),
        }
        match target.read_back(&intent.action()) {
            // It never came to be, or what it did is gone: a target would refuse to undo that, for
            // ever.
            Ok(Effect::Absent | Effect::Overridden { .. }) => {
                return self.tell(id, What::Compensated, now_us);
            }
            Ok(Effect::Done { .. } | Effect::Partial { .. }) if switch() == Switch::On => {}
            Err(TargetError::StaleGeneration { .. }) => return Err(Stop::Fenced),
            Ok(Effect::Done { .. } | Effect::Partial { .. }) | Err(_) => return Ok(Turn::Waits),
        }
        match target.apply(undoing) {
            Err(TargetError::StaleGeneration { .. }) => Err(Stop::Fenced),
            // What cannot be undone is tried again at each look, and stands in the tables as
            // COMPENSATING until a person helps.
            _ => Ok(Turn::Waits),
        }
    }
}
