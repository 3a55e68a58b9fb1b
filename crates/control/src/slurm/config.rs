//! What a site says of its Slurm: which partitions are pools, whose they are, and how jobs are
//! told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_autopilot::forecast::SeriesNames;
use tidegate_autopilot::state::{OwnerName, PoolName};

/// How a site uses Slurm. All of it can be left out; nothing is lent and nobody is told then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmConfig {
    /// `slurm.conf`; none: as `SLURM_CONF` says where we run.
    pub conf: Option<PathBuf>,
    /// Folder of Slurm's programs; none: found by `PATH`.
    pub programs: Option<PathBuf>,
    /// How long one of Slurm's programs may take, milliseconds.
    pub command_ms: u64,
    /// How long a step of an action may take until the next can be done: a requeued job to let go
    /// of its nodes, accounting to take in a resize. Milliseconds.
    pub settle_ms: u64,
    /// How long a job that was stopped waits at least before it may start again, seconds; Slurm's
    /// own is 120. One that starts again in the second in which it was killed is lost: its nodes
    /// take the new credential for the revoked one. At least 2.
    pub restart_after_s: u32,
    /// Pools; none: each partition is one.
    pub pools: BTreeMap<PoolName, PoolConfig>,
    /// Teams and services. An account that no owner names is an owner of its own name, without a
    /// share of anything.
    pub owners: BTreeMap<OwnerName, OwnerConfig>,
    /// QOS whose jobs may be stopped for others.
    pub preemptible_qos: BTreeSet<String>,
    /// QOS whose jobs the autopilot may change, whatever their comments say.
    pub opt_in_qos: BTreeSet<String>,
    /// QOS whose jobs are never touched.
    pub protected_qos: BTreeSet<String>,
    /// How jobs are told before they are disturbed.
    pub notice: NoticeConfig,
    /// Where the autopilot keeps its notes in Slurm: how it submits a job that is held for ever.
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

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Its partition; none: of the pool's name.
    pub partition: Option<String>,
    /// Least GPUs that must stay in service in it.
    pub floor_gpus: u32,
    /// What a GPU of it costs, millionths of the currency's unit per hour.
    pub price_micros_per_gpu_hour: Option<u64>,
}

/// A team or service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnerConfig {
    /// Its accounts; none: one of its name. Loans and reservations for it are for all of them.
    pub accounts: BTreeSet<String>,
    /// What it may use, by pool.
    pub shares: BTreeMap<PoolName, ShareConfig>,
}

/// What an owner may use of a pool. Its quota is one of the three `quota_…`; with none of them it
/// is the whole pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShareConfig {
    /// The quota, GPUs; nobody changes it here.
    pub quota_gpus: Option<u32>,
    /// The account whose `GrpTRES` is the quota.
    pub quota_account: Option<String>,
    /// The QOS whose `GrpTRES` is the quota.
    pub quota_qos: Option<String>,
    /// GPUs of it that are never lent.
    pub floor_gpus: u32,
    /// Whether any of it may be lent.
    pub lendable: bool,
    /// How it is lent.
    pub lend_by: LendBy,
}

/// How an owner's capacity is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LendBy {
    /// Its nodes, by a reservation for the borrower. Slurm ends it by itself.
    #[default]
    Reservation,
    /// A number of GPUs, where what an owner has is a limit and not nodes: added to the `GrpTRES`
    /// of the borrower's `quota_qos`. A job of ours that begins when the loan ends takes it off
    /// again.
    Qos,
}

/// How jobs are told that they will be disturbed, and how they say that they are ready.
///
/// Jobs that take notices say so in their comment, see [`super::Declared`]. All ways that are set
/// are used; the answer is one file or HTTP answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NoticeConfig {
    /// Signal to all processes of the job's steps, e.g. `USR1`.
    pub signal: Option<String>,
    /// Folder that jobs see too: `JOB.notice` is written (JSON with `action`, `job`,
    /// `ready_by_us`), and `JOB.ready` is waited for, which holds the id of the action.
    pub folder: Option<PathBuf>,
    /// Address to which the same JSON is posted, again until it answers 200 with `{"ready": true}`.
    pub url: Option<String>,
}

/// How the held job with the autopilot's notes is submitted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NotesConfig {
    /// Account; none: the user's own.
    pub account: Option<String>,
    /// Partition; none: the cluster's own.
    pub partition: Option<String>,
    /// QOS; none: the account's own.
    pub qos: Option<String>,
}

impl NotesConfig {
    /// As sbatch takes it.
    pub(super) fn options(&self) -> Vec<String> {
        let options = [("account", &self.account), ("partition", &self.partition), ("qos", &self.qos)];
        let given = options.into_iter().filter_map(|(option, value)| Some((option, value.as_ref()?)));
        given.map(|(option, value)| format!("--{option}={value}")).collect()
    }
}

/// A word that goes into a command of Slurm as it is: no blanks, quotes, commas or signs that Slurm
/// reads.
pub(super) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@'))
}

impl SlurmConfig {
    /// What is wrong with it, for people; empty: nothing.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (owner, config) in &self.owners {
            for account in config.accounts.iter().filter(|account| !is_word(account)) {
                found.push(format!("owners.{owner}.accounts: {account:?} is no name of an account"));
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
                    found.push(format!("{at}: {name:?} is no name of an account or QOS"));
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
            found.push(format!("notice.signal: {signal:?} is no signal such as USR1"));
        }
        found
    }

    /// What is wrong with lending by limits.
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

    /// The owner and pool whose quota a QOS is.
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

    /// What owners and pools are called in the accounting of jobs: an owner of several accounts is
    /// no one team.
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

    /// Owner of a job of this account.
    pub(super) fn owner_of(&self, account: &str) -> OwnerName {
        let named = self.owners.iter().find(|(_, config)| config.accounts.contains(account));
        named.map_or_else(|| account.to_owned(), |(owner, _)| owner.clone())
    }

    /// Partition of a pool.
    pub(super) fn partition<'a>(&'a self, pool: &'a str) -> &'a str {
        self.pools.get(pool).and_then(|config| config.partition.as_deref()).unwrap_or(pool)
    }

    /// Pool of a partition; `None`: it is of none.
    pub(super) fn pool_of(&self, partition: &str) -> Option<PoolName> {
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
