--! name    = "prediction_scores"
--! doc     = "Outcomes of the autopilot's decisions, compared with the prediction and with doing nothing."
--! question = "Is the autopilot worth it: did its decisions gain what was predicted, and which did harm?"
--! example  = "SELECT decision_kind, count(*) AS decisions, avg(verified) AS verified, sum(predicted_gpu_ms) / 3600000 AS predicted_gpu_hours, sum(realised_gpu_ms) / 3600000 AS realised_gpu_hours, count(*) FILTER (WHERE realised_gpu_ms < 0) AS worse_than_nothing FROM prediction_scores GROUP BY decision_kind ORDER BY decision_kind"
--! sources = ["autopilot_events"]
--! [columns]
--! cluster       = "Cluster."
--! action        = "Action."
--! decision_kind = "resize_job, lend, reclaim, adjust_reservation, drain_node, return_node or preempt."
--! object        = "Changed object, as kind:name."
--! decided_time  = "Time of the decision."
--! scored_time   = "Time of the score: the predicted period is over, or the action failed."
--! verified      = "1 if the action was read back as done."
--! predicted_gpu_ms  = "Predicted net gain, useful GPU x ms."
--! realised_gpu_ms   = "Measured net gain against doing nothing; negative if doing nothing was better; NULL if no single value can be measured."
--! benefit_ratio_ppm = "Realised over predicted benefit, millionths; NULL if it cannot be measured."
--! within        = "1 if the outcome lies within the bounds of the prediction."
--! realised_low_gpu_ms  = "Lower bound of the net gain where it is an estimate, e.g. of a drain; equal to it if it is exact; NULL if nothing is known."
--! realised_high_gpu_ms = "Upper bound of the net gain; see realised_low_gpu_ms."
--! without_it    = "What would have happened without the action, in words."
SELECT s.cluster, s.action, s.decision_kind, p.object, p.event_time AS decided_time, s.event_time AS scored_time, s.verified,
       s.predicted_gpu_ms, s.realised_gpu_ms, s.benefit_ratio_ppm, s.within,
       s.realised_low_gpu_ms, s.realised_high_gpu_ms, s.why AS without_it
FROM autopilot_events s
LEFT JOIN autopilot_events p ON p.cluster = s.cluster AND p.action = s.action AND p.kind = 'PROPOSED'
WHERE s.kind = 'SCORED'
