//! Which entries of a journal count, where its writers prove them.
//!
//! Each writer's entries form a chain: a number, and the hash of the entry before it. So an entry
//! that somebody else wrote, that is there twice, out of order, or behind one that was taken away,
//! is known wherever the journal is read, and does not count. What a person decided (approvals,
//! policies, the switch) counts only with that person's signature in the entry; a rejection, which
//! only stops, takes none.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tidegate_autopilot::executor::{
    AdoptedStatement, IssuedPolicy, JournalEntry, JournalEvent, PolicyAdopted, Switched,
};
use tidegate_autopilot::intent::{POLICY_APPROVER, SignedApproval, Transition};
use tidegate_autopilot::rollout::CanaryEvent;
use tidegate_events::Millis;
use tidegate_events::v1::AutopilotEvent;

use super::proof::{self, Place};
use crate::authority::{
    APPROVE, ActsAs, ApprovalStatement, JOURNAL, POLICY, PolicyStatement, SWITCH, Signers, SwitchStatement,
    hash,
};

/// How far an entry may be dated before one in front of it, µs: clocks of two machines.
const CLOCKS_US: i64 = 3_600_000_000;
/// Writers that are remembered. A writer of an older generation changes nothing anyway.
const WRITERS: usize = 256;

/// Where the chains of a journal's writers stand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chains {
    writers: BTreeMap<String, Link>,
    /// Hash of the last entry that counts.
    last: Option<String>,
    /// Newest time of an entry that counts, µs since 1970.
    newest_us: i64,
    policy: Option<AdoptedStatement>,
    /// Generation of the first entry that was proven.
    from_generation: Option<u64>,
}

/// The last entry of a writer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Link {
    generation: u64,
    seq: u64,
    hash: String,
}

impl Chains {
    /// Hash of the last entry that counts, on which a writer begins a chain.
    pub(super) fn last(&self) -> &str {
        self.last.as_deref().unwrap_or("none")
    }

    /// Generation of the first entry that was proven.
    pub(crate) fn first_proven(&self) -> Option<u64> {
        self.from_generation
    }

    /// Takes in the next event of the log. `entry`: what it holds, unless a newer version wrote it;
    /// its place in the chain is taken all the same.
    ///
    /// # Errors
    /// Why it does not count.
    pub(super) fn take(
        &mut self,
        signers: &Signers,
        event: &AutopilotEvent,
        entry: Option<&JournalEntry>,
    ) -> Result<(), String> {
        let envelope = event.envelope.clone().unwrap_or_default();
        let (text, proof) = proof::detach(&event.body);
        let Some(proof) = proof else {
            // Before the first proof they are of older versions, or of a time without keys.
            return if self.writers.is_empty() { Ok(()) } else { Err("nobody signed it".to_owned()) };
        };
        let place = Place {
            cluster: &envelope.cluster,
            source: &envelope.source,
            generation: envelope.epoch,
            seq: envelope.seq,
        };
        let statement = proof::statement(place, &proof.previous, &text);
        let at_us = entry.map_or(Millis(envelope.event_time_ms).to_micros().0, |entry| entry.at_us);
        let at = time(at_us)?;
        signers.verify(JOURNAL, statement.as_bytes(), &proof.signature, at)?;
        if entry.is_some_and(|entry| entry.generation != place.generation) {
            return Err("its generation is not the one that it was written in".to_owned());
        }
        self.follows(place, &proof.previous)?;
        if at_us < self.newest_us.saturating_sub(CLOCKS_US) {
            return Err("it is dated more than an hour before one in front of it".to_owned());
        }
        let hash = hash(statement.as_bytes());
        let link = Link { generation: place.generation, seq: place.seq, hash: hash.clone() };
        self.writers.insert(place.source.to_owned(), link);
        self.forget();
        self.last = Some(hash);
        self.newest_us = self.newest_us.max(at_us);
        self.from_generation.get_or_insert(place.generation);
        let Some(entry) = entry else { return Ok(()) };
        decided_by_people(signers, place.cluster, entry, at)?;
        match &entry.event {
            JournalEvent::Policy(PolicyAdopted { issued: Some(issued), .. }) => self.adopt(issued, at),
            _ => Ok(()),
        }
    }

