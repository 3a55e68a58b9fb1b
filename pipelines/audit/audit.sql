--! name    = "audit"
--! doc     = "What people did: queries, changes of prices and of the token file, and what they told the autopilot over HTTP, as servers and commands recorded them; approvals, rejections, switches, policies and canaries, as the journal of the autopilot has them. One row per action, for administrators alone."
--! question = "Who asked what, and who changed prices, tokens, approvals or the switch?"
--! example  = "SELECT time, action, principal, role, peer, outcome, text FROM audit WHERE action <> 'query' ORDER BY time DESC LIMIT 50"
--! sources = ["audit_events", "autopilot_events"]
--! [columns]
--! time        = "When it was recorded, which is before it was done; of the autopilot's actions, when it took them in."
--! action      = "query, prices; approve, reject, pause, resume (over HTTP); principal_added, principal_removed, principal_changed; approved, approval_refused, rejected, switched, policy_taken, canary_began, canary_ended."
--! principal   = "Who: name in the token file, `anonymous` where no token is asked for, or the user of a command. Of the autopilot's actions: a login, the signer, or the process that wrote it. NULL for changes of the token file, which does not say whose they are."
--! role        = "Role of the principal, where it came by HTTP."
--! bound_to    = "Teams that the principal is bound to, comma separated."
--! peer        = "Address and port that the request came from; a proxy's where there is one."
--! door        = "/v1/sql, /v1/events, /v1/autopilot, page, command, token-file, or autopilot."
--! cluster     = "Cluster that it concerns; empty for queries and tokens."
--! object      = "What it is about: a principal, an action of the autopilot as its id, a policy or a canary."
--! text        = "The query, the prices, what changed of a principal, or the reason: the first 8192 bytes of the text."
--! text_bytes  = "Length of the whole text, bytes."
--! text_sha256 = "SHA-256 of the whole text, in hexadecimal digits."
--! outcome     = "ok, cancelled (the client left), or the code of the error. NULL where an action has none, and where its end is not known: it still runs, its process ended, or it was refused because its record came too late."
--! result_rows  = "Rows of the answer, or prices that were entered."
--! result_bytes = "Bytes of the answer."
--! duration_ms = "Time from the record to the end, ms."
--! id          = "Action; random."
--! source      = "Process that recorded it."
SELECT min(event_time) AS time,
       CASE max(kind) FILTER (WHERE code IS NULL)
            WHEN 'QUERY_ASKED' THEN 'query'
            WHEN 'PRICES_SENT' THEN 'prices'
            WHEN 'APPROVE_ASKED' THEN 'approve'
            WHEN 'REJECT_ASKED' THEN 'reject'
            WHEN 'PAUSE_ASKED' THEN 'pause'
            WHEN 'RESUME_ASKED' THEN 'resume'
            ELSE lower(max(kind) FILTER (WHERE code IS NULL)) END AS action,
       max(principal) AS principal,
       max(role) AS role,
       max(bound_to) AS bound_to,
       max(peer) AS peer,
       max(door) AS door,
       max(cluster) AS cluster,
       max(object) AS object,
       max(text) AS text,
       max(text_bytes) AS text_bytes,
       max(text_sha256) AS text_sha256,
       max(code) AS outcome,
       max(rows) AS result_rows,
       max(bytes) AS result_bytes,
       max(duration_ms) AS duration_ms,
       id,
       source
FROM audit_events
GROUP BY id, source
HAVING count(*) FILTER (WHERE code IS NULL) > 0
UNION ALL
SELECT event_time AS time,
       lower(kind) AS action,
       coalesce(signed_by, holder) AS principal,
       NULL AS role,
       NULL AS bound_to,
       NULL AS peer,
       'autopilot' AS door,
       cluster,
       coalesce(action, policy, canary) AS object,
       why AS text,
       NULL AS text_bytes,
       NULL AS text_sha256,
       NULL AS outcome,
       NULL AS result_rows,
       NULL AS result_bytes,
       NULL AS duration_ms,
       concat(source, '/', epoch, '/', seq) AS id,
       source
FROM autopilot_events
WHERE kind IN ('APPROVED', 'APPROVAL_REFUSED', 'REJECTED', 'SWITCHED', 'POLICY_TAKEN', 'CANARY_BEGAN', 'CANARY_ENDED')
  AND (kind <> 'APPROVED' OR holder <> 'policy')
