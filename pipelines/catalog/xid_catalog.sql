--! name    = "xid_catalog"
--! doc     = "XID error codes of NVIDIA's driver: schemas/xid_catalog.csv."
--! question = "What does an XID code mean, and which action is recommended?"
--! example  = "SELECT code, name, severity, cause, action, meaning FROM xid_catalog WHERE code IN (48, 63, 79, 94) ORDER BY code"
--! sources = []
--! catalog = { file = "schemas/xid_catalog.csv", key = ["code"], whole_numbers = ["code"] }
--! [columns]
--! code     = "XID error code."
--! name     = "Name of the code."
--! severity = "Severity."
--! cause    = "Usual cause."
--! action   = "Recommended action."
--! meaning  = "Meaning of the code."
SELECT code, name, severity, cause, action, meaning
FROM catalog
