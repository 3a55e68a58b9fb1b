//! State of the executor, folded from the journal.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_units::{Micros, Millis};

use super::journal::{AdoptedStatement, EntriesRefused, JournalEntry, JournalEvent, Switched};
use crate::action::{ActionId, Change, Kind};
use crate::dry_run::Expected;
use crate::impact::Measurements;
use crate::intent::{self, Intent, IntentEvent, IntentLedger, Lease, Stage};
use crate::planner::{Plan, with_decisions};
use crate::policy::{Mode, Policy};
use crate::promise::Promises;
use crate::rollout::{Canaries, CanaryEvent};
use crate::scorecard::{Score, Standings};
use crate::slo::Slo;

/// Fewest reclaim times from which a duration is derived.
const MIN_RECLAIMS: usize = 20;

/// Finished actions are kept for two days; budgets look back one.
const KEPT_US: i64 = 2 * 86_400_000_000;
/// How often old ones are forgotten, in time of the journal.
const FORGET_EVERY_US: i64 = KEPT_US / 8;

/// Everything the executor remembers: a function of the journal's entries alone, whatever was read
/// at once and whenever it was saved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutorState {
    /// The newest lease, whoever holds it.
    pub lease: Option<Lease>,
    /// All intents.
    pub intents: IntentLedger,
    /// The plan recorded last.
    pub plan: Option<Plan>,
    /// When it was made.
    pub planned_us: Option<i64>,
    /// Policy of the last plan.
    pub policy: Option<Policy>,
    /// Scores, oldest first.
    pub scores: Vec<Score>,
    /// What the scores of the policy itself took away or gave back.
    standings: Standings,
    /// The same by all scores, of canaries too.
    standings_of_all: Standings,
    /// Canaries that act or acted.
    pub canaries: Canaries,
    /// Counts and alerts of the service level objectives.
    pub slo: Slo,
    /// When a leaseholder last wrote.
    pub alive_us: Option<i64>,
    scored: BTreeSet<ActionId>,
    /// Number of void entries: written without the lease, or repeated.
    pub rejected: u64,
    /// Number of each proposal; actions run in the order of their decisions.
    order: BTreeMap<ActionId, u64>,
    proposals: u64,
    /// Number of scores ever folded.
    scores_seen: u64,
    /// Time of the entry at which finished actions were last forgotten.
    forgot_us: i64,
    /// Statement under which the policy acts, where policies are signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<AdoptedStatement>,
    /// The kill switch as it was last found, where it is signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switched: Option<Switched>,
    /// Promises to owners.
    #[serde(default)]
    pub promises: Promises,
    /// Entries that do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusals: Option<Refusals>,
    /// Measurements of verified actions that are under way.
    #[serde(default, skip_serializing_if = "Measurements::is_empty")]
    pub measured: Measurements,
    /// What dry runs expect of actions, until it is compared.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) expected: BTreeMap<ActionId, Expected>,
}

/// Entries of the journal that were refused, as far as a leader recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// How many, ever.
    pub count: u64,
    /// When the last were recorded, µs since 1970.
    pub last_us: i64,
    /// The last.
    pub last: EntriesRefused,
}

