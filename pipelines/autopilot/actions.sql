--! name    = "actions"
--! doc     = "Actions of the autopilot that were started, with the time of each step and the outcome."
--! question = "What did the autopilot change, how long did it take, and what failed or was undone?"
--! example  = "SELECT applying_time, decision_kind, object, gpus, state, verified_after_ms, why FROM actions ORDER BY applying_time DESC LIMIT 50"
--! sources = ["autopilot_events"]
--! [columns]
--! cluster       = "Cluster."
--! action        = "Action. The target executes it once."
--! plan          = "Plan of the decision."
--! decision_kind = "resize_job, lend, reclaim, adjust_reservation, drain_node, return_node or preempt."
--! object        = "Changed object, as kind:name."
--! gpus          = "GPUs affected."
--! state         = "Latest step: APPLYING, APPLIED, VERIFIED, ACTION_FAILED, YIELDED (changed externally), COMPENSATING or COMPENSATED (undone)."
--! generation    = "Generation of the lease under which it ran."
--! holder        = "Lease holder that took its latest step."
--! approved_by   = "Approver: a login, a principal over HTTP, or the principals and fingerprint of the signing key; `policy` if no approval was needed."
--! decided_time  = "Time of the decision."
--! noticed_time  = "Time at which the affected jobs were notified."
--! acknowledged_time = "Time at which they had written their checkpoints."
--! applying_time = "First request to the target."
--! applied_time  = "Time at which the target accepted it."
--! verified_time = "Time at which it was read back as done."
--! undone_time   = "Time at which it was undone."
--! effect_ends_time  = "Time at which its effect ends by itself."
--! verified_after_ms = "Time from the decision to its verification, ms."
--! why           = "Reason for a failure, or what was found instead, if it was not verified."
WITH steps AS (
    -- One row per step of an action; place 1 is the latest.
    SELECT *, row_number() OVER (PARTITION BY cluster, action ORDER BY epoch DESC, seq DESC) AS place
    FROM autopilot_events
    WHERE action IS NOT NULL AND kind NOT IN ('SCORED', 'EXPECTED', 'COMPARED', 'APPROVAL_REFUSED', 'REJECTED')
)
SELECT cluster, action,
       max(plan) AS plan,
       max(decision_kind) AS decision_kind,
       max(object) AS object,
       max(gpus) AS gpus,
       max(kind) FILTER (WHERE place = 1) AS state,
       max(generation) AS generation,
       max(holder) FILTER (WHERE place = 1) AS holder,
       max(holder) FILTER (WHERE kind = 'APPROVED') AS approved_by,
       min(event_time) FILTER (WHERE kind = 'PROPOSED') AS decided_time,
       min(event_time) FILTER (WHERE kind = 'NOTICED') AS noticed_time,
       min(event_time) FILTER (WHERE kind = 'ACKNOWLEDGED') AS acknowledged_time,
       min(event_time) FILTER (WHERE kind = 'APPLYING') AS applying_time,
       min(event_time) FILTER (WHERE kind = 'APPLIED') AS applied_time,
       min(event_time) FILTER (WHERE kind = 'VERIFIED') AS verified_time,
       min(event_time) FILTER (WHERE kind = 'COMPENSATED') AS undone_time,
       max(effect_ends_time) AS effect_ends_time,
       ms_between(min(event_time) FILTER (WHERE kind = 'PROPOSED'), min(event_time) FILTER (WHERE kind = 'VERIFIED')) AS verified_after_ms,
       max(why) FILTER (WHERE kind IN ('ACTION_FAILED', 'YIELDED')) AS why
FROM steps
GROUP BY cluster, action
HAVING count(*) FILTER (WHERE kind = 'APPLYING') > 0
