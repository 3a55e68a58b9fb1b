//! Audit records as events.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use tidegate_events::v1::{AuditEvent, AuditEventKind, CapacityEvent, Envelope};
use uuid::Uuid;

use crate::access::{Bounds, Principal, PrincipalChange, Role};

/// Bytes that are kept of the text of an action.
pub const TEXT_BYTES: usize = 8 << 10;
/// Bytes that are kept of the names of teams.
const TEAMS_BYTES: usize = 1 << 10;
/// Who asks where nobody is asked for a token.
const ANONYMOUS: &str = "anonymous";
/// Door of what the token file says.
const TOKEN_FILE: &str = "token-file";

/// Who acts, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Name in the token file, `anonymous`, or the user of a command.
    pub principal: String,
    /// What a principal of a door is to the site.
    pub role: Option<Role>,
    /// Teams that it is bound to, comma separated.
    pub teams: Option<String>,
    /// Where its request came from.
    pub peer: Option<SocketAddr>,
    /// By which door.
    pub door: &'static str,
}

impl Actor {
    /// Whoever sent a request.
    pub(crate) fn at_door(principal: &Principal, peer: SocketAddr, door: &'static str) -> Self {
        let teams = match &principal.bounds {
            Bounds::Teams(teams) => Some(start_of(&teams.join(","), TEAMS_BYTES).to_owned()),
            _ => None,
        };
        let name = if principal.role == Role::Local { ANONYMOUS } else { &principal.id };
        Self { principal: name.to_owned(), role: Some(principal.role), teams, peer: Some(peer), door }
    }

    /// The user who runs a command, as the environment names it: a claim, as every name is that
    /// somebody with this data folder or the keys of Kafka gives.
    pub fn at_keyboard(user: String) -> Self {
        Self { principal: user, role: None, teams: None, peer: None, door: "command" }
    }
}

/// The text of an action: its first [`TEXT_BYTES`], its length and a hash of all.
#[derive(Debug, Clone, Default)]
pub struct Text {
    head: String,
    bytes: u64,
    hash: Sha256,
}

impl Text {
    /// A whole text.
    pub fn of(text: &str) -> Self {
        let mut of = Self::default();
        of.push(text);
        of
    }

    /// Adds to its end.
    pub fn push(&mut self, more: &str) {
        // Once something was left out, nothing comes after it.
        if self.bytes == self.head.len() as u64 {
            self.head.push_str(start_of(more, TEXT_BYTES - self.head.len()));
        }
        self.bytes += more.len() as u64;
        self.hash.update(more);
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// As many of the first characters as fit.
fn start_of(text: &str, most_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(most_bytes)]
}

/// How an action ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// `ok`, `cancelled`, or the code of the error.
    pub code: &'a str,
    /// Rows of an answer, or prices that were entered.
    pub rows: Option<u64>,
    /// Bytes of an answer.
    pub bytes: Option<u64>,
}

impl<'a> Outcome<'a> {
    /// An action that was not taken, or not to its end.
    pub fn failed(code: &'a str) -> Self {
        Self { code, rows: None, bytes: None }
    }
}

/// A new id of an action.
pub fn new_id() -> String {
    Uuid::new_v4().simple().to_string()
}

/// Source of the records of one life of a process.
pub fn source() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.');
    let host: String = host.chars().filter(is_plain).take(64).collect();
    format!("audit/{}/{}", if host.is_empty() { "unknown" } else { &host }, new_id())
}

/// The record of an action that is about to be taken.
pub fn recorded(kind: AuditEventKind, id: &str, actor: &Actor, cluster: &str, text: Text) -> AuditEvent {
    AuditEvent {
        principal: Some(actor.principal.clone()),
        role: actor.role.map(|role| role.name().to_owned()),
        teams: actor.teams.clone(),
        peer: actor.peer.map(|peer| peer.to_string()),
        ..with_text(kind, id, cluster, actor.door, text)
    }
}

