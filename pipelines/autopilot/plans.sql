--! name    = "plans"
--! doc     = "Plans of the autopilot that were recorded: those that decided something new, and every ten minutes one that did not. Those of a shadow, which only thinks, stand beside them: `role` tells."
--! question = "What did the autopilot decide lately, and where it decided nothing, why?"
--! example  = "SELECT made_time, plan, policy, decisions, why FROM plans WHERE role <> 'shadow' ORDER BY made_time DESC LIMIT 20"
--! sources = ["autopilot_events"]
--! [columns]
--! cluster       = "Cluster."
--! plan          = "Plan: a hash of everything it was made from."
--! made_time     = "When it was made."
--! observed_time = "When the state it was made from was observed."
--! parent_plan   = "The plan recorded before."
--! policy        = "Name of the policy."
--! policy_hash   = "Hash of the policy: another hash is another policy, whatever its name."
--! state_hash    = "Hash of the observed state."
--! decisions     = "Decisions it holds; 0: doing nothing was best."
--! why           = "Why nothing was done where nothing was, by kind."
--! holder        = "Who made it."
--! generation    = "Generation of the lease it was made under."
--! role          = "base: made to be done; shadow: only thought, by a policy that never acts."
--! beside_plan   = "Of a shadow's: the plan made from the same state at the same time, to be done."
SELECT cluster, plan, event_time AS made_time, observed_time, parent_plan, policy, policy_hash, state_hash, decisions, why, holder, generation,
       CASE WHEN kind = 'SHADOW_PLANNED' THEN 'shadow' ELSE 'base' END AS role, beside_plan
FROM autopilot_events
WHERE kind IN ('PLANNED', 'SHADOW_PLANNED')
