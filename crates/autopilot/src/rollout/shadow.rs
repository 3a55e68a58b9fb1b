//! Shadow policy: plans on the same state and forecast as the acting policy, asks the guard, and is
//! recorded.
//!
//! It has no target and no journal, and its results contain no [`crate::action::Action`], so
//! nothing of it can be carried out.
//!
//! Its plan is not recorded whole. State and forecast answers are in the acting plan beside it; the
//! record holds only the difference, and a hash that identifies a replayed plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::action::{ActionId, Kind};
use crate::fingerprint::fingerprint;
use crate::forecast::{DemandForecast, ForecastAnswer, RecordedForecast};
use crate::guard::{self, History, KillSwitch, Refusal, Rule, Verdict};
use crate::planner::{self, Decision, Plan, PlanRecord, Predicted, Report};
use crate::policy::{Mode, Policy};
use crate::state::{ClusterState, Object};

/// Prefix of the ids of its plans and decisions. No target is ever asked about them.
pub const ID_PREFIX: &str = "shadow-";

/// An event of a shadow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "shadow", rename_all = "snake_case")]
pub enum ShadowEvent {
    /// Its whole policy, once per generation.
    Policy {
        /// Hash that its plans refer to.
        hash: String,
        /// The policy.
        policy: Box<Policy>,
    },
    /// It made a plan beside an acting plan.
    Planned(Box<ShadowPlan>),
    /// It decided something not recorded recently.
    Decided(Box<ShadowDecision>),
}

/// A shadow's plan, as the difference from the acting plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShadowPlan {
    /// Id of the plan.
    pub plan: String,
    /// The acting plan of the same cycle, recorded just before it.
    #[serde(rename = "beside")]
    pub acting_plan: String,
    /// When it was made.
    pub made_us: i64,
    /// Name of its policy.
    pub policy: String,
    /// Hash of its policy as recorded.
    pub policy_hash: String,
    /// Modes its scorecard allows, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at_most: BTreeMap<Kind, Mode>,
    /// Hash of plan and report.
    pub print: String,
    /// Forecast answers that the acting plan does not contain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<ForecastAnswer>,
    /// Number of its decisions.
    pub decisions: u32,
    /// Number of those that the acting plan takes too.
    pub same: u32,
    /// Decisions of the acting plan that it does not take.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only_acting: Vec<MissedDecision>,
}

/// A decision the shadow does not take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedDecision {
    /// The action.
    pub action: ActionId,
    /// Its kind.
    pub kind: Kind,
    /// Predicted net, GPUs × ms.
    pub net_gpu_ms: i64,
}

/// A decision of the shadow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowDecision {
    /// Id of the decision.
    pub id: String,
    /// Id of the plan.
    pub plan: String,
    /// Name of its policy.
    pub policy: String,
    /// Its kind.
    pub kind: Kind,
    /// Object it would change.
    pub object: Object,
    /// Mode of its policy for it.
    pub mode: Mode,
    /// GPUs it would touch.
    pub gpus: u32,
    /// Predicted effect.
    pub predicted: Predicted,
    /// Why, and why now.
    pub reason: String,
    /// The guard's refusal under its policy. `None`: it would be allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// The same decision in the acting plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<ActionId>,
}

/// Input of a shadow.
#[derive(Clone, Copy)]
pub struct ShadowInput<'a> {
    /// The cluster.
    pub state: &'a ClusterState,
    /// The forecast.
    pub forecast: &'a dyn DemandForecast,
    /// Actions actually taken recently.
    pub history: &'a History,
    /// The acting plan.
    pub plan: &'a Plan,
    /// Report of the acting plan.
    pub report: &'a Report,
}

impl std::fmt::Debug for ShadowInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen").field("plan", &self.plan.id).finish_non_exhaustive()
    }
}

/// A shadow policy, and what was recorded of it recently.
#[derive(Debug, Clone)]
pub struct Shadow {
    policy: Policy,
    hash: String,
    /// Generation in which its policy was recorded.
    policy_recorded_in: Option<u64>,
    /// When each decision was last recorded.
    recorded: BTreeMap<String, i64>,
}

/// A shadow's plan and its decisions.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowResult {
    /// The plan.
    pub planned: ShadowPlan,
    /// All its decisions.
    pub decisions: Vec<ShadowDecision>,
}

impl Shadow {
    /// A shadow that has not planned yet.
    pub fn new(policy: Policy) -> Self {
        let hash = format!("{:016x}", fingerprint(&policy));
        Self { policy, hash, policy_recorded_in: None, recorded: BTreeMap::new() }
    }

