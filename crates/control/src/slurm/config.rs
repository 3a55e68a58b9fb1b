//! `[slurm]` of the deployment file: which partitions are pools, who owns them, how they are lent,
//! and how jobs are notified.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_autopilot::forecast::SeriesNames;
use tidegate_autopilot::state::{OwnerName, PoolName};

/// How a site uses Slurm. Every key may be left out: then nothing is lent and no job is notified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmConfig {
    /// `slurm.conf`; by default that of `SLURM_CONF` in our environment.
    pub conf: Option<PathBuf>,
    /// Folder of Slurm's programs; by default they are found by `PATH`.
    pub programs: Option<PathBuf>,
    /// Time limit of one of Slurm's programs, milliseconds.
    pub command_ms: u64,
    /// Time limit of one step of an action, milliseconds: for a requeued job to release its nodes,
    /// or accounting to record a resize.
    pub settle_ms: u64,
    /// Seconds that a stopped job waits at least before it may start again; Slurm's own wait is
    /// 120. A job that starts again in the second in which it was killed is lost: its nodes mistake
    /// the new credential for the revoked one. At least 2.
    pub restart_after_s: u32,
    /// Pools; by default each partition is one.
    pub pools: BTreeMap<PoolName, PoolConfig>,
    /// Teams and services. An account that no owner names is an owner of that name without a share.
    pub owners: BTreeMap<OwnerName, OwnerConfig>,
    /// QOS whose jobs may be preempted.
    pub preemptible_qos: BTreeSet<String>,
    /// QOS whose jobs the autopilot may change, whatever their comments declare.
    pub opt_in_qos: BTreeSet<String>,
    /// QOS whose jobs are never touched.
    pub protected_qos: BTreeSet<String>,
    /// How jobs are notified before they are disturbed.
    pub notice: NoticeConfig,
    /// How the held job with the autopilot's notes is submitted.
    pub notes: NotesConfig,
}

impl Default for SlurmConfig {
    fn default() -> Self {
        Self {
            conf: None,
            programs: None,
            command_ms: 20_000,
            settle_ms: 60_000,
            restart_after_s: 3,
            pools: BTreeMap::new(),
            owners: BTreeMap::new(),
            preemptible_qos: BTreeSet::new(),
            opt_in_qos: BTreeSet::new(),
            protected_qos: BTreeSet::new(),
            notice: NoticeConfig::default(),
            notes: NotesConfig::default(),
        }
    }
}

/// A pool of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Its partition; by default the one of the pool's name.
    pub partition: Option<String>,
    /// Fewest GPUs that must stay in service.
    pub floor_gpus: u32,
    /// Price of a GPU-hour, millionths of the currency's unit.
    pub price_micros_per_gpu_hour: Option<u64>,
}

/// A team or service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnerConfig {
    /// Its accounts; by default the one of its name. Loans and reservations are for all of them.
    pub accounts: BTreeSet<String>,
    /// What it may use, by pool.
    pub shares: BTreeMap<PoolName, ShareConfig>,
}

/// What an owner may use of a pool. At most one `quota_…` is set; without one the quota is the
/// whole pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShareConfig {
    /// A fixed quota, GPUs, which no action changes.
    pub quota_gpus: Option<u32>,
    /// The account whose `GrpTRES` is the quota.
    pub quota_account: Option<String>,
    /// The QOS whose `GrpTRES` is the quota.
    pub quota_qos: Option<String>,
    /// GPUs that are never lent.
    pub floor_gpus: u32,
    /// Whether it may be lent.
    pub lendable: bool,
    /// How it is lent.
    pub lend_by: LendBy,
}

/// How an owner's capacity is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LendBy {
    /// Nodes, by a reservation for the borrower, which Slurm ends.
    #[default]
    Reservation,
    /// A number of GPUs, for sites that limit owners instead of giving them nodes: added to the
    /// `GrpTRES` of the borrower's `quota_qos`. A job that begins when the loan ends takes it off.
    Qos,
}

/// How jobs are notified that they will be disturbed, and how they acknowledge.
///
/// Only jobs that declare it are notified, see [`super::Declaration`]. All ways that are set are
/// used; one acknowledgement, by file or HTTP, is enough.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoticeConfig {
    /// Signal to all processes of the job's steps, e.g. `USR1`.
    pub signal: Option<String>,
    /// Folder that jobs can see: `JOB.notice` is written there (JSON with `action`, `job`,
    /// `ready_by_us`), and `JOB.ready` with the id of the action acknowledges.
    pub folder: Option<PathBuf>,
    /// Address to which the same JSON is posted until it answers 200 with `{"ready": true}`.
    pub url: Option<String>,
}