/// The record of its end, this long after it.
pub fn ended(
    kind: AuditEventKind,
    id: &str,
    door: &str,
    outcome: &Outcome<'_>,
    after: Duration,
) -> AuditEvent {
    AuditEvent {
        code: Some(outcome.code.to_owned()),
        rows: outcome.rows,
        bytes: outcome.bytes,
        duration_ms: u64::try_from(after.as_millis()).ok(),
        ..bare(kind, id, "", door)
    }
}

/// The record of a change of the token file. Who wrote the file, it does not say.
pub(crate) fn principal_changed(change: &PrincipalChange) -> AuditEvent {
    let (kind, text) = match change {
        PrincipalChange::Added { what, .. } => (AuditEventKind::PrincipalAdded, what),
        PrincipalChange::Removed { what, .. } => (AuditEventKind::PrincipalRemoved, what),
        PrincipalChange::Changed { what, .. } => (AuditEventKind::PrincipalChanged, what),
    };
    let object = Some(change.id().to_owned());
    AuditEvent { object, ..with_text(kind, &new_id(), "", TOKEN_FILE, Text::of(text)) }
}

fn with_text(kind: AuditEventKind, id: &str, cluster: &str, door: &str, text: Text) -> AuditEvent {
    let Text { head, bytes, hash } = text;
    AuditEvent {
        text: Some(head),
        text_bytes: Some(bytes),
        text_sha256: Some(format!("{:x}", hash.finalize())),
        ..bare(kind, id, cluster, door)
    }
}

fn bare(kind: AuditEventKind, id: &str, cluster: &str, door: &str) -> AuditEvent {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    AuditEvent {
        envelope: Some(Envelope {
            cluster: cluster.to_owned(),
            event_time_ms: now_ms,
            observed_time_ms: now_ms,
            ..Envelope::default()
        }),
        kind: kind.into(),
        id: id.to_owned(),
        door: door.to_owned(),
        ..AuditEvent::default()
    }
}

/// A price as one line, for the record of who entered it.
pub fn show_price(price: &CapacityEvent) -> String {
    let any = |name: &Option<String>| name.clone().unwrap_or_else(|| "any".to_owned());
    let amount = price.price_micros_per_gpu_hour.map_or_else(
        || "ends".to_owned(),
        |micros| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000),
    );
    let cluster = price.envelope.as_ref().map_or("", |envelope| envelope.cluster.as_str());
    let from_ms = price.envelope.as_ref().map_or(0, |envelope| envelope.event_time_ms);
    let from = chrono::DateTime::from_timestamp_millis(from_ms).map(|from| from.to_rfc3339());
    format!(
        "cluster {cluster}, pool {}, model {}, from {}: {} {amount} {}\n",
        any(&price.pool),
        any(&price.gpu_model),
        from.unwrap_or_else(|| format!("{from_ms} ms")),
        price.contract.as_deref().unwrap_or("-"),
        price.currency.as_deref().unwrap_or("-"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_text_its_start_length_and_hash_are_kept() {
        let long = "ä".repeat(TEXT_BYTES);
        let mut text = Text::of("x");
        text.push(&long);
        text.push("not kept");
        let actor = Actor::at_keyboard("ann".into());
        let event = recorded(AuditEventKind::QueryAsked, "1", &actor, "", text);
        let kept = event.text.unwrap();
        assert_eq!((kept.len(), kept.chars().count()), (TEXT_BYTES - 1, TEXT_BYTES / 2));
        assert_eq!(event.text_bytes, Some(1 + 2 * TEXT_BYTES as u64 + 8));
        let whole = format!("x{long}not kept");
        assert_eq!(event.text_sha256.unwrap(), format!("{:x}", Sha256::digest(whole)));
    }

    #[test]
    fn a_source_names_its_host_and_its_life() {
        let (one, other) = (source(), source());
        assert!(one.starts_with("audit/") && one.len() < 128 && one != other, "{one}");
    }
}