impl ExecutorState {
    /// Applies an entry.
    pub fn fold(&mut self, entry: JournalEntry) {
        let generation = self.lease.as_ref().map_or(0, |lease| lease.generation);
        if entry.generation < generation && !by_a_person(&entry.event) {
            self.rejected += 1;
            return;
        }
        let at_us = entry.at_us;
        if at_us.saturating_sub(self.forgot_us) > FORGET_EVERY_US {
            self.forgot_us = at_us;
            self.forget(at_us.saturating_sub(KEPT_US));
        }
        match entry.event {
            JournalEvent::Lease(lease) => {
                let renews = self
                    .lease
                    .as_ref()
                    .is_some_and(|own| own.generation == lease.generation && own.holder == lease.holder);
                if lease.is_bounded(at_us) && (renews || self.may_follow(&lease)) {
                    self.lease = Some(lease);
                    self.alive_us = self.alive_us.max(Some(at_us));
                } else {
                    self.rejected += 1;
                }
            }
            JournalEvent::Planned(planned) => {
                self.planned_us = Some(planned.plan.made_us);
                self.plan = Some(planned.plan);
                self.policy = Some(planned.policy);
            }
            JournalEvent::Step(event) => {
                if let intent::Transition::Proposed { .. } = event.transition {
                    self.proposals += 1;
                    self.order.entry(event.action.clone()).or_insert(self.proposals);
                }
                let before = self.intents.get(&event.action).map(|intent| intent.stage.clone());
                match self.intents.fold(&event) {
                    Ok(()) => {
                        self.canaries.fold_step(&event, &self.intents);
                        self.count(&event, before.as_ref());
                    }
                    Err(_) => self.rejected += 1,
                }
            }
            JournalEvent::Scored(score) if self.scored.insert(score.action.clone()) => {
                self.scores_seen += 1;
                self.measured.meters.remove(&score.action);
                self.scores.push(score);
                self.judge();
            }
            JournalEvent::Scored(_) => self.rejected += 1,
            JournalEvent::Canary(event) if self.restarts_another_beginning(&event) => self.rejected += 1,
            JournalEvent::Canary(event) => self.canaries.fold(&event, at_us),
            JournalEvent::Policy(adopted) => {
                let issued = adopted.issued.map(|issued| issued.adopted);
                let newest = self.adopted.as_ref().map_or(0, |adopted| adopted.sequence);
                self.adopted = issued.filter(|it| it.sequence > newest).or(self.adopted.take());
            }
            JournalEvent::Switched(switched) => {
                let newest = self.switched.as_ref().map_or(i64::MIN, |switched| switched.sequence);
                if switched.sequence > newest {
                    self.switched = Some(switched);
                } else {
                    self.rejected += 1;
                }
            }
            JournalEvent::Refused(last) => {
                let before = self.refusals.as_ref().map_or(0, |refusals| refusals.count);
                let count = before.saturating_add(last.count);
                self.refusals = Some(Refusals { count, last_us: at_us, last });
            }
            JournalEvent::Promise(event) => self.promises.fold(*event, at_us),
            JournalEvent::Measured(measured) => {
                let Measurements { meters, suspects } = *measured;
                self.measured.meters.extend(meters);
                self.measured.suspects = suspects.or(self.measured.suspects.take());
            }
            JournalEvent::Expected(expected) => {
                if self.intents.get(&expected.action).is_some_and(Intent::is_unbegun) {
                    self.expected.insert(expected.action.clone(), *expected);
                } else {
                    self.rejected += 1;
                }
            }
            JournalEvent::Compared(compared) => drop(self.expected.remove(&compared.action)),
            JournalEvent::Shadow(_) => {}
            JournalEvent::Alert(alert) => self.slo.fold(*alert),
            JournalEvent::Cycles(cycles) => self.slo.tallies.cycles(cycles, at_us),
        }
    }

    /// Whether the newest lease is one that a process takes. Older versions folded any.
    pub fn has_bounded_lease(&self) -> bool {
        let taken_us = self.alive_us.unwrap_or(i64::MAX);
        self.lease.as_ref().is_none_or(|lease| lease.is_bounded(taken_us))
    }

    /// Whether a lease follows on the newest one. A holder takes the next generation; one that is
    /// further ahead would shut out everybody else.
    fn may_follow(&self, lease: &Lease) -> bool {
        self.lease.as_ref().is_none_or(|newest| lease.generation == newest.generation + 1)
    }

    /// Whether a signed restart of a canary is of another beginning than its last one.
    fn restarts_another_beginning(&self, event: &CanaryEvent) -> bool {
        let CanaryEvent::Began { canary, signed: Some(signed), .. } = event else { return false };
        self.canaries.get(&canary.id()).is_none_or(|status| status.beginning() != signed.plan)
    }

    /// Counts an event for the SLOs, and notes when the first action begins.
    fn count(&mut self, event: &IntentEvent, before: Option<&Stage>) {
        let Self { intents, slo, policy, promises, .. } = self;
        if let intent::Transition::Applying = event.transition {
            promises.acted(event.at_us);
        }
        if let (Some(intent), Some(before)) = (intents.get(&event.action), before) {
            // A decision follows its plan, which holds the policy.
            let within_ms =
                policy.as_ref().map_or(i64::MAX, |policy| Millis::from_secs(policy.lend.reclaim_within_s).0);
            slo.tallies.record(event, before, &intent.decision, within_ms);
        }
    }

    /// What the modes earned by scorecard rest on: it differs whenever they may.
    pub(super) fn judged_on(&self) -> (u64, u64, i64) {
        (self.scores_seen, self.slo.alerts(), self.forgot_us)
    }

    /// Whether an action has been scored.
    pub fn is_scored(&self, action: &str) -> bool {
        self.scored.contains(action)
    }

    /// Open actions in the order of their decisions.
    pub fn open(&self) -> Vec<ActionId> {
        let mut open: Vec<(u64, ActionId)> = self
            .intents
            .open()
            .map(|intent| {
                let id = &intent.decision.action.id;
                (self.order.get(id).copied().unwrap_or(u64::MAX), id.clone())
            })
            .collect();
        open.sort_unstable();
        open.into_iter().map(|(_, id)| id).collect()
    }

    /// The previous plan with its standing decisions. These are not decided on again.
    pub fn parent(&self) -> (Option<Plan>, Vec<ActionId>) {
        let Some(plan) = &self.plan else { return (None, Vec::new()) };
        let stands = |intent: &Intent| {
            !matches!(
                intent.stage,
                Stage::Dropped
                    | Stage::Failed { .. }
                    | Stage::Yielded
                    | Stage::Compensating { .. }
                    | Stage::Compensated { .. }
            )
        };
        let ids = plan.decisions.iter().map(|decision| &decision.action.id);
        let kept: Vec<ActionId> =
            ids.filter(|id| self.intents.get(id).is_some_and(stands)).cloned().collect();
        (Some(with_decisions(plan, &kept)), kept)
    }

