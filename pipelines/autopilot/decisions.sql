--! name    = "decisions"
--! doc     = "Decisions of the autopilot, with the expected outcome of each, and whether a rule or a person stopped it. Decisions of a shadow policy are listed too and never executed; see role."
--! question = "What would the autopilot do, what is it worth, and which rule refused it?"
--! example  = "SELECT decided_time, decision_kind, object, mode, gpus, net_gpu_ms / 3600000 AS net_gpu_hours, state, rule, why FROM decisions WHERE role <> 'shadow' ORDER BY decided_time DESC LIMIT 50"
--! sources = ["autopilot_events"]
--! [columns]
--! cluster       = "Cluster."
--! action        = "Action; `tidegate explain decision` explains it."
--! plan          = "Plan of the decision."
--! decided_time  = "Time of the decision."
--! decision_kind = "resize_job, lend, reclaim, adjust_reservation, drain_node, return_node or preempt."
--! object        = "Object to change, as kind:name."
--! mode          = "suggest (only shown), approve (executed after a person approves) or act; for a shadow also observe."
--! gpus          = "GPUs affected."
--! benefit_gpu_ms     = "Expected gain against doing nothing, useful GPU x ms."
--! benefit_low_gpu_ms = "Lower bound of the gain."
--! cost_gpu_ms        = "Expected cost, useful GPU x ms."
--! cost_high_gpu_ms   = "Upper bound of the cost."
--! net_gpu_ms    = "Benefit minus cost."
--! net_micros    = "The net benefit in money, millionths of the currency."
--! confidence_ppm = "Probability that it takes effect and pays off, millionths."
--! over_ms       = "Period over which benefit and cost are estimated, ms."
--! expires_time  = "Deadline: it starts by then or not at all."
--! state         = "Latest step: PROPOSED, APPROVED, REJECTED, LEASED, NOTICED, ACKNOWLEDGED, NOTICE_IGNORED, APPLYING, APPLIED, VERIFIED, DROPPED, ACTION_FAILED, YIELDED, COMPENSATING or COMPENSATED; for a shadow SHADOW_DECIDED."
--! approved_by   = "Approver: a login, a principal over HTTP, or the principals and fingerprint of the signing key; `policy` if no approval was needed."
--! approval_refused = "Why an approval did not count: it was not signed, or the signer was not authorised."
--! rejected_by   = "Who rejected it before it began: a login, or a principal over HTTP."
--! rejected_why  = "That person's reason."
--! rule          = "Rule of the guard that refused it."
--! refused_why   = "Explanation by the rule."
--! why           = "Reason for the decision and for its time."
--! role          = "base: the policy that acts. canary: a candidate that acts for some owners. shadow: a policy that never acts."
--! policy        = "Name of the policy if role is canary or shadow; else the plan's."
--! same_as       = "For a shadow: the same decision of the acting policy; NULL if that policy did not make it."
WITH steps AS (
    -- One row per step of an action; place 1 is the latest.
    SELECT *, row_number() OVER (PARTITION BY cluster, action ORDER BY kind = 'APPROVAL_REFUSED', epoch DESC, seq DESC) AS place
    FROM autopilot_events
    WHERE action IS NOT NULL AND kind NOT IN ('SCORED', 'EXPECTED', 'COMPARED')
), outcomes AS (
    -- One row per action.
    SELECT cluster, action,
           max(kind) FILTER (WHERE place = 1) AS state,
           max(holder) FILTER (WHERE kind = 'APPROVED') AS approved_by,
           max(holder || ': ' || why) FILTER (WHERE kind = 'APPROVAL_REFUSED') AS approval_refused,
           max(holder) FILTER (WHERE kind = 'REJECTED') AS rejected_by,
           max(why) FILTER (WHERE kind = 'REJECTED') AS rejected_why,
           max(rule) FILTER (WHERE kind = 'DROPPED') AS rule,
           max(why) FILTER (WHERE kind = 'DROPPED') AS refused_why
    FROM steps
    GROUP BY cluster, action
)
SELECT p.cluster, p.action, p.plan, p.event_time AS decided_time, p.decision_kind, p.object, p.mode, p.gpus,
       p.benefit_gpu_ms, p.benefit_low_gpu_ms, p.cost_gpu_ms, p.cost_high_gpu_ms, p.benefit_gpu_ms - p.cost_gpu_ms AS net_gpu_ms,
       p.net_micros, p.confidence_ppm, p.over_ms, p.expires_time, b.state, b.approved_by, b.approval_refused, b.rejected_by, b.rejected_why, coalesce(b.rule, p.rule) AS rule, coalesce(b.refused_why, p.refused_why) AS refused_why, p.why,
       coalesce(p.role, 'base') AS role, p.policy, p.same_as
FROM steps p
JOIN outcomes b ON b.cluster = p.cluster AND b.action = p.action
WHERE p.kind IN ('PROPOSED', 'SHADOW_DECIDED')
