//! What OpenAPI says of the HTTP door, made of the formats, bounds and permissions in the code.

use serde_json::{Map, Value, json};
use tidegate_log::wire;

use crate::access::{Action, Role};
use crate::door::limits::MAX_BODY_BYTES;
use crate::format::Format;

/// A path with a method.
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// What a principal must be allowed to do; `None` where everybody may.
    action: Option<Action>,
    request: Option<Value>,
    /// Status of a whole answer.
    success: u16,
    /// Content types of a whole answer, with their schemas.
    answer: Vec<(&'static str, Value)>,
    /// Statuses of refusals, beside those of the guard.
    refusals: &'static [(u16, &'static str)],
}

/// Refusals of a query.
const OF_QUERIES: &[(u16, &str)] = &[
    (400, "The request or its query is wrong; `code` says how"),
    (406, "No format that was accepted is written here"),
    (413, "The body is too long"),
    (422, "The result has more rows than the limit, or a row too long"),
    (500, "The engine, the storage or the process of the query failed"),
    (503, "Memory is short, too many queries wait, or the query could not be recorded"),
    (504, "The query reached its time limit"),
];
const OF_APPENDS: &[(u16, &str)] = &[
    (400, "It is no request of this kind"),
    (404, "There is no such topic or partition"),
    (408, "The body took too long to arrive"),
    (409, "A newer epoch of its producer writes, or records are missing before these"),
    (413, "The body is too long"),
    (415, "The content type is another"),
    (503, "The log did not take it"),
    (507, "The log has reached its bound"),
];

const OF_AUTOPILOT: &[(u16, &str)] = &[
    (400, "The request is wrong; `message` says how"),
    (404, "No autopilot runs in this process, or no such action waits"),
    (409, "The action does not wait for this, or another process acts"),
    (413, "The body is too long"),
    (415, "The content type is another"),
    (422, "A signature is required, or does not count"),
    (500, "The folder of the autopilot cannot be used"),
    (503, "The autopilot has not begun yet, or the log did not take the record"),
];

/// The description, as JSON of OpenAPI 3.1.
pub fn openapi() -> Value {
    let mut paths = Map::new();
    for operation in operations() {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = operation.described();
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Queries, progress and appends over HTTP. Which role may do what is in x-roles; the other doors \
                            are Postgres' protocol, Arrow Flight SQL, MCP and the command line.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "`tidegate token new` makes one"}},
            "schemas": {"Refusal": refusal(), "Query": query(), "Tables": tables()},
        },
    })
}

fn operations() -> Vec<Operation> {
    let text = || json!({"type": "string"});
    let object = || json!({"type": "object"});
    let scraped = || vec![("application/openmetrics-text", text()), ("text/plain", text())];
    let open = |path, summary, answer| Operation {
        method: "get",
        path,
        summary,
        action: None,
        request: None,
        success: 200,
        answer,
        refusals: &[],
    };
    let reads =
        |path, summary, action, answer| Operation { action: Some(action), ..open(path, summary, answer) };
    vec![
        open(
            "/",
            "The web page; a list of paths for clients that accept no HTML",
            vec![("text/html", text()), ("text/plain", text())],
        ),
        open("/healthz", "200 while the process lives", vec![("text/plain", text())]),
        Operation {
            refusals: &[(503, "No query is answered")],
            ..open("/readyz", "200 when queries are answered", vec![("application/json", object())])
        },
        reads(
            "/v1/status",
            "Progress: lag, watermarks, records",
            Action::Status,
            vec![("application/json", object())],
        ),
        reads("/metrics", "How this process is, for Prometheus", Action::Status, scraped()),
        reads(
            "/metrics/cluster",
            "Figures of the cluster by pool, team and class, for Prometheus",
            Action::Status,
            scraped(),
        ),
        reads(
            "/metrics/gpus",
            "GPUs by the names of dcgm-exporter, for Prometheus",
            Action::Status,
            scraped(),
        ),
        reads(
            "/v1/tables",
            "Tables, columns and functions with their meaning",
            Action::Query,
            vec![("application/json", json!({"$ref": "#/components/schemas/Tables"}))],
        ),
        Operation {
            method: "post",
            path: "/v1/sql",
            summary: "Runs a query that reads",
            action: Some(Action::Query),
            request: Some(json!({
                "required": true,
                "description": format!("At most {MAX_BODY_BYTES} bytes"),
                "content": {
                    "text/plain": {"schema": text()},
                    "application/json": {"schema": {"$ref": "#/components/schemas/Query"}},
                },
            })),
            success: 200,
            answer: Format::ALL.into_iter().map(|format| (format.media_type(), schema_of(format))).collect(),
            refusals: OF_QUERIES,
        },
        reads(
            "/v1/log",
            "Topics of the log, and its clock",
            Action::Topics,
            vec![("application/json", object())],
        ),
        Operation {
            method: "post",
            path: "/v1/events",
            summary: "Appends events, as agents do; each needs the permission of its kind",
            action: Some(Action::Samples),
            request: Some(json!({
                "required": true,
                "description": "An AppendRequest, see schemas/README.md",
                "content": {wire::CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}},
            })),
            success: 200,
            answer: vec![("application/json", object())],
            refusals: OF_APPENDS,
        },
        reads(
            "/v1/changes",
            "Server-sent events: tables that were committed anew",
            Action::Query,
            vec![("text/event-stream", text())],
        ),
        Operation {
            refusals: OF_AUTOPILOT,
            ..reads(
                "/v1/autopilot",
                "What the autopilot of this process waits for, and its switch",
                Action::Autopilot,
                vec![("application/json", object())],
            )
        },
        Operation {
            refusals: &[(500, "Its file cannot be used; `message` says what to do")],
            ..reads(
                "/v1/autopilot/rehearsal",
                "The last rehearsal of a policy: what it would have changed for each owner; null before the first",
                Action::Rehearsal,
                vec![("application/json", object())],
            )
        },
        Operation {
            refusals: OF_AUTOPILOT,
            ..reads(
                "/v1/autopilot/statement",
                "The text to sign, for `?approve=ACTION` or `?switch=on`",
                Action::Autopilot,
                vec![("text/plain", text())],
            )
        },
        decision(
            "/v1/autopilot/approve",
            "Lets an action that waits begin",
            Action::Decide,
            202,
            &["action", "why", "statement", "signature"],
        ),
        decision(
            "/v1/autopilot/reject",
            "Drops an action, and refuses the like for a day",
            Action::Decide,
            202,
            &["action", "why"],
        ),
        decision("/v1/autopilot/pause", "Lets nothing begin any more", Action::Pause, 200, &["why"]),
        decision(
            "/v1/autopilot/resume",
            "Lets the autopilot act again",
            Action::Resume,
            200,
            &["why", "statement", "signature"],
        ),
    ]
}