    /// Whether an entry is the next of its writer.
    fn follows(
        &self,
        Place { source, generation, seq, .. }: Place<'_>,
        previous: &str,
    ) -> Result<(), String> {
        match self.writers.get(source) {
            Some(link) if generation == link.generation => {
                if seq <= link.seq {
                    return Err(format!("its writer wrote number {seq} of generation {generation} before"));
                }
                if seq != link.seq + 1 || previous != link.hash {
                    return Err(format!("the entry before number {seq} of its writer is missing"));
                }
            }
            Some(link) if generation < link.generation => {
                return Err(format!("its writer is in generation {} by now", link.generation));
            }
            // A log may begin in the middle of a chain, after older records were dropped.
            None if self.writers.is_empty() => {}
            _ if seq > 0 => return Err("the beginning of its writer's generation is missing".to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// Forgets the writer of the oldest generation, if there are too many.
    fn forget(&mut self) {
        if self.writers.len() > WRITERS
            && let Some((oldest, _)) = self.writers.iter().min_by_key(|(_, link)| link.generation)
        {
            let oldest = oldest.clone();
            self.writers.remove(&oldest);
        }
    }

    /// Takes in a policy that was adopted: the one that acts already, or the next.
    fn adopt(&mut self, issued: &IssuedPolicy, at: DateTime<Utc>) -> Result<(), String> {
        let statement = PolicyStatement::parse(&issued.statement)?;
        if self.policy.as_ref() == Some(&issued.adopted) {
            return Ok(());
        }
        // The first that is read may be one that acted already, and whose adoption was dropped.
        if let Some(before) = &self.policy {
            if (statement.sequence, statement.after.as_ref()) != (before.sequence + 1, Some(&before.id)) {
                return Err(format!(
                    "its policy is number {}, and does not follow on number {}, which acts",
                    statement.sequence, before.sequence
                ));
            }
            statement.check_expiry(at)?;
        }
        self.policy = Some(issued.adopted.clone());
        Ok(())
    }
}

/// Checks the signatures of people in an entry.
///
/// # Errors
/// The entry says that a person decided, without that person's signature.
pub(super) fn decided_by_people(
    signers: &Signers,
    cluster: &str,
    entry: &JournalEntry,
    at: DateTime<Utc>,
) -> Result<(), String> {
    let approved = |action: &str, by: &str, signed: Option<&SignedApproval>| {
        let signed = signed.ok_or_else(|| format!("{by} did not sign the approval of {action}"))?;
        let SignedApproval { plan, given_us, expires_us, signature } = signed;
        let statement = ApprovalStatement {
            cluster: cluster.to_owned(),
            action: action.to_owned(),
            plan: plan.clone(),
            given_us: *given_us,
            expires_us: *expires_us,
        };
        statement.check_time(entry.at_us)?;
        let signer = signers.verify(APPROVE, statement.text().as_bytes(), signature, at)?;
        match signer.to_string() == by {
            true => Ok(()),
            false => Err(format!("{signer} signed the approval that it says is {by}'s")),
        }
    };
    match &entry.event {
        JournalEvent::Step(step) => match &step.transition {
            Transition::Approved { by, signed } if by != POLICY_APPROVER => {
                approved(&step.action, by, signed.as_ref())
            }
            _ => Ok(()),
        },
        JournalEvent::Canary(event) => match event.as_ref() {
            CanaryEvent::Began { canary, by: Some(by), signed } => {
                approved(&canary.id(), by, signed.as_ref())
            }
            _ => Ok(()),
        },
        JournalEvent::Policy(policy) => {
            let issued = policy.issued.as_ref().ok_or("its policy has no signed statement")?;
            signed_policy(signers, cluster, issued, at)
        }
        JournalEvent::Switched(Switched { on: true, sequence, signature, .. }) => {
            let signature = signature.as_deref().ok_or("nobody signed the switch")?;
            let statement = SwitchStatement { cluster: cluster.to_owned(), given_us: *sequence };
            signers.verify(SWITCH, statement.text().as_bytes(), signature, at).map(drop)
        }
        _ => Ok(()),
    }
}

/// Whether people signed a policy for the cluster.
fn signed_policy(
    signers: &Signers,
    cluster: &str,
    issued: &IssuedPolicy,
    at: DateTime<Utc>,
) -> Result<(), String> {
    let IssuedPolicy { adopted, statement: text, signatures, text: policy } = issued;
    let statement = PolicyStatement::parse(text)?;
    let own = (adopted.sequence, adopted.id == hash(text.as_bytes()));
    let of = (statement.cluster.as_str(), statement.acts_as, &statement.policy);
    if own != (statement.sequence, true) || of != (cluster, ActsAs::Policy, &hash(policy.as_bytes())) {
        return Err("its policy is not the one that was signed for this cluster".to_owned());
    }
    if signatures.is_empty() {
        return Err("nobody signed its policy".to_owned());
    }
    for signature in signatures {
        signers.verify(POLICY, text.as_bytes(), signature, at)?;
    }
    Ok(())
}

pub(super) fn time(at_us: i64) -> Result<DateTime<Utc>, String> {
    DateTime::from_timestamp_micros(at_us).ok_or_else(|| format!("{at_us} is no time"))
}
