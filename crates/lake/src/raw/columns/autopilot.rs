//! Columns of `autopilot_events`: plans, decisions and steps of the autopilot.

use tidegate_events::v1::{AutopilotEvent, AutopilotEventKind};

use super::{CLUSTER_DOC, Columns, EPOCH_DOC, Read, SEQ_DOC, SOURCE_DOC, env, int};

pub(in crate::raw) const EVENT: Columns<AutopilotEvent> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    ("event_time", Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)), "When the step was taken."),
    (
        "kind",
        Read::Text(|e| Some(AutopilotEventKind::try_from(e.kind).map_or("", |k| k.as_str_name()))),
        "LEASE_TAKEN, PLANNED, POLICY_TAKEN, ALERT, CYCLES, or a step of an action: PROPOSED, APPROVED, APPROVAL_REFUSED, LEASED, \
         NOTICED, ACKNOWLEDGED, APPLYING, APPLIED, VERIFIED, DROPPED, ACTION_FAILED, YIELDED, COMPENSATING, COMPENSATED, SCORED; \
         SHADOW_POLICY, SHADOW_PLANNED, SHADOW_DECIDED; CANARY_BEGAN, CANARY_ENDED.",
    ),
    ("generation", Read::Int(|e| int(Some(e.generation))), "Generation of the lease it was written under."),
    (
        "holder",
        Read::Text(|e| Some(&e.holder)),
        "Who wrote it; of APPROVED and APPROVAL_REFUSED, who approved: a login, or principals and fingerprint of the key that signed.",
    ),
    ("until_time", Read::Time(|e| e.until_ms), "LEASE_TAKEN: until when."),
    ("plan", Read::Text(|e| e.plan.as_deref()), "Plan: a hash of everything it was made from."),
    ("parent_plan", Read::Text(|e| e.parent_plan.as_deref()), "The plan before."),
    ("policy", Read::Text(|e| e.policy.as_deref()), "Name of the policy."),
    ("policy_hash", Read::Text(|e| e.policy_hash.as_deref()), "Hash of the policy."),
    ("state_hash", Read::Text(|e| e.state_hash.as_deref()), "Hash of the observed state."),
    ("observed_time", Read::Time(|e| e.observed_ms), "PLANNED: when the state was observed."),
    ("decisions", Read::Int(|e| e.decisions.map(i64::from)), "PLANNED: decisions that the plan holds."),
    ("action", Read::Text(|e| e.action.as_deref()), "Action: the target carries it out once."),
    ("decision_kind", Read::Text(|e| e.decision_kind.as_deref()), "Kind of decision, e.g. lend."),
    ("object", Read::Text(|e| e.object.as_deref()), "What it changes, as kind:name."),
    ("mode", Read::Text(|e| e.mode.as_deref()), "PROPOSED: the policy's mode for it."),
    ("gpus", Read::Int(|e| e.gpus.map(i64::from)), "PROPOSED: GPUs it touches."),
    (
        "benefit_gpu_ms",
        Read::Int(|e| e.benefit_gpu_ms),
        "Useful GPU x ms it gains, expected; of SCORED as it came.",
    ),
    ("benefit_low_gpu_ms", Read::Int(|e| e.benefit_low_gpu_ms), "The cautious end of that."),
    (
        "cost_gpu_ms",
        Read::Int(|e| e.cost_gpu_ms),
        "Useful GPU x ms it costs, expected; of SCORED as it came.",
    ),
    ("cost_high_gpu_ms", Read::Int(|e| e.cost_high_gpu_ms), "The cautious end of that."),
    (
        "net_micros",
        Read::Int(|e| e.net_micros),
        "Benefit less cost in money, millionths of the currency's unit.",
    ),
    (
        "confidence_ppm",
        Read::Int(|e| e.confidence_ppm.map(i64::from)),
        "Probability that it takes effect and is worth it, millionths.",
    ),
    ("over_ms", Read::Int(|e| e.over_ms), "Time over which it is reckoned, ms."),
    ("expires_time", Read::Time(|e| e.expires_ms), "It is begun by then or not at all."),
    ("effect_ends_time", Read::Time(|e| e.effect_ends_ms), "When its effect ends by itself."),
    ("rule", Read::Text(|e| e.rule.as_deref()), "DROPPED: the guard's rule that said no."),
    ("why", Read::Text(|e| e.why.as_deref()), "Why, in words."),
    ("verified", Read::Int(|e| e.verified.map(i64::from)), "SCORED: 1 if it was read back as done."),
    ("predicted_gpu_ms", Read::Int(|e| e.predicted_gpu_ms), "SCORED: net useful GPU x ms expected."),
    (
        "realised_gpu_ms",
        Read::Int(|e| e.realised_gpu_ms),
        "SCORED: net useful GPU x ms against doing nothing; NULL if it cannot be said.",
    ),
    (
        "benefit_ratio_ppm",
        Read::Int(|e| e.benefit_ratio_ppm),
        "SCORED: benefit as it came over benefit expected, millionths.",
    ),
    (
        "within",
        Read::Int(|e| e.within.map(i64::from)),
        "SCORED: 1 if it lay within the bounds of the prediction.",
    ),
    ("signed_by", Read::Lines(|e| &e.signed_by), "POLICY_TAKEN: principals and key of each who signed it."),
    (
        "widens",
        Read::Lines(|e| &e.widens),
        "POLICY_TAKEN: keys by which it lets the autopilot do more than the policy before.",
    ),
    ("objective", Read::Text(|e| e.objective.as_deref()), "ALERT: promises, verified or cycles."),
    ("severity", Read::Text(|e| e.severity.as_deref()), "ALERT: page or ticket."),
    ("firing", Read::Int(|e| e.firing.map(i64::from)), "ALERT: 1 if it began, 0 if it is over."),
    ("since_time", Read::Time(|e| e.since_ms), "ALERT: since when it stood."),
    (
        "burn_rate_milli",
        Read::Int(|e| int(e.burn_rate_milli)),
        "ALERT: how many times as fast as the objective lets them failures came, thousandths.",
    ),
    ("cycles_made", Read::Int(|e| int(e.cycles_made)), "CYCLES: plans that were made."),
    ("cycles_missed", Read::Int(|e| int(e.cycles_missed)), "CYCLES: plans that were missing."),
    (
        "role",
        Read::Text(|e| e.role.as_deref()),
        "shadow or canary where it is not the policy that acts; policy is then its name.",
    ),
    (
        "beside_plan",
        Read::Text(|e| e.beside_plan.as_deref()),
        "SHADOW_PLANNED: the acting plan of the same cycle.",
    ),
    (
        "same_as",
        Read::Text(|e| e.same_as.as_deref()),
        "SHADOW_DECIDED: the same decision of the acting plan.",
    ),
    ("refused_why", Read::Text(|e| e.refused_why.as_deref()), "SHADOW_DECIDED: what the guard's rule says."),
    ("canary", Read::Text(|e| e.canary.as_deref()), "CANARY_BEGAN, CANARY_ENDED: a hash of all that it is."),
    ("body", Read::Text(|e| Some(&e.body)), "All of it as JSON: `tidegate explain decision` reads it."),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];