/// A decision of a person about the autopilot, sent as JSON with these fields.
fn decision(
    path: &'static str,
    summary: &'static str,
    action: Action,
    success: u16,
    fields: &[&str],
) -> Operation {
    let described = [
        ("action", "Its id, as in `decisions`"),
        ("why", "Recorded with who decided"),
        ("statement", "What was signed, where signatures are required"),
        ("signature", "As `ssh-keygen -Y sign` writes it"),
    ];
    let described = described.into_iter().filter(|(name, _)| fields.contains(name));
    let properties: Map<String, Value> = described
        .map(|(name, doc)| (name.to_owned(), json!({"type": "string", "description": doc})))
        .collect();
    let required: Vec<&str> = fields.iter().copied().filter(|field| *field == "action").collect();
    let schema = json!({
        "type": "object", "required": required, "additionalProperties": false, "properties": properties,
    });
    Operation {
        method: "post",
        path,
        summary,
        action: Some(action),
        request: Some(json!({"required": true, "content": {"application/json": {"schema": schema}}})),
        success,
        answer: vec![("application/json", json!({"type": "object"}))],
        refusals: OF_AUTOPILOT,
    }
}

impl Operation {
    fn described(&self) -> Value {
        let refused = |why: &str| {
            json!({
                "description": why,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
            })
        };
        let content = self.answer.iter().map(|(of, schema)| ((*of).to_owned(), json!({"schema": schema})));
        let content: Map<String, Value> = content.collect();
        let mut responses = Map::new();
        responses.insert(self.success.to_string(), json!({"description": "The answer", "content": content}));
        for (status, why) in self.refusals {
            responses.insert(status.to_string(), refused(why));
        }
        if self.action.is_some() {
            responses.insert("401".into(), refused("No token or certificate that counts"));
            responses.insert("403".into(), refused("Not permitted, or sent by a page of another origin"));
        }
        responses.insert("421".into(), refused("The server does not answer to the name in `Host`"));
        let mut described = json!({"summary": self.summary, "responses": responses});
        if let Some(request) = &self.request {
            described["requestBody"] = request.clone();
        }
        if let Some(action) = self.action {
            let roles = self.roles(action);
            described["security"] = json!([{"token": []}]);
            described["x-roles"] = roles.into_iter().map(Role::name).collect();
        }
        described
    }

    /// Who may do something there: one action, or, of what is appended, any.
    fn roles(&self, action: Action) -> Vec<Role> {
        let here = |other: &Action| other.door().split(", ").any(|door| door == self.path);
        let appends = action.topic().is_some();
        let may = |role: &Role| {
            Action::ALL
                .into_iter()
                .filter(|other| if appends { here(other) } else { *other == action })
                .any(|other| role.may(other))
        };
        Role::ALL.into_iter().filter(may).collect()
    }
}

/// What an answer in a format is.
fn schema_of(format: Format) -> Value {
    match format {
        Format::Json => json!({"type": "array", "items": {"type": "object"}}),
        Format::Table | Format::Jsonl | Format::Csv => json!({"type": "string"}),
        Format::Arrow | Format::Parquet => json!({"type": "string", "format": "binary"}),
    }
}

fn query() -> Value {
    json!({
        "type": "object",
        "required": ["sql"],
        "additionalProperties": false,
        "properties": {
            "sql": {"type": "string", "description": "One SELECT"},
            "format": {"enum": Format::ALL.map(Format::name), "description": "Takes precedence over `Accept`"},
            "max_rows": {"type": "integer", "minimum": 0, "description": "Fail if there are more"},
            "timeout_ms": {"type": "integer", "minimum": 0, "description": "Less than the server's limit, ms"},
        },
    })
}

fn refusal() -> Value {
    json!({
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"type": "string", "description": "Stable, for programs"},
            "message": {"type": "string"},
            "hint": {"type": "string", "description": "How to fix it"},
        },
    })
}

fn tables() -> Value {
    let text = || json!({"type": "string"});
    json!({
        "type": "object",
        "required": ["tables", "functions"],
        "properties": {
            "tables": {"type": "array", "items": {"type": "object", "properties": {
                "name": text(),
                "doc": text(),
                "key": {"type": "array", "items": text()},
                "columns": {"type": "array", "items": {"type": "object", "properties": {
                    "name": text(), "type": text(), "doc": text(),
                }}},
            }}},
            "functions": {"type": "array", "items": {"type": "object", "properties": {
                "name": text(), "usage": text(), "doc": text(),
            }}},
        },
    })
}
