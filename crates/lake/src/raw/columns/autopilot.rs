//! Columns of `autopilot_events`: plans, decisions and steps of the autopilot.

use tidegate_events::v1::{AutopilotEvent, AutopilotEventKind};

use super::{CLUSTER_DOC, Columns, EPOCH_DOC, Read, SEQ_DOC, SOURCE_DOC, env, int};

pub(in crate::raw) const EVENT: Columns<AutopilotEvent> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    ("event_time", Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)), "When the step was taken."),
    (
        "kind",
        Read::Text(|e| Some(AutopilotEventKind::try_from(e.kind).map_or("", |k| k.as_str_name()))),
        "LEASE_TAKEN, PLANNED, POLICY_TAKEN, ALERT, CYCLES, MEASURED, or a step of an action: PROPOSED, APPROVED, APPROVAL_REFUSED, REJECTED, LEASED, \
         NOTICED, ACKNOWLEDGED, NOTICE_IGNORED, APPLYING, APPLIED, VERIFIED, DROPPED, ACTION_FAILED, YIELDED, COMPENSATING, COMPENSATED, SCORED, EXPECTED, COMPARED; \
         SHADOW_POLICY, SHADOW_PLANNED, SHADOW_DECIDED; CANARY_BEGAN, CANARY_ENDED; SWITCHED, ENTRY_REFUSED; PROMISE.",
    ),
    ("generation", Read::Int(|e| int(Some(e.generation))), "Generation of the lease it was written under."),
    (
        "holder",
        Read::Text(|e| Some(&e.holder)),
        "Process that wrote it; for APPROVED and APPROVAL_REFUSED the approver: a login, a principal over HTTP, or principals and \
         fingerprint of the signing key; for REJECTED who rejected it.",
    ),
    ("until_time", Read::Time(|e| e.until_ms), "LEASE_TAKEN: end of the lease."),
    ("plan", Read::Text(|e| e.plan.as_deref()), "Plan: a hash of all its inputs."),
    ("parent_plan", Read::Text(|e| e.parent_plan.as_deref()), "The previous plan."),
    ("policy", Read::Text(|e| e.policy.as_deref()), "Name of the policy."),
    ("policy_hash", Read::Text(|e| e.policy_hash.as_deref()), "Hash of the policy."),
    ("state_hash", Read::Text(|e| e.state_hash.as_deref()), "Hash of the observed state."),
    ("observed_time", Read::Time(|e| e.observed_ms), "PLANNED: when the state was observed."),
    ("decisions", Read::Int(|e| e.decisions.map(i64::from)), "PLANNED: number of decisions in the plan."),
    (
        "action",
        Read::Text(|e| e.action.as_deref()),
        "Action: its id, under which the target applies it once.",
    ),
    ("decision_kind", Read::Text(|e| e.decision_kind.as_deref()), "Kind of decision, e.g. lend."),
    ("object", Read::Text(|e| e.object.as_deref()), "What it changes, as kind:name."),
    ("mode", Read::Text(|e| e.mode.as_deref()), "PROPOSED: the policy's mode for it."),
    ("gpus", Read::Int(|e| e.gpus.map(i64::from)), "PROPOSED: GPUs it touches."),
    (
        "benefit_gpu_ms",
        Read::Int(|e| e.benefit_gpu_ms),
        "Useful GPU x ms it gains: expected, or for SCORED realised.",
    ),
    ("benefit_low_gpu_ms", Read::Int(|e| e.benefit_low_gpu_ms), "Cautious bound of that."),
    (
        "cost_gpu_ms",
        Read::Int(|e| e.cost_gpu_ms),
        "Useful GPU x ms it costs: expected, or for SCORED realised.",
    ),
    ("cost_high_gpu_ms", Read::Int(|e| e.cost_high_gpu_ms), "Cautious bound of that."),
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
    ("over_ms", Read::Int(|e| e.over_ms), "Time over which benefit and cost are counted, ms."),
    ("expires_time", Read::Time(|e| e.expires_ms), "It must start by then."),
    ("effect_ends_time", Read::Time(|e| e.effect_ends_ms), "When its effect ends on its own."),
    ("rule", Read::Text(|e| e.rule.as_deref()), "DROPPED: the guard's rule that refused it."),
    (
        "why",
        Read::Text(|e| e.why.as_deref()),
        "Reason, in words; for SCORED what would have happened without the action.",
    ),
    ("verified", Read::Int(|e| e.verified.map(i64::from)), "SCORED: 1 if reading it back showed it done."),
    ("predicted_gpu_ms", Read::Int(|e| e.predicted_gpu_ms), "SCORED: net useful GPU x ms expected."),
    (
        "realised_gpu_ms",
        Read::Int(|e| e.realised_gpu_ms),
        "SCORED: net useful GPU x ms compared with doing nothing; NULL if not known.",
    ),
    (
        "benefit_ratio_ppm",
        Read::Int(|e| e.benefit_ratio_ppm),
        "SCORED: realised benefit over expected benefit, millionths.",
    ),
    (
        "within",
        Read::Int(|e| e.within.map(i64::from)),
        "SCORED: 1 if the result was within the bounds of the prediction.",
    ),
    (
        "realised_low_gpu_ms",
        Read::Int(|e| e.realised_low_gpu_ms),
        "SCORED: lower bound of realised_gpu_ms; equal to it if it is exact.",
    ),
    (
        "realised_high_gpu_ms",
        Read::Int(|e| e.realised_high_gpu_ms),
        "SCORED: upper bound of realised_gpu_ms; equal to it if it is exact.",
    ),
    ("signed_by", Read::Lines(|e| &e.signed_by), "POLICY_TAKEN: principals and key of each signer."),
    (
        "widens",
        Read::Lines(|e| &e.widens),
        "POLICY_TAKEN: keys that allow the autopilot more than the previous policy did.",
    ),
    ("objective", Read::Text(|e| e.objective.as_deref()), "ALERT: promises, verified or cycles."),
    ("severity", Read::Text(|e| e.severity.as_deref()), "ALERT: page or ticket."),
    ("firing", Read::Int(|e| e.firing.map(i64::from)), "ALERT: 1 if it started, 0 if it ended."),
    ("since_time", Read::Time(|e| e.since_ms), "ALERT: when it started."),
    (
        "burn_rate_milli",
        Read::Int(|e| int(e.burn_rate_milli)),
        "ALERT: burn rate: how many times faster than the objective allows failures came, thousandths.",
    ),
    ("cycles_made", Read::Int(|e| int(e.cycles_made)), "CYCLES: plans made."),
    ("cycles_missed", Read::Int(|e| int(e.cycles_missed)), "CYCLES: plans missed."),
    (
        "role",
        Read::Text(|e| e.role.as_deref()),
        "shadow or canary, if it is not the acting policy; `policy` is then its name.",
    ),
    (
        "beside_plan",
        Read::Text(|e| e.beside_plan.as_deref()),
        "SHADOW_PLANNED: the acting policy's plan of the same cycle.",
    ),
    (
        "same_as",
        Read::Text(|e| e.same_as.as_deref()),
        "SHADOW_DECIDED: the equal decision of the acting plan.",
    ),
    ("refused_why", Read::Text(|e| e.refused_why.as_deref()), "SHADOW_DECIDED: reason of the guard's rule."),
    ("canary", Read::Text(|e| e.canary.as_deref()), "CANARY_BEGAN, CANARY_ENDED: a hash of its definition."),
    ("body", Read::Text(|e| Some(&e.body)), "The whole entry as JSON; `tidegate explain decision` reads it."),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];
