//! Which policy may act: the one the deployment names, with the signatures that it needs.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_autopilot::executor::{AdoptedStatement, IssuedPolicy, Journal, PolicyAdopted};
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::rollout::{Rollout, check_candidate};
use tidegate_log::EventLog;

use super::config::ServiceConfig;
use super::saved::Saved;
use crate::authority::{self, ActsAs, PolicyFile, Signers, Standing};
use crate::error::ServiceError;
use crate::journal::{JournalKey, JournalKeys, LogJournal};
use crate::policy_file::{find_policy, parse_policy, read_policy, take_rollout};

/// What a service acts by.
pub(super) struct ActingPolicy {
    pub policy: Policy,
    /// Policies that run beside it: shadow and canary.
    pub rollout: Rollout,
    /// The signatures, for the journal; `None` where none are required.
    pub adopted: Option<PolicyAdopted>,
    pub signers: Option<Signers>,
}

impl ServiceConfig {
    /// Reads the policy and its candidates and checks their signatures.
    ///
    /// # Errors
    /// A policy cannot be read or lacks signatures.
    pub(super) fn acting_policy(
        &self,
        log: &Arc<dyn EventLog>,
        saved: &Saved,
    ) -> Result<ActingPolicy, ServiceError> {
        let signers = self.signers()?;
        let (mut policy, adopted, standing) = match &signers {
            None => (self.policy()?, None, None),
            Some(signers) => {
                let (before, statement) = last_policy(log, self, signers, saved)?;
                let (policy, adopted) = self.signed_policy(signers, &before, statement.as_ref())?;
                let standing = adopted.issued.as_ref().map(|issued| issued.adopted.clone());
                (policy, Some(adopted), standing)
            }
        };
        let canary_name = policy.canary.policy.clone();
        let rollout = self.rollout(&mut policy)?;
        if let (Some(signers), Some(canary)) = (&signers, &rollout.canary) {
            let acting = Standing { cluster: &self.cluster, policy: &policy, adopted: standing.as_ref() };
            self.check_canary_signed(signers, &canary_name, &canary.policy, &acting)?;
        }
        Ok(ActingPolicy { policy, rollout, adopted, signers })
    }

    fn policy_file(&self) -> PathBuf {
        self.folder.join(&self.policy)
    }

    pub(super) fn policy(&self) -> Result<Policy, ServiceError> {
        match Policy::named(&self.policy) {
            Some(policy) => Ok(policy),
            None => read_policy(&self.policy_file()),
        }
    }

    /// The candidates that run beside the policy, taken out of it.
    pub(super) fn rollout(&self, policy: &mut Policy) -> Result<Rollout, ServiceError> {
        let mut rollout = take_rollout(policy, &self.policy_file())?;
        if let Some(name) = &self.shadow {
            let shadow = find_policy(name)?;
            check_candidate(policy, &shadow).map_err(|why| format!("--shadow {name}: {why}"))?;
            rollout.shadow = Some(shadow);
        }
        Ok(rollout)
    }

    pub(super) fn signers(&self) -> Result<Option<Signers>, ServiceError> {
        let file = self.authority.as_ref().map(|authority| self.folder.join(&authority.signers));
        Ok(file.map(|file| Signers::read(&file)).transpose()?)
    }

    /// Keys of the journal, where the site has signers and this process a key.
    pub(super) fn journal_keys(&self) -> Result<Option<JournalKeys>, ServiceError> {
        let key = self.authority.as_ref().and_then(|authority| authority.key.as_ref());
        let (Some(key), Some(signers)) = (key, self.signers()?) else { return Ok(None) };
        Ok(Some(JournalKeys { signers, key: Some(JournalKey::read(&self.folder.join(key))?) }))
    }

    /// The policy, if its signatures suffice for what it changes against `before`, the last that
    /// acted, by that statement.
    pub(super) fn signed_policy(
        &self,
        signers: &Signers,
        before: &Policy,
        adopted: Option<&AdoptedStatement>,
    ) -> Result<(Policy, PolicyAdopted), ServiceError> {
        if Policy::named(&self.policy).is_some() {
            let name = &self.policy;
            return Err(format!(
                "policy {name:?} comes with the program and is not signed, but [authority] requires signatures: write it to a file \
                 (tidegate policy show {name} > policy.toml), sign that and name it"
            )
            .into());
        }
        let file = self.policy_file();
        // The text is read once: what is signed is what is used, even if the file changes
        // meanwhile.
        let text = std::fs::read_to_string(&file).map_err(|e| format!("read {}: {e}", file.display()))?;
        let policy = parse_policy(&file, &text)?;
        let candidate = PolicyFile { file: &file, text: &text, policy: &policy };
        let standing = Standing { cluster: &self.cluster, policy: before, adopted };
        let signed = signers.admit(&candidate, ActsAs::Policy, &standing, chrono::Utc::now())?;
        let issued = IssuedPolicy {
            adopted: AdoptedStatement {
                sequence: signed.sequence,
                id: authority::hash(signed.statement.as_bytes()),
            },
            statement: signed.statement,
            signatures: signed.signatures,
            text,
        };
        let adopted = PolicyAdopted {
            policy: policy.name.clone(),
            file: file.display().to_string(),
            signed_by: signed.by.iter().map(ToString::to_string).collect(),
            changes: signed.changes,
            issued: Some(issued),
        };
        Ok((policy, adopted))
    }

    /// Refuses a canary whose signatures do not suffice for what it changes against the acting
    /// policy.
    pub(super) fn check_canary_signed(
        &self,
        signers: &Signers,
        name: &str,
        canary: &Policy,
        acting: &Standing<'_>,
    ) -> Result<(), ServiceError> {
        let file = self.policy_file().with_file_name(name);
        if Policy::named(name).is_some() {
            return Err(format!(
                "canary {name:?} comes with the program and is not signed, but [authority] requires signatures"
            )
            .into());
        }
        let text = std::fs::read_to_string(&file).map_err(|e| format!("read {}: {e}", file.display()))?;
        if parse_policy(&file, &text)? != *canary {
            return Err(format!("{} was written while it was read: start again", file.display()).into());
        }
        let candidate = PolicyFile { file: &file, text: &text, policy: canary };
        signers.admit(&candidate, ActsAs::Canary, acting, chrono::Utc::now())?;
        Ok(())
    }
}

/// The policy that acted last on the cluster, and its statement, by its journal; before the first
/// one, the shipped policy, which acts nowhere.
fn last_policy(
    log: &Arc<dyn EventLog>,
    config: &ServiceConfig,
    signers: &Signers,
    saved: &Saved,
) -> Result<(Policy, Option<AdoptedStatement>), ServiceError> {
    let mut state = saved.executor.clone();
    let keys = config.journal_keys()?.map(|_| JournalKeys { signers: signers.clone(), key: None });
    let journal = LogJournal::open(Arc::clone(log), &config.cluster, "")?;
    let mut journal = journal.proving(keys, saved.chains.clone()).resumed(&saved.positions);
    journal.read()?.into_iter().for_each(|entry| state.fold(entry));
    Ok((state.policy.unwrap_or_else(Policy::shipped), state.adopted))
}
