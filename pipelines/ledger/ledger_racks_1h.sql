--! name    = "ledger_racks_1h"
--! doc     = "Where every GPU-ms went, per UTC hour, by rack and switch: ledger_1h with the location of each node at the start of the hour (node_places). Sums equal those of ledger_1h exactly. To break it down by job, team or GPU, join ledger_1h with node_places in the same way."
--! question = "Which racks and switches lose most GPU time, and to what?"
--! example  = "SELECT rack, switch, class, sum(gpu_ms) / 3600000 AS gpu_hours, sum(cost_micros) / 1000000 AS cost FROM ledger_racks_1h WHERE window_start >= now() - INTERVAL '7 days' GROUP BY rack, switch, class ORDER BY gpu_hours DESC LIMIT 100"
--! sources = ["ledger_1h", "node_places"]
--! [columns]
--! window_start   = "Start of the UTC hour."
--! cluster        = "Cluster."
--! pool           = "Pool, as in ledger_1h."
--! rack           = "Rack; NULL if not reported, and for time of no known node."
--! switch         = "Switch that the nodes were connected to; NULL as for rack."
--! switches_above = "Switches above that one, lowest first, comma separated."
--! class          = "Class of the time: one of ledger_classes."
--! formula        = "Evidence for the class, as in ledger_1m."
--! gpu_ms         = "GPU x ms."
--! cost_micros    = "Cost by the price book, millionths of its currency; NULL if no price is known."
SELECT l.window_start, l.cluster, l.pool, p.rack, p.switch, p.switches_above, l.class, l.formula,
       sum(l.gpu_ms) AS gpu_ms, sum(l.cost_micros) AS cost_micros
FROM ledger_1h l
-- Locations of a node follow each other without a gap, so each row meets one, or none if no
-- location was reported.
LEFT JOIN node_places p ON p.cluster = l.cluster AND p.node = l.node
                       AND coalesce(p.from_time <= l.window_start, true) AND coalesce(p.to_time > l.window_start, true)
GROUP BY l.window_start, l.cluster, l.pool, p.rack, p.switch, p.switches_above, l.class, l.formula
