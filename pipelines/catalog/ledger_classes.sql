--! name    = "ledger_classes"
--! doc     = "Classes of GPU time in the ledger, by the evidence for each: schemas/ledger_classes.csv. docs/ledger.md has the exact rules."
--! question = "What does each class of the ledger mean?"
--! example  = "SELECT c.state, l.class, c.meaning, sum(l.gpu_ms) / 3600000 AS gpu_hours FROM ledger_1d l JOIN ledger_classes c ON c.class = l.class AND c.formula = l.formula WHERE l.window_start >= now() - INTERVAL '7 days' GROUP BY c.state, l.class, c.meaning ORDER BY gpu_hours DESC"
--! sources = []
--! catalog = { file = "schemas/ledger_classes.csv", key = ["class", "formula"] }
--! [columns]
--! class   = "Class, as in the ledger."
--! formula = "Evidence for it, as in the ledger: capacity (nodes and reservations), queue (waiting jobs against free GPUs), hold (scheduler and agent), samples (activity of the GPU), steps (reports of the job)."
--! state   = "unusable: it cannot be used; free: no job holds it; held: a job holds it outside steps; step: in steps of a job; unknown: not observed; excess: a correction, because more is held than exists."
--! meaning = "Meaning of the class."
SELECT class, formula, state, meaning
FROM catalog
