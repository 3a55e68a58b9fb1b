//! Policies that act because people signed for them.
//!
//! People do not sign the file alone but a [`PolicyStatement`] about it, in `FILE.statement` beside
//! it: for one cluster, as the next after the policy that acts, until a day. A statement that was
//! good once, for a wider policy or for another cluster, is not good again.

use std::fs;
use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use tidegate_autopilot::executor::AdoptedStatement;
use tidegate_autopilot::policy::{Policy, PolicyChange, changes, signers_needed};

use super::statement::{self, ActsAs, PolicyStatement, hash};
use super::{MOST_BYTES, POLICY, Signer, Signers, read_text};

const BEGIN: &str = "-----BEGIN SSH SIGNATURE-----";
const END: &str = "-----END SSH SIGNATURE-----";
/// How long a statement may be adopted, as the message proposes it.
const PROPOSED: TimeDelta = TimeDelta::days(30);

/// A policy as it was read: what is signed is what is used, even if the file changes meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct PolicyFile<'a> {
    /// The file.
    pub file: &'a Path,
    /// Its text.
    pub text: &'a str,
    /// The policy in it.
    pub policy: &'a Policy,
}

/// What acts on a cluster before a policy does.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// The cluster.
    pub cluster: &'a str,
    /// The policy that acts.
    pub policy: &'a Policy,
    /// The statement under which it acts; `None` before the first.
    pub adopted: Option<&'a AdoptedStatement>,
}

/// A policy file whose signatures suffice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signed {
    /// The signers: different people.
    pub by: Vec<Signer>,
    /// What the policy changes compared with the one before it.
    pub changes: Vec<PolicyChange>,
    /// Number of the statement.
    pub sequence: u64,
    /// The statement that they signed.
    pub statement: String,
    /// Their signatures, armoured.
    pub signatures: Vec<String>,
}

impl Standing<'_> {
    /// The statement that lets a policy act next, for the next 30 days.
    pub fn next_statement(&self, text: &str, acts_as: ActsAs, now: DateTime<Utc>) -> PolicyStatement {
        PolicyStatement {
            cluster: self.cluster.to_owned(),
            acts_as,
            sequence: self.adopted.map_or(0, |adopted| adopted.sequence) + 1,
            after: self.adopted.map(|adopted| adopted.id.clone()),
            expires: now + PROPOSED,
            policy: hash(text.as_bytes()),
        }
    }

    /// Whether a statement lets the policy with this text act after what stands. The statement that
    /// acts already may do so again, as after a restart.
    ///
    /// # Errors
    /// Why not.
    fn check(
        &self,
        statement: &PolicyStatement,
        text: &str,
        acts_as: ActsAs,
        now: DateTime<Utc>,
    ) -> Result<(), String> {
        let next = self.next_statement(text, acts_as, now);
        if statement.policy != next.policy {
            return Err("the policy is not the one that it is about: it was changed afterwards".to_owned());
        }
        if (&statement.cluster, statement.acts_as) != (&next.cluster, acts_as) {
            let PolicyStatement { cluster, acts_as, .. } = statement;
            return Err(format!("it is about cluster {cluster}, {acts_as:?}, and not {}", next.cluster));
        }
        if self.adopted.is_some_and(|adopted| adopted.id == hash(statement.text().as_bytes())) {
            return Ok(());
        }
        if (statement.sequence, &statement.after) != (next.sequence, &next.after) {
            return Err(format!(
                "it is number {} after {}, and the next is number {} after {}: another policy was adopted meanwhile, or it is an old one",
                statement.sequence,
                statement.after.as_deref().unwrap_or("none"),
                next.sequence,
                next.after.as_deref().unwrap_or("none")
            ));
        }
        statement.check_expiry(now)
    }
}

impl Signers {
    /// Admits a policy as the successor of what stands. A change that lets the autopilot do more
    /// needs signatures of two people, any other of one.
    ///
    /// # Errors
    /// The statement or signatures are missing or do not count: the message says for which keys of
    /// the policy, and how to sign.
    pub fn admit(
        &self,
        candidate: &PolicyFile<'_>,
        acts_as: ActsAs,
        standing: &Standing<'_>,
        now: DateTime<Utc>,
    ) -> Result<Signed, String> {
        let beside = statement_file(candidate.file);
        let at = beside.display();
        if !beside.exists() {
            let next = standing.next_statement(candidate.text, acts_as, now).text();
            return Err(format!(
                "{} is not signed: there is no {at}. Write this into it (expires: any time within a year), and sign it:\n{next}{}",
                candidate.file.display(),
                how_to_sign(&beside)
            ));
        }
        let text = read_text(&beside, statement::MOST_BYTES)?;
        let statement = PolicyStatement::parse(&text).map_err(|why| format!("{at}: {why}"))?;
        let wrong = standing.check(&statement, candidate.text, acts_as, now);
        wrong.map_err(|why| {
            let next = standing.next_statement(candidate.text, acts_as, now).text();
            format!("{at}: {why}. The next statement is:\n{next}{}", how_to_sign(&beside))
        })?;
        let given = self.policy_signers(&beside, &text, now)?;
        let changes = changes(standing.policy, candidate.policy);
        let needed = signers_needed(standing.policy, candidate.policy);
        if given.len() < needed {
            let by: Vec<&Signer> = given.iter().map(|(signer, _)| signer).collect();
            return Err(too_few(&beside, needed, &by, &changes, &standing.policy.name));
        }
        let (by, signatures) = given.into_iter().unzip();
        Ok(Signed { by, changes, sequence: statement.sequence, statement: text, signatures })
    }