    /// Its policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Plans on the given input. `at_most` holds the modes its scorecard allows.
    pub fn plan(&self, input: ShadowInput<'_>, at_most: &BTreeMap<Kind, Mode>) -> ShadowResult {
        let policy = Policy { at_most: at_most.clone(), ..self.policy.clone() };
        let (now_us, seed) = (input.plan.made_us, input.plan.seed);
        let (plan, report) = planner::plan(&policy, input.state, input.forecast, None, now_us, seed);
        let acting = &input.plan.decisions;
        let same_as = |decision: &Decision| acting.iter().find(|other| other.is_same(decision));
        // A shadow never acts, so the guard is asked as if the kill switch were on.
        let history = History { switch: KillSwitch::On, earned: at_most.clone(), ..input.history.clone() };
        let id = format!("{ID_PREFIX}{}", plan.id);
        let decided = |decision: &Decision| {
            let refusal = match guard::verdict(&policy, input.state, &history, &decision.action, now_us) {
                // What must come first would begin before it, and no person was asked.
                Verdict::Refused(refusal) if !matches!(refusal.rule, Rule::Order | Rule::Mode) => {
                    Some(refusal)
                }
                _ => None,
            };
            ShadowDecision {
                id: format!("{ID_PREFIX}{}", decision.action.id),
                plan: id.clone(),
                policy: policy.name.clone(),
                kind: decision.kind,
                object: decision.action.change.object(),
                mode: decision.mode,
                gpus: decision.gpus,
                predicted: decision.predicted,
                reason: decision.reason.clone(),
                refusal,
                same_as: same_as(decision).map(|other| other.action.id.clone()),
            }
        };
        let decisions: Vec<ShadowDecision> = plan.decisions.iter().map(decided).collect();
        let taken = |decision: &&Decision| {
            decisions.iter().any(|own| own.same_as.as_ref() == Some(&decision.action.id))
        };
        let only_acting = acting.iter().filter(|decision| !taken(decision)).map(|decision| MissedDecision {
            action: decision.action.id.clone(),
            kind: decision.kind,
            net_gpu_ms: decision.predicted.net_gpu_ms(),
        });
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let known = |answer: &&ForecastAnswer| !input.report.answers.contains(answer);
        let planned = ShadowPlan {
            plan: id.clone(),
            acting_plan: input.plan.id.clone(),
            made_us: now_us,
            policy: policy.name.clone(),
            policy_hash: self.hash.clone(),
            at_most: at_most.clone(),
            print: print(&plan, &report),
            answers: report.answers.iter().filter(known).cloned().collect(),
            decisions: count(decisions.len()),
            same: count(decisions.iter().filter(|own| own.same_as.is_some()).count()),
            only_acting: only_acting.collect(),
        };
        ShadowResult { planned, decisions }
    }

    /// Whether a result holds a decision that the acting plan lacks and that was not recorded
    /// within `every_us`.
    pub fn has_new_decisions(&self, result: &ShadowResult, every_us: i64) -> bool {
        let mut alone = result.decisions.iter().filter(|own| own.same_as.is_none());
        alone.any(|own| self.is_new(own, result.planned.made_us, every_us))
    }

    fn is_new(&self, decided: &ShadowDecision, now_us: i64, every_us: i64) -> bool {
        self.recorded.get(&key(decided)).is_none_or(|at_us| now_us - at_us >= every_us)
    }

    /// Events to record in that generation: the plan, and decisions not recorded within `every_us`.
    pub fn record(&mut self, result: ShadowResult, generation: u64, every_us: i64) -> Vec<ShadowEvent> {
        let now_us = result.planned.made_us;
        let mut events = Vec::new();
        if self.policy_recorded_in != Some(generation) {
            self.policy_recorded_in = Some(generation);
            events
                .push(ShadowEvent::Policy { hash: self.hash.clone(), policy: Box::new(self.policy.clone()) });
        }
        events.push(ShadowEvent::Planned(Box::new(result.planned)));
        for decided in result.decisions {
            if self.is_new(&decided, now_us, every_us) {
                self.recorded.insert(key(&decided), now_us);
                events.push(ShadowEvent::Decided(Box::new(decided)));
            }
        }
        self.recorded.retain(|_, at_us| now_us - *at_us < every_us);
        events
    }
}

/// Key by which a decision counts as recorded: the acting plan's action, otherwise kind, object and
/// refusing rule. The number of GPUs may change between plans.
fn key(decided: &ShadowDecision) -> String {
    match &decided.same_as {
        Some(action) => action.clone(),
        None => format!(
            "{} {} {:?}",
            decided.kind,
            decided.object,
            decided.refusal.as_ref().map(|refusal| refusal.rule)
        ),
    }
}

fn print(plan: &Plan, report: &Report) -> String {
    format!("{:016x}", fingerprint(&(plan, report)))
}

impl ShadowPlan {
    /// Makes the plan again from the recorded policy and the acting plan beside it.
    pub fn replay(&self, policy: &Policy, beside: &PlanRecord) -> (Plan, Report) {
        let policy = Policy { at_most: self.at_most.clone(), ..policy.clone() };
        let answers = beside.report.answers.iter().chain(&self.answers).cloned().collect();
        let (made_us, seed) = (beside.plan.made_us, beside.plan.seed);
        planner::plan(&policy, &beside.state, &RecordedForecast { answers }, None, made_us, seed)
    }

    /// Whether a replayed plan equals this one, byte for byte.
    pub fn matches(&self, plan: &Plan, report: &Report) -> bool {
        self.plan == format!("{ID_PREFIX}{}", plan.id) && self.print == print(plan, report)
    }
}
