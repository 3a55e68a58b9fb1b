--! name    = "xid_catalog"
--! doc     = "What the XID error codes of NVIDIA's driver say: schemas/xid_catalog.csv as a table."
--! question = "What does an XID code mean, and what helps?"
--! example  = "SELECT code, name, severity, cause, action, meaning FROM xid_catalog WHERE code IN (48, 63, 79, 94) ORDER BY code"
--! sources = []
--! catalog = { file = "schemas/xid_catalog.csv", key = ["code"], whole_numbers = ["code"] }
--! [columns]
--! code     = "XID error code."
--! name     = "Name of the code."
--! severity = "How grave it is."
--! cause    = "Where it mostly comes from."
--! action   = "What helps."
--! meaning  = "What it says."
SELECT code, name, severity, cause, action, meaning
FROM catalog
