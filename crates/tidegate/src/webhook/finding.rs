//! Findings: rows of tables, as lines for people.

use serde_json::{Map, Value};
use tidegate_text::shown;

/// Longest part of a line that comes from a table, characters.
const PART_CHARS: usize = 300;

/// One finding.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Equal for the same finding, whenever it is found.
    pub id: String,
    /// When it began, as text that sorts.
    pub at: String,
    pub text: String,
}

/// A kind of finding: a query of those that hold now, the newest ones first.
pub(super) struct Question {
    pub kind: &'static str,
    pub sql: &'static str,
    /// Columns that make a finding what it is.
    id: &'static [&'static str],
    /// The line, with columns in braces. A part in brackets is there if its columns are.
    line: &'static str,
}

pub(super) const QUESTIONS: [Question; 5] = [
    Question {
        kind: "decision",
        sql: "SELECT cluster, action, replace(decision_kind, '_', ' ') AS decision_kind, object, gpus, \
              to_char(expires_time, '%F %H:%M') AS until, why, to_char(decided_time, '%FT%T') AS at FROM decisions \
              WHERE mode = 'approve' AND state = 'PROPOSED' AND role <> 'shadow' AND expires_time > now() \
              ORDER BY decided_time DESC LIMIT 1000",
        id: &["cluster", "action"],
        line: "{cluster}: the autopilot asks to {decision_kind} {object}[ ({gpus} GPUs)], until {until} UTC[: {why}]. \
               `tidegate autopilot approve {action}`",
    },
    Question {
        kind: "straggler",
        sql: "SELECT cluster, job_id, episode, lower(blame) AS blame, rank, role, node, gpu_index, class, \
              slowdown_ppm / 10000 AS percent, to_char(confirmed_time, '%FT%T') AS at FROM stragglers \
              WHERE state = 'CONFIRMED' ORDER BY confirmed_time DESC LIMIT 1000",
        id: &["cluster", "job_id", "episode"],
        line: "{cluster}: job {job_id} is slowed down by its {blame}[ {rank}][ {role}][ on {node}][, GPU {gpu_index}]: \
               {class}[, {percent} % slower]. `tidegate explain job {job_id}`",
    },
    Question {
        kind: "node",
        sql: "SELECT cluster, node, state, gpu_index, evidence, to_char(since_time, '%FT%T') AS at FROM node_health \
              WHERE state IN ('BAD', 'FAILED') ORDER BY since_time DESC LIMIT 1000",
        id: &["cluster", "node", "state", "at"],
        line: "{cluster}: node {node} is {state}[, GPU {gpu_index}][: {evidence}]",
    },
    Question {
        kind: "promise",
        sql: "SELECT cluster, why, source, epoch, seq, to_char(event_time, '%FT%T') AS at FROM autopilot_events \
              WHERE kind = 'PROMISE' AND firing AND event_time > now() - INTERVAL '1 day' \
              ORDER BY event_time DESC LIMIT 1000",
        id: &["cluster", "source", "epoch", "seq"],
        line: "{cluster}: {why}. `tidegate autopilot record`",
    },
    Question {
        kind: "journal",
        sql: "SELECT cluster, CASE WHEN kind = 'ENTRY_REFUSED' THEN 'entries of the autopilot''s journal do not count' \
              ELSE 'an approval does not count' END AS what, action, why, source, epoch, seq, \
              to_char(event_time, '%FT%T') AS at FROM autopilot_events \
              WHERE kind IN ('ENTRY_REFUSED', 'APPROVAL_REFUSED') AND event_time > now() - INTERVAL '1 day' \
              ORDER BY event_time DESC LIMIT 1000",
        id: &["cluster", "source", "epoch", "seq"],
        line: "{cluster}: {what}[ ({action})][: {why}]",
    },
];

impl Question {
    /// The row as a finding.
    pub fn finding(&self, row: &Map<String, Value>) -> Finding {
        let id = self.id.iter().map(|column| part(row, column).unwrap_or_default());
        let id = std::iter::once(self.kind.to_owned()).chain(id).collect::<Vec<_>>().join(" ");
        let at = part(row, "at").unwrap_or_default();
        Finding { id, at, text: line(self.line, row) }
    }
}

/// The line of a row.
fn line(pattern: &str, row: &Map<String, Value>) -> String {
    let mut text = String::new();
    let mut rest = pattern;
    while let Some(at) = rest.find(['[', '{']) {
        text.push_str(&rest[..at]);
        let is_optional = rest[at..].starts_with('[');
        let end = if is_optional { ']' } else { '}' };
        let Some((inner, after)) = rest[at + 1..].split_once(end) else { break };
        match is_optional {
            true => text.extend(filled(inner, row)),
            false => text.push_str(&part(row, inner).unwrap_or_else(|| "?".to_owned())),
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

/// A part with one column; `None` if the row has no value of it.
fn filled(pattern: &str, row: &Map<String, Value>) -> Option<String> {
    let (before, rest) = pattern.split_once('{')?;
    let (column, after) = rest.split_once('}')?;
    Some(format!("{before}{}{after}", part(row, column)?))
}

/// A value as Slack shows it: names come from outside, and `<`, `>` and `&` would make links and
/// call people.
fn part(row: &Map<String, Value>, column: &str) -> Option<String> {
    let text = match row.get(column)? {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let short: String = text.chars().take(PART_CHARS).collect();
    let cut = if short.len() < text.len() { "…" } else { "" };
    let escaped = shown(&short).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // A code span of the line would end there.
    Some(format!("{}{cut}", escaped.replace('`', "'")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::{PART_CHARS, QUESTIONS};

    fn row(row: Value) -> Map<String, Value> {
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn a_row_is_a_line() {
        let straggler = row(
            json!({"cluster": "c", "job_id": "7", "episode": 2, "blame": "rank", "rank": 12, "node": "n1",
            "class": "LINK", "percent": 19, "at": "2026-11-26T10:00:00"}),
        );
        let found = QUESTIONS[1].finding(&straggler);
        assert_eq!(found.id, "straggler c 7 2");
        assert_eq!(
            found.text,
            "c: job 7 is slowed down by its rank 12 on n1: LINK, 19 % slower. `tidegate explain job 7`"
        );
        let node = QUESTIONS[2]
            .finding(&row(json!({"cluster": "c", "node": "n1", "state": "BAD", "gpu_index": null})));
        assert_eq!(node.text, "c: node n1 is BAD");
    }

    #[test]
    fn names_call_nobody_and_stay_short() {
        let hostile = row(json!({"cluster": "c", "node": "<!channel> & `rm`\u{1b}[2J\nx", "state": "BAD",
            "evidence": "y".repeat(2 * PART_CHARS)}));
        let text = QUESTIONS[2].finding(&hostile).text;
        let begin = "c: node &lt;!channel&gt; &amp; 'rm'\\u{1b}[2J\\nx is BAD: yyy";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.ends_with("y…") && text.len() < 2 * PART_CHARS, "{text}");
    }

    #[test]
    fn braces_in_a_name_are_text() {
        let node =
            QUESTIONS[2].finding(&row(json!({"cluster": "{state}", "node": "[{why}]", "state": "BAD"})));
        assert_eq!(node.text, "{state}: node [{why}] is BAD");
    }
}
