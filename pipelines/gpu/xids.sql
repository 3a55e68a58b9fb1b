--! name    = "xids"
--! doc     = "XID errors that GPU drivers reported, one row per occurrence, with what is known of the code."
--! question = "Which GPUs report errors, and what is to be done about them?"
--! example  = "SELECT node, gpu_uuid, xid, name, severity, action, count(*) AS times, max(event_time) AS latest FROM xids WHERE event_time >= now() - INTERVAL '7 days' GROUP BY node, gpu_uuid, xid, name, severity, action ORDER BY times DESC LIMIT 20"
--! sources = ["node_events", "xid_catalog"]
--! [columns]
--! cluster     = "Cluster."
--! node        = "Node."
--! gpu_uuid    = "Device, by its UUID, where it is known."
--! mig_uuid    = "MIG slice; NULL for the device."
--! gpu_index   = "Number of the device in its node."
--! pci_bus_id  = "PCI address of the device."
--! event_time  = "When it was reported."
--! xid         = "XID error code."
--! name        = "Name of the code; NULL if it is not in xid_catalog, as are the next four."
--! severity    = "How grave it is."
--! cause       = "Where it mostly comes from."
--! action      = "What helps."
--! meaning     = "What it says."
--! pid         = "Process the driver named."
--! evidence    = "Who said so, comma separated: nvml, kmsg."
--! description = "What the driver wrote."
SELECT e.cluster, e.node, e.gpu_uuid, e.mig_uuid, e.gpu_index, e.pci_bus_id, e.event_time, e.xid,
       c.name, c.severity, c.cause, c.action, c.meaning,
       e.pid, e.evidence, e.description
FROM node_events e
LEFT JOIN xid_catalog c ON c.code = e.xid
WHERE e.kind = 'XID'
