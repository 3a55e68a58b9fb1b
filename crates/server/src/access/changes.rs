//! What changed between two states of a token file, for the record. Hashes are in none of it.

use std::collections::BTreeMap;

use super::token_file::{Entry, TokenFile};

/// A change of a principal.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "`id` names the principal, `what` says what it is, was, or became")]
pub enum PrincipalChange {
    /// It is new.
    Added { id: String, what: String },
    /// It is no more.
    Removed { id: String, what: String },
    /// It has another role, is bound to something else, or has another token or end.
    Changed { id: String, what: String },
}

impl PrincipalChange {
    /// Name of the principal.
    pub fn id(&self) -> &str {
        let (Self::Added { id, .. } | Self::Removed { id, .. } | Self::Changed { id, .. }) = self;
        id
    }
}

/// What changed, by name of the principal; those that are no more first.
pub(super) fn between(before: &TokenFile, after: &TokenFile) -> Vec<PrincipalChange> {
    let (before, after) = (by_id(before), by_id(after));
    let mut changes = Vec::new();
    for (id, was) in before.iter().filter(|(id, _)| !after.contains_key(*id)) {
        changes.push(PrincipalChange::Removed { id: (*id).to_owned(), what: describe(was) });
    }
    for (id, now) in after {
        match before.get(id) {
            None => changes.push(PrincipalChange::Added { id: id.to_owned(), what: describe(now) }),
            Some(was) if *was != now => {
                changes.push(PrincipalChange::Changed { id: id.to_owned(), what: compare(was, now) });
            }
            Some(_) => {}
        }
    }
    changes
}

fn by_id(file: &TokenFile) -> BTreeMap<&str, &Entry> {
    file.tokens.iter().map(|entry| (entry.id.as_str(), entry)).collect()
}

fn describe(entry: &Entry) -> String {
    let cluster = entry.cluster.as_ref().map(|cluster| format!("cluster {cluster}"));
    let nodes = (!entry.nodes.is_empty()).then(|| format!("nodes {}", entry.nodes.join(",")));
    let teams = (!entry.teams.is_empty()).then(|| format!("teams {}", entry.teams.join(",")));
    let bounds: Vec<String> = [cluster, nodes, teams].into_iter().flatten().collect();
    let of = if bounds.is_empty() { "" } else { " of " };
    let by = entry.certificate.as_ref().map(|name| format!(" by certificate {name}")).unwrap_or_default();
    format!("{}{of}{}{by}", entry.role, bounds.join(", "))
}

fn compare(was: &Entry, now: &Entry) -> String {
    let mut what = Vec::new();
    if describe(was) != describe(now) {
        what.push(format!("{}, now {}", describe(was), describe(now)));
    }
    if was.sha256 != now.sha256 {
        what.push(if now.sha256.is_some() { "another token" } else { "no token" }.to_owned());
    }
    if was.expires != now.expires {
        let end = now.expires.as_ref().map_or_else(|| "never".to_owned(), ToString::to_string);
        what.push(format!("ends {end}"));
    }
    what.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(entries: &[(&str, &str, &str)]) -> TokenFile {
        let entry = |(token, id, more): &(&str, &str, &str)| {
            format!("[[token]]\nid = \"{id}\"\nsha256 = \"{}\"\n{more}\n", token.repeat(64))
        };
        toml::from_str(&entries.iter().map(entry).collect::<String>()).unwrap()
    }

    #[test]
    fn changes_name_principals_and_no_hashes() {
        let viewer = "role = \"viewer\"";
        let before =
            file(&[("1", "ann", viewer), ("2", "ben", viewer), ("3", "cleo", viewer), ("5", "eve", viewer)]);
        let agent = "role = \"agent\"\ncluster = \"c\"\nnodes = [\"n1\", \"n2\"]";
        let ends = "role = \"viewer\"\nexpires = 2027-01-01T00:00:00Z";
        let operator = "role = \"operator\"\ncertificate = \"cn:Ann\"";
        let after =
            file(&[("4", "dan", agent), ("5", "eve", ends), ("9", "cleo", viewer), ("1", "ann", operator)]);
        assert_eq!(between(&before, &before), []);
        let shown = |change: PrincipalChange| match change {
            PrincipalChange::Added { id, what } => format!("+ {id}: {what}"),
            PrincipalChange::Removed { id, what } => format!("- {id}: {what}"),
            PrincipalChange::Changed { id, what } => format!("{id}: {what}"),
        };
        let found: Vec<String> = between(&before, &after).into_iter().map(shown).collect();
        let expected = [
            "- ben: viewer",
            "ann: viewer, now operator by certificate cn:Ann",
            "cleo: another token",
            "+ dan: agent of cluster c, nodes n1,n2",
            "eve: ends 2027-01-01T00:00:00Z",
        ];
        assert_eq!(found, expected);
    }
}
