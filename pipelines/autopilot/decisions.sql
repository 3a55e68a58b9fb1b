--! name    = "decisions"
--! doc     = "What the autopilot decided on, what each decision was expected to come to, and whether a rule or a person kept it from being done. What a shadow would have decided stands beside it and is never done: `role` tells."
--! question = "What would the autopilot do, what is it worth, and which rule refused it?"
--! example  = "SELECT decided_time, decision_kind, object, mode, gpus, net_gpu_ms / 3600000 AS net_gpu_hours, state, rule, why FROM decisions WHERE role <> 'shadow' ORDER BY decided_time DESC LIMIT 50"
--! sources = ["autopilot_events"]
--! [columns]
--! cluster       = "Cluster."
--! action        = "Action: ask `tidegate explain decision` for it."
--! plan          = "The plan that decided it."
--! decided_time  = "When it was decided."
--! decision_kind = "resize_job, lend, reclaim, adjust_reservation, drain_node, return_node, or preempt."
--! object        = "What it changes, as kind:name."
--! mode          = "suggest (told), approve (done when a person says so), or act; of a shadow's also observe."
--! gpus          = "GPUs it touches."
--! benefit_gpu_ms     = "Useful GPU x ms it gains against doing nothing, expected."
--! benefit_low_gpu_ms = "The cautious end of that."
--! cost_gpu_ms        = "Useful GPU x ms it costs, expected."
--! cost_high_gpu_ms   = "The cautious end of that."
--! net_gpu_ms    = "Benefit less cost."
--! net_micros    = "The same in money, millionths of the currency's unit."
--! confidence_ppm = "Probability that it takes effect and is worth it, millionths."
--! over_ms       = "Time over which it is reckoned, ms."
--! expires_time  = "It is begun by then or not at all."
--! state         = "Its newest step: PROPOSED, APPROVED, LEASED, NOTICED, ACKNOWLEDGED, APPLYING, APPLIED, VERIFIED, DROPPED, ACTION_FAILED, YIELDED, COMPENSATING, or COMPENSATED; of a shadow's SHADOW_DECIDED."
--! approved_by   = "Who approved it: a login, or principals and fingerprint of the key that signed; policy: nobody had to."
--! approval_refused = "Why an approval did not count: it was not signed, or not by somebody who may."
--! rule          = "The guard's rule that refused it."
--! refused_why   = "What the rule said."
--! why           = "Why, and why now."
--! role          = "base: the policy that acts; canary: a candidate that acts for some owners; shadow: a policy that only thinks."
--! policy        = "Name of the policy, where role is canary or shadow; else the plan's."
--! same_as       = "Of a shadow's: the same decision of the policy that acts; NULL: that one did not take it."
WITH steps AS (
    SELECT *, row_number() OVER (PARTITION BY cluster, action ORDER BY kind = 'APPROVAL_REFUSED', epoch DESC, seq DESC) AS place
    FROM autopilot_events
    WHERE action IS NOT NULL AND kind <> 'SCORED'
), became AS (
    SELECT cluster, action,
           max(kind) FILTER (WHERE place = 1) AS state,
           max(holder) FILTER (WHERE kind = 'APPROVED') AS approved_by,
           max(holder || ': ' || why) FILTER (WHERE kind = 'APPROVAL_REFUSED') AS approval_refused,
           max(rule) FILTER (WHERE kind = 'DROPPED') AS rule,
           max(why) FILTER (WHERE kind = 'DROPPED') AS refused_why
    FROM steps
    GROUP BY cluster, action
)
SELECT p.cluster, p.action, p.plan, p.event_time AS decided_time, p.decision_kind, p.object, p.mode, p.gpus,
       p.benefit_gpu_ms, p.benefit_low_gpu_ms, p.cost_gpu_ms, p.cost_high_gpu_ms, p.benefit_gpu_ms - p.cost_gpu_ms AS net_gpu_ms,
       p.net_micros, p.confidence_ppm, p.over_ms, p.expires_time, b.state, b.approved_by, b.approval_refused, coalesce(b.rule, p.rule) AS rule, coalesce(b.refused_why, p.refused_why) AS refused_why, p.why,
       coalesce(p.role, 'base') AS role, p.policy, p.same_as
FROM steps p
JOIN became b ON b.cluster = p.cluster AND b.action = p.action
WHERE p.kind IN ('PROPOSED', 'SHADOW_DECIDED')