    /// Reclaim times from the decision until the GPUs were free, ms, by owner and pool: the longest
    /// remembered, which for up to a hundred is the 99th percentile. Owners with too few are
    /// absent.
    pub fn reclaims_took_ms(&self) -> BTreeMap<(&str, &str), i64> {
        let mut took: BTreeMap<(&str, &str), (i64, usize)> = BTreeMap::new();
        for intent in self.intents.all() {
            let (Change::Reclaim { loan, .. }, Stage::Verified { at_us }) =
                (&intent.decision.action.change, &intent.stage)
            else {
                continue;
            };
            let lent = self.intents.get(loan).map(|intent| &intent.decision.action.change);
            let Some(Change::Lend { from, pool, .. }) = lent else { continue };
            let (longest_ms, count) = took.entry((from, pool)).or_insert((i64::MIN, 0));
            *longest_ms = (*longest_ms).max(Micros(at_us - intent.at_us()).floor_millis().0);
            *count += 1;
        }
        let enough = took.into_iter().filter(|(_, (_, count))| *count >= MIN_RECLAIMS);
        enough.map(|(of, (longest_ms, _))| (of, longest_ms)).collect()
    }

    /// Judges the kind of the newest score, by the policy of the last plan.
    fn judge(&mut self) {
        let Self { scores, policy, standings, standings_of_all, .. } = self;
        let Some(newest) = scores.last() else { return };
        let rules = policy.as_ref().map_or_else(|| Policy::shipped().record, |policy| policy.record.clone());
        let of_kind: Vec<Score> = scores.iter().filter(|score| score.kind == newest.kind).cloned().collect();
        standings_of_all.fold(newest.kind, &of_kind, &rules);
        if newest.canary.is_none() {
            // A canary's scores do not count against the base policy.
            let own: Vec<Score> = of_kind.into_iter().filter(|score| score.canary.is_none()).collect();
            standings.fold(newest.kind, &own, &rules);
        }
    }

    /// Mode each kind has earned: down from the policy's own mode when it does badly, and up again.
    pub fn earned(&self, policy: &Policy) -> BTreeMap<Kind, Mode> {
        self.earned_by(policy, &self.standings)
    }

    /// The same for a canary, over all scores: a kind that does badly under any policy is not
    /// trusted under it.
    pub fn earned_by_canary(&self, policy: &Policy) -> BTreeMap<Kind, Mode> {
        self.earned_by(policy, &self.standings_of_all)
    }

    fn earned_by(&self, policy: &Policy, standings: &Standings) -> BTreeMap<Kind, Mode> {
        let mut earned = standings.modes(|kind| most(policy, kind));
        // One mode down while its error budget burns fast.
        for (kind, _) in self.slo.steps_down(&policy.slo).filter(|(kind, _)| !kind.restores()) {
            let stepped = most(policy, kind).down();
            let mode = earned.entry(kind).or_insert(stepped);
            *mode = (*mode).min(stepped);
        }
        earned
    }

    /// Forgets intents that ended before `before_us`, and all but the newest scores of each kind.
    /// How many those are, the policy of the last plan says.
    fn forget(&mut self, before_us: i64) {
        self.intents.forget(before_us);
        self.slo.tallies.forget(before_us);
        self.promises.forget(before_us);
        let Self { intents, order, scored, measured, expected, .. } = self;
        measured.meters.retain(|id, _| intents.get(id).is_some());
        order.retain(|id, _| intents.get(id).is_some());
        expected.retain(|id, _| intents.get(id).is_some());
        scored.retain(|id| intents.get(id).is_some());
        if let Some(policy) = &self.policy {
            // Those of canaries are counted apart.
            let keep = 2 * policy.record.window as usize;
            let mut kept: BTreeMap<Kind, usize> = BTreeMap::new();
            let mut is_new = |score: &Score| {
                let count = kept.entry(score.kind).or_default();
                *count += 1;
                *count <= keep
            };
            let newest: Vec<bool> = self.scores.iter().rev().map(&mut is_new).collect();
            let mut newest = newest.into_iter().rev();
            self.scores.retain(|_| newest.next().unwrap_or(true));
        }
    }
}

/// The highest mode a policy allows a kind anywhere.
fn most(policy: &Policy, kind: Kind) -> Mode {
    let own = policy.modes.get(&kind).copied().unwrap_or(Mode::Observe);
    let scopes = policy.scopes.iter().filter(|scope| scope.kind.is_none_or(|of| of == kind));
    scopes.map(|scope| scope.mode).fold(own, Mode::max)
}

fn by_a_person(what: &JournalEvent) -> bool {
    matches!(what, JournalEvent::Step(event) if event.transition.is_by_a_person())
}
