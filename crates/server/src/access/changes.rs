//! What changed between two states of a token file, for the record. Hashes are in none of it.

use std::collections::BTreeMap;

use super::principal::{Bounds, Principal};
use super::token::TokenHash;
use super::token_file::TokenHolders;

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

type Held<'a> = (&'a TokenHash, &'a Principal, &'a Option<i64>);

/// What changed, by name of the principal.
pub(super) fn between(before: &TokenHolders, after: &TokenHolders) -> Vec<PrincipalChange> {
    let (before, after) = (by_id(before), by_id(after));
    let mut changes = Vec::new();
    for (id, (.., was, _)) in before.iter().filter(|(id, _)| !after.contains_key(*id)) {
        changes.push(PrincipalChange::Removed { id: (*id).to_owned(), what: describe(was) });
    }
    for (id, now) in after {
        let id = id.to_owned();
        match before.get(id.as_str()) {
            None => changes.push(PrincipalChange::Added { id, what: describe(now.1) }),
            Some(was) if was != &now => {
                changes.push(PrincipalChange::Changed { id, what: compare(*was, now) });
            }
            Some(_) => {}
        }
    }
    changes
}

fn by_id(holders: &TokenHolders) -> BTreeMap<&str, Held<'_>> {
    holders.iter().map(|(hash, (principal, expires))| (&*principal.id, (hash, principal, expires))).collect()
}

fn describe(principal: &Principal) -> String {
    let bound = match &principal.bounds {
        Bounds::Whole => String::new(),
        Bounds::Nodes { cluster, nodes } => format!(" of cluster {cluster}, nodes {}", nodes.join(",")),
        Bounds::Cluster(cluster) => format!(" of cluster {cluster}"),
        Bounds::Teams(teams) => format!(" of teams {}", teams.join(",")),
    };
    format!("{}{bound}", principal.role)
}

fn compare(was: Held<'_>, now: Held<'_>) -> String {
    let mut what = Vec::new();
    if was.1 != now.1 {
        what.push(format!("{}, now {}", describe(was.1), describe(now.1)));
    }
    if was.0 != now.0 {
        what.push("another token".to_owned());
    }
    if was.2 != now.2 {
        what.push("another end".to_owned());
    }
    what.join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::permission::Role;
    use super::*;

    fn holders(all: &[(&str, &str, Role)]) -> TokenHolders {
        let one = |(token, id, role): &(&str, &str, Role)| {
            let principal = Principal { id: (*id).into(), role: *role, bounds: Bounds::Whole };
            (TokenHash::of(token.as_bytes()), (principal, None))
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn changes_name_principals_and_no_hashes() {
        let before =
            holders(&[("1", "ann", Role::Viewer), ("2", "ben", Role::Viewer), ("3", "cleo", Role::Viewer)]);
        let after =
            holders(&[("1", "ann", Role::Operator), ("9", "cleo", Role::Viewer), ("4", "dan", Role::Agent)]);
        assert_eq!(between(&before, &before), []);
        let of = |id: &str, what: &str| (id.to_owned(), what.to_owned());
        let found: Vec<_> = between(&before, &after)
            .into_iter()
            .map(|change| match change {
                PrincipalChange::Added { id, what } => of(&id, &format!("added {what}")),
                PrincipalChange::Removed { id, what } => of(&id, &format!("removed {what}")),
                PrincipalChange::Changed { id, what } => of(&id, &what),
            })
            .collect();
        let expected = [
            of("ben", "removed viewer"),
            of("ann", "viewer, now operator"),
            of("cleo", "another token"),
            of("dan", "added agent"),
        ];
        assert_eq!(found, expected);
    }
}
