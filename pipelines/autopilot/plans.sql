--! name    = "plans"
--! doc     = "Recorded plans of the autopilot: each plan with a new decision, some whose reasons have changed, and every ten minutes one. Plans of shadow policies, which never act, are listed too; see role."
--! question = "What did the autopilot decide lately, and why did it decide nothing?"
--! example  = "SELECT made_time, plan, policy, decisions, why FROM plans WHERE role <> 'shadow' ORDER BY made_time DESC LIMIT 20"
--! sources = ["autopilot_events"]
--! [columns]
--! cluster       = "Cluster."
--! plan          = "Plan: a hash of all its inputs."
--! made_time     = "Time of the plan."
--! observed_time = "Time of the observed state that it is based on."
--! parent_plan   = "The previous recorded plan."
--! policy        = "Name of the policy."
--! policy_hash   = "Hash of the policy. A different hash is a different policy, whatever its name."
--! state_hash    = "Hash of the observed state."
--! decisions     = "Number of decisions; 0 if doing nothing was best."
--! why           = "Why nothing was done, by kind of decision."
--! holder        = "Lease holder that made it."
--! generation    = "Generation of the lease under which it was made."
--! role          = "base: a plan to be executed. shadow: a plan of a policy that never acts."
--! beside_plan   = "For a shadow: the executed plan that was made from the same state at the same time."
SELECT cluster, plan, event_time AS made_time, observed_time, parent_plan, policy, policy_hash, state_hash, decisions, why, holder, generation,
       CASE WHEN kind = 'SHADOW_PLANNED' THEN 'shadow' ELSE 'base' END AS role, beside_plan
FROM autopilot_events
WHERE kind IN ('PLANNED', 'SHADOW_PLANNED')
