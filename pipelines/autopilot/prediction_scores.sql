--! name    = "prediction_scores"
--! doc     = "What decisions of the autopilot came to, beside what was predicted and against doing nothing."
--! question = "Is the autopilot worth it: did its decisions gain what they promised, and which would have been better left alone?"
--! example  = "SELECT decision_kind, count(*) AS decisions, avg(verified) AS verified, sum(predicted_gpu_ms) / 3600000 AS predicted_gpu_hours, sum(realised_gpu_ms) / 3600000 AS realised_gpu_hours, count(*) FILTER (WHERE realised_gpu_ms < 0) AS worse_than_nothing FROM prediction_scores GROUP BY decision_kind ORDER BY decision_kind"
--! sources = ["autopilot_events"]
--! [columns]
--! cluster       = "Cluster."
--! action        = "Action."
--! decision_kind = "resize_job, lend, reclaim, adjust_reservation, drain_node, return_node, or preempt."
--! object        = "What it changed, as kind:name."
--! decided_time  = "When it was begun."
--! scored_time   = "When it was scored: the time of its prediction is over, or it failed."
--! verified      = "1 if it was read back as done."
--! predicted_gpu_ms  = "Useful GPU x ms it was to gain net."
--! realised_gpu_ms   = "What it gained net against doing nothing, as measured; below 0: doing nothing was better; NULL: it cannot be said."
--! benefit_ratio_ppm = "Benefit as it came over benefit predicted, millionths; NULL: it cannot be said."
--! within        = "1 if it lay within the bounds of the prediction."
SELECT s.cluster, s.action, s.decision_kind, p.object, p.event_time AS decided_time, s.event_time AS scored_time, s.verified,
       s.predicted_gpu_ms, s.realised_gpu_ms, s.benefit_ratio_ppm, s.within
FROM autopilot_events s
LEFT JOIN autopilot_events p ON p.cluster = s.cluster AND p.action = s.action AND p.kind = 'PROPOSED'
WHERE s.kind = 'SCORED'