/// How the held job with the autopilot's notes is submitted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NotesConfig {
    /// Account; by default the user's own.
    pub account: Option<String>,
    /// Partition; by default the cluster's.
    pub partition: Option<String>,
    /// QOS; by default the account's.
    pub qos: Option<String>,
}

impl NotesConfig {
    /// Options for sbatch.
    pub(super) fn options(&self) -> Vec<String> {
        let options = [("account", &self.account), ("partition", &self.partition), ("qos", &self.qos)];
        let given = options.into_iter().filter_map(|(option, value)| Some((option, value.as_ref()?)));
        given.map(|(option, value)| format!("--{option}={value}")).collect()
    }
}

/// Whether a word can go into a command of Slurm unchanged: it has no blanks, quotes, commas or
/// signs that Slurm interprets.
pub(super) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@'))
}

impl SlurmConfig {
    /// Problems of the configuration, for people; empty if there are none.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (owner, config) in &self.owners {
            for account in config.accounts.iter().filter(|account| !is_word(account)) {
                found.push(format!("owners.{owner}.accounts: {account:?} is not a name of an account"));
            }
            for (pool, share) in &config.shares {
                let at = format!("owners.{owner}.shares.{pool}");
                let ways =
                    [share.quota_gpus.is_some(), share.quota_account.is_some(), share.quota_qos.is_some()];
                if ways.into_iter().filter(|way| *way).count() > 1 {
                    found.push(format!(
                        "{at}: quota_gpus, quota_account and quota_qos exclude each other; keep one"
                    ));
                }
                if !self.pools.is_empty() && !self.pools.contains_key(pool) {
                    found.push(format!("{at}: there is no pool {pool}; add [pools.{pool}]"));
                }
                for name in share.quota_account.iter().chain(&share.quota_qos).filter(|name| !is_word(name)) {
                    found.push(format!("{at}: {name:?} is not a name of an account or QOS"));
                }
            }
        }
        found.extend(self.problems_of_limits());
        if self.command_ms == 0 {
            found.push("command_ms is 0: no program answers in no time; the default is 20000".to_owned());
        }
        if self.restart_after_s < 2 {
            found.push("restart_after_s: a job that starts again at once is lost; 2 is the least".to_owned());
        }
        let bad_signal = |name: &&String| !name.chars().all(|c| c.is_ascii_alphanumeric()) || name.is_empty();
        if let Some(signal) = self.notice.signal.as_ref().filter(bad_signal) {
            found.push(format!("notice.signal: {signal:?} is not a signal such as USR1"));
        }
        found
    }

    /// Problems of lending by QOS.
    fn problems_of_limits(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut limits: BTreeMap<&String, Vec<String>> = BTreeMap::new();
        for (owner, config) in &self.owners {
            for (pool, share) in &config.shares {
                let at = format!("owners.{owner}.shares.{pool}");
                if let Some(qos) = &share.quota_qos {
                    limits.entry(qos).or_default().push(at.clone());
                }
                let borrows = |of: &OwnerConfig| of.shares.get(pool).is_some_and(|s| s.quota_qos.is_some());
                let borrower = self.owners.iter().any(|(other, of)| other != owner && borrows(of));
                if share.lend_by == LendBy::Qos && !borrower {
                    found.push(format!(
                        "{at}: lend_by is qos, and no other owner has a quota_qos in {pool} to which GPUs could be lent"
                    ));
                }
            }
        }
        for (qos, shares) in limits.iter().filter(|(_, shares)| shares.len() > 1) {
            found.push(format!(
                "QOS {qos} is the quota of {}: its limit counts GPUs of all of them; give each its own",
                shares.join(" and ")
            ));
        }
        found
    }

    /// Owner and pool whose quota the QOS holds.
    pub(super) fn of_qos<'a>(&'a self, qos: &str) -> Option<(&'a OwnerName, &'a PoolName)> {
        let shares = self.owners.iter().flat_map(|(owner, of)| of.shares.iter().map(move |s| (owner, s)));
        let mut of = shares.filter(|(_, (_, share))| share.quota_qos.as_deref() == Some(qos));
        of.next().map(|(owner, (pool, _))| (owner, pool))
    }

    /// Accounts of an owner.
    pub(super) fn accounts(&self, owner: &str) -> Vec<String> {
        match self.owners.get(owner) {
            Some(config) if !config.accounts.is_empty() => config.accounts.iter().cloned().collect(),
            _ => vec![owner.to_owned()],
        }
    }

    /// Names of owners and pools in job accounting. An owner of several accounts is not one team
    /// and has none.
    pub fn series_names(&self) -> SeriesNames {
        let team = |owner: &OwnerName, accounts: &BTreeSet<String>| match accounts.len() {
            0 => Some(owner.clone()),
            1 => accounts.first().cloned(),
            _ => None,
        };
        let teams = self.owners.iter().map(|(owner, config)| (owner.clone(), team(owner, &config.accounts)));
        let pools = self.pools.keys().map(|pool| (pool.clone(), self.partition(pool).to_owned()));
        SeriesNames { teams: teams.collect(), pools: pools.collect() }
    }

    /// Owner of the account's jobs.
    pub(super) fn owner_of(&self, account: &str) -> OwnerName {
        let named = self.owners.iter().find(|(_, config)| config.accounts.contains(account));
        named.map_or_else(|| account.to_owned(), |(owner, _)| owner.clone())
    }

    /// Partition of a pool.
    pub(crate) fn partition<'a>(&'a self, pool: &'a str) -> &'a str {
        self.pools.get(pool).and_then(|config| config.partition.as_deref()).unwrap_or(pool)
    }

    /// Pool of a partition; `None`: it belongs to none.
    pub(crate) fn pool_of(&self, partition: &str) -> Option<PoolName> {
        if self.pools.is_empty() {
            return Some(partition.to_owned());
        }
        self.pools.keys().find(|pool| self.partition(pool) == partition).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_contradicts_itself_is_named() {
        let mut config = SlurmConfig::default();
        assert_eq!(config.problems(), Vec::<String>::new());
        let share =
            ShareConfig { quota_gpus: Some(8), quota_qos: Some("a b".into()), ..ShareConfig::default() };
        let owner = OwnerConfig { shares: [("infer".into(), share)].into(), ..OwnerConfig::default() };
        config.owners.insert("serving".into(), owner);
        config.pools.insert("train".into(), PoolConfig::default());
        config.notice.signal = Some("USR1 1".into());
        let problems = config.problems();
        assert_eq!(problems.len(), 4, "{problems:#?}");
        assert!(problems[0].contains("exclude each other") && problems[1].contains("no pool infer"));
    }

    #[test]
    fn a_limit_that_is_lent_is_one_borrowers() {
        let share = |qos: Option<&str>, lend_by| {
            let share = ShareConfig { quota_qos: qos.map(str::to_owned), lend_by, ..ShareConfig::default() };
            OwnerConfig { shares: [("train".into(), share)].into(), ..OwnerConfig::default() }
        };
        let mut config = SlurmConfig::default();
        config.owners.insert("serving".into(), share(None, LendBy::Qos));
        assert!(config.problems()[0].contains("no other owner has a quota_qos in train"));
        config.owners.insert("research".into(), share(Some("research"), LendBy::Reservation));
        assert_eq!(config.problems(), Vec::<String>::new());
        assert_eq!(config.of_qos("research"), Some((&"research".to_owned(), &"train".to_owned())));
        config.owners.insert("spot".into(), share(Some("research"), LendBy::Reservation));
        assert!(config.problems()[0].contains("research.shares.train and owners.spot"));
    }

    #[test]
    fn pools_are_partitions_unless_some_are_named() {
        let mut config = SlurmConfig::default();
        assert_eq!(config.pool_of("gpu").as_deref(), Some("gpu"));
        let pool = PoolConfig { partition: Some("gpu".into()), ..PoolConfig::default() };
        config.pools.insert("h200".into(), pool);
        assert_eq!(config.pool_of("gpu").as_deref(), Some("h200"));
        assert_eq!(config.pool_of("cpu"), None);
        assert_eq!(config.partition("h200"), "gpu");
    }

    #[test]
    fn accounting_has_names_of_its_own() {
        let owner = |accounts: &[&str]| OwnerConfig {
            accounts: accounts.iter().map(|account| (*account).to_owned()).collect(),
            ..OwnerConfig::default()
        };
        let config = SlurmConfig {
            owners: [("a", owner(&[])), ("b", owner(&["bee"])), ("c", owner(&["c1", "c2"]))]
                .map(|(name, owner)| (name.to_owned(), owner))
                .into(),
            pools: [("p".to_owned(), PoolConfig { partition: Some("gpu".into()), ..PoolConfig::default() })]
                .into(),
            ..SlurmConfig::default()
        };
        let names = config.series_names();
        assert_eq!(names.teams["a"].as_deref(), Some("a"));
        assert_eq!(names.teams["b"].as_deref(), Some("bee"));
        assert_eq!(names.teams["c"], None, "its demand is that of two teams");
        assert_eq!(names.pools["p"], "gpu");
    }
}
