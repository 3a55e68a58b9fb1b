--! name    = "xids"
--! doc     = "XID errors that GPU drivers reported: one row per occurrence, with the catalogue's entry for the code."
--! question = "Which GPUs report errors, and which action is recommended?"
--! example  = "SELECT node, gpu_uuid, xid, name, severity, action, count(*) AS times, max(event_time) AS latest FROM xids WHERE event_time >= now() - INTERVAL '7 days' GROUP BY node, gpu_uuid, xid, name, severity, action ORDER BY times DESC LIMIT 20"
--! sources = ["node_events", "xid_catalog"]
--! [columns]
--! cluster     = "Cluster."
--! node        = "Node."
--! gpu_uuid    = "UUID of the device, if known."
--! mig_uuid    = "MIG slice; NULL for the device."
--! gpu_index   = "Index of the device in its node."
--! pci_bus_id  = "PCI address of the device."
--! event_time  = "Time of the report."
--! xid         = "XID error code."
--! name        = "Name of the code; NULL if it is not in xid_catalog, as the next four columns."
--! severity    = "Severity."
--! cause       = "Usual cause."
--! action      = "Recommended action."
--! meaning     = "Meaning of the code."
--! pid         = "Process that the driver named."
--! evidence    = "Sources of the report, comma separated: nvml, kmsg."
--! description = "Text of the driver."
SELECT e.cluster, e.node, e.gpu_uuid, e.mig_uuid, e.gpu_index, e.pci_bus_id, e.event_time, e.xid,
       c.name, c.severity, c.cause, c.action, c.meaning,
       e.pid, e.evidence, e.description
FROM node_events e
LEFT JOIN xid_catalog c ON c.code = e.xid
WHERE e.kind = 'XID'
