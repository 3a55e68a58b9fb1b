//! Columns of `audit_events`: what people did, and how it ended.

use tidegate_events::v1::{AuditEvent, AuditEventKind};

use super::{Columns, EPOCH_DOC, Read, SEQ_DOC, env, int};

pub(in crate::raw) const AUDIT: Columns<AuditEvent> = &[
    (
        "cluster",
        Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())),
        "Cluster that it concerns; empty if none.",
    ),
    ("event_time", Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)), "When it was recorded."),
    (
        "kind",
        Read::Text(|e| Some(AuditEventKind::try_from(e.kind).map_or("", |k| k.as_str_name()))),
        "QUERY_ASKED, QUERY_ENDED, PRICES_SENT, PRICES_ENDED, PRINCIPAL_ADDED, PRINCIPAL_REMOVED, PRINCIPAL_CHANGED, APPROVE_ASKED, \
         REJECT_ASKED, PAUSE_ASKED, RESUME_ASKED or STEERING_ENDED.",
    ),
    ("id", Read::Text(|e| Some(&e.id)), "Action; equal in its record and that of its end."),
    (
        "principal",
        Read::Text(|e| e.principal.as_deref()),
        "Who: name in the token file, `anonymous` where no token is asked for, or the user of a command.",
    ),
    ("role", Read::Text(|e| e.role.as_deref()), "Role of the principal."),
    ("bound_to", Read::Text(|e| e.teams.as_deref()), "Teams that it is bound to, comma separated."),
    ("peer", Read::Text(|e| e.peer.as_deref()), "Address and port that it came from."),
    (
        "door",
        Read::Text(|e| Some(&e.door)),
        "/v1/sql, /v1/events, /v1/autopilot, page, command or token-file.",
    ),
    (
        "text",
        Read::Text(|e| e.text.as_deref()),
        "The query, the prices, a person's reason, or what changed: the first 8192 bytes.",
    ),
    ("text_bytes", Read::Int(|e| int(e.text_bytes)), "Length of the whole text, bytes."),
    ("text_sha256", Read::Text(|e| e.text_sha256.as_deref()), "SHA-256 of the whole text, hexadecimal."),
    (
        "object",
        Read::Text(|e| e.object.as_deref()),
        "Principal that came, went or changed, or action of the autopilot.",
    ),
    (
        "code",
        Read::Text(|e| e.code.as_deref()),
        "Of an end: ok, cancelled (the client left), or the code of the error.",
    ),
    ("rows", Read::Int(|e| int(e.rows)), "Rows of the answer, or prices that were entered."),
    ("bytes", Read::Int(|e| int(e.bytes)), "Bytes of the answer."),
    ("duration_ms", Read::Int(|e| int(e.duration_ms)), "Time since the action's record, ms."),
    (
        "source",
        Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())),
        "Process that recorded it, as audit/HOST/LIFE.",
    ),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];
