--! name    = "actions"
--! doc     = "What the autopilot did, step by step: an action that was begun, when each of its steps was taken, and what it came to."
--! question = "What did the autopilot change, how long did it take, and what failed or was undone?"
--! example  = "SELECT applying_time, decision_kind, object, gpus, state, verified_after_ms, why FROM actions ORDER BY applying_time DESC LIMIT 50"
--! sources = ["autopilot_events"]
--! [columns]
--! cluster       = "Cluster."
--! action        = "Action: the target carries it out once."
--! plan          = "The plan that decided it."
--! decision_kind = "resize_job, lend, reclaim, adjust_reservation, drain_node, return_node, or preempt."
--! object        = "What it changes, as kind:name."
--! gpus          = "GPUs it touches."
--! state         = "Its newest step: APPLYING, APPLIED, VERIFIED, ACTION_FAILED, YIELDED (somebody else changed it), COMPENSATING or COMPENSATED (undone)."
--! generation    = "Generation of the lease it was carried out under."
--! holder        = "Who took its newest step."
--! approved_by   = "Who approved it: a login, or principals and fingerprint of the key that signed; policy: nobody had to."
--! decided_time  = "When it was decided."
--! noticed_time  = "When the jobs it disturbs were told."
--! acknowledged_time = "When they had written their checkpoint."
--! applying_time = "When the target was first asked."
--! applied_time  = "When the target took it."
--! verified_time = "When it was read back as done."
--! undone_time   = "When it was undone."
--! effect_ends_time  = "When its effect ends by itself."
--! verified_after_ms = "From the decision until it was read back as done."
--! why           = "Why it failed, or what was found, where it was not verified."
WITH steps AS (
    SELECT *, row_number() OVER (PARTITION BY cluster, action ORDER BY epoch DESC, seq DESC) AS place
    FROM autopilot_events
    WHERE action IS NOT NULL AND kind NOT IN ('SCORED', 'APPROVAL_REFUSED')
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