    /// Checks a policy file with its statement and signatures as a change of `before`, wherever the
    /// statement places it. Whether that place is the next, the autopilot's journal says.
    ///
    /// # Errors
    /// As for [`Self::admit`].
    pub fn check(
        &self,
        candidate: &PolicyFile<'_>,
        before: &Policy,
        now: DateTime<Utc>,
    ) -> Result<(PolicyStatement, Signed), String> {
        let beside = statement_file(candidate.file);
        let text = read_text(&beside, statement::MOST_BYTES).map_err(|why| {
            format!("{why}; `tidegate autopilot run --once` prints what to write and to sign")
        })?;
        let statement =
            PolicyStatement::parse(&text).map_err(|why| format!("{}: {why}", beside.display()))?;
        let follows = |after: &String| AdoptedStatement {
            sequence: statement.sequence.saturating_sub(1),
            id: after.clone(),
        };
        let adopted = statement.after.as_ref().map(follows);
        let standing = Standing { cluster: &statement.cluster, policy: before, adopted: adopted.as_ref() };
        let signed = self.admit(candidate, statement.acts_as, &standing, now)?;
        Ok((statement, signed))
    }

    /// The signers of a statement, with their signatures in FILE.sig and FILE.NAME.sig beside it.
    ///
    /// # Errors
    /// One of the signatures does not count.
    fn policy_signers(
        &self,
        file: &Path,
        text: &str,
        now: DateTime<Utc>,
    ) -> Result<Vec<(Signer, String)>, String> {
        let mut signers: Vec<(Signer, String)> = Vec::new();
        for beside in signature_files(file) {
            let at = beside.display();
            let armoured = read_text(&beside, MOST_BYTES)?;
            for signature in signatures(&armoured) {
                let signer = self
                    .verify(POLICY, text.as_bytes(), signature, now)
                    .map_err(|why| format!("{at}: {why}"))?;
                if signers.iter().all(|(other, _)| signer.differs(other)) {
                    signers.push((signer, signature.to_owned()));
                }
            }
        }
        Ok(signers)
    }
}

/// FILE.statement.
fn statement_file(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".statement");
    PathBuf::from(name)
}

fn how_to_sign(beside: &Path) -> String {
    let at = beside.display();
    format!(
        "To sign: ssh-keygen -Y sign -n {POLICY} -f KEY {at}, which writes {at}.sig; the second one as {at}.NAME.sig beside it"
    )
}

/// The message about a statement that too few people signed.
fn too_few(beside: &Path, needed: usize, by: &[&Signer], changes: &[PolicyChange], before: &str) -> String {
    let who = match by.is_empty() {
        true => "nobody whose signature counts".to_owned(),
        false => by.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
    };
    let wider: Vec<String> = changes.iter().filter(|changed| changed.widens).map(describe_change).collect();
    let because = match needed {
        1 => String::new(),
        _ => {
            format!(", as it lets the autopilot do more than policy {before:?}: {}", wider.join("; "))
        }
    };
    let people = if needed == 1 { "one person" } else { "two people" };
    format!(
        "{} needs the signature of {people}{because}. It is signed by {who}. {}",
        beside.display(),
        how_to_sign(beside)
    )
}

/// A change of a policy key, in words.
fn describe_change(changed: &PolicyChange) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
    format!("{} from {} to {}", changed.key, value(&changed.before), value(&changed.after))
}

/// FILE.sig and FILE.NAME.sig, sorted by name.
fn signature_files(file: &Path) -> Vec<PathBuf> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let beside = |entry: &str| {
        let between = entry.strip_prefix(name).and_then(|rest| rest.strip_suffix(".sig"));
        between.is_some_and(|between| between.is_empty() || between.starts_with('.'))
    };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(beside))
        .collect();
    found.sort();
    found
}

/// The armoured signatures of a text, which may hold several.
fn signatures(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(BEGIN).map(|(from, _)| {
        let rest = &text[from..];
        rest.find(END).map_or(rest, |to| &rest[..to + END.len()])
    })
}
