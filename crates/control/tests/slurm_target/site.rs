//! A cluster with two teams: `research` in the partition `train` (n1 to n5, 8 GPUs each), `serving`
//! with n6 to n8 (4 GPUs each) that a standing reservation keeps for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_autopilot::action::{Action, Change, Precondition};
use tidegate_autopilot::state::ClusterState;
use tidegate_autopilot::target::{Effect, Receipt, Target, TargetError};
use tidegate_control::slurm::{NoticeConfig, OwnerConfig, ShareConfig, SlurmConfig, SlurmTarget};

use tidegate_testing::slurm::{Cluster, wait_for};

pub const MINUTE_US: i64 = 60_000_000;

pub struct Site {
    pub cluster: Cluster,
    pub config: SlurmConfig,
}

pub fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64
}

/// An action that must be applied within ten minutes.
pub fn action(id: &str, generation: u64, change: Change, preconditions: Vec<Precondition>) -> Action {
    let expires_us = now_us() + 10 * MINUTE_US;
    let (id, inverse, effect_ends_us, notice_ms, after) = (id.to_owned(), None, None, 0, Vec::new());
    Action { id, generation, change, preconditions, inverse, expires_us, effect_ends_us, notice_ms, after }
}

impl Site {
    /// `None`: Slurm is not installed and need not be.
    pub fn start() -> Option<Self> {
        let cluster = Cluster::start(&["--dbd", "--nodes=5+3"])?;
        cluster.run("sacctmgr", &["-i", "add", "account", "research,serving", "cluster=tidegate"]);
        let user =
            cluster.run("sacctmgr", &["-nP", "show", "user", "format=user", "where", "adminlevel=Admin"]);
        let user = user.lines().find(|name| !name.is_empty()).unwrap();
        let qos = "qos=normal,loan,urgent";
        cluster.run(
            "sacctmgr",
            &["-i", "add", "user", user, "account=research,serving", "cluster=tidegate", qos],
        );
        let standing = ["ReservationName=serving", "Accounts=serving", "Nodes=n6,n7,n8", "StartTime=now"];
        let standing = [&["create", "reservation"], &standing[..], &["Duration=UNLIMITED", "Flags=MAGNETIC"]];
        cluster.run("scontrol", &standing.concat());
        Some(Self::of(cluster))
    }

    /// The same teams on a cluster without accounting, whose jobs have no account.
    pub fn bare() -> Option<Self> {
        Cluster::start(&["--nodes=5+3"]).map(Self::of)
    }

    fn of(cluster: Cluster) -> Self {
        let mut config = SlurmConfig { conf: Some(cluster.conf()), ..SlurmConfig::default() };
        let quota = ShareConfig { quota_account: Some("research".into()), ..ShareConfig::default() };
        let lent = ShareConfig { lendable: true, floor_gpus: 4, ..ShareConfig::default() };
        for (owner, pool, share) in [("research", "train", quota), ("serving", "infer", lent)] {
            let shares: BTreeMap<_, _> = [(pool.to_owned(), share)].into();
            config.owners.insert(owner.into(), OwnerConfig { accounts: names(&[owner]), shares });
        }
        config.notice =
            NoticeConfig { signal: Some("USR1".into()), folder: Some(cluster.path().to_owned()), url: None };
        Self { cluster, config }
    }

    /// A target for one call.
    pub fn target(&self) -> SlurmTarget {
        SlurmTarget::open(self.config.clone()).unwrap()
    }

    pub fn observe(&self) -> ClusterState {
        self.target().observe().unwrap()
    }

    pub fn try_apply(&self, action: &Action) -> Result<Receipt, TargetError> {
        self.target().apply(action)
    }

    /// Applies the action, which must not have been applied.
    pub fn apply(&self, action: &Action) {
        let begun = std::time::Instant::now();
        let receipt = self.try_apply(action).unwrap_or_else(|error| panic!("{}: {error}", action.id));
        assert!(!receipt.already, "{receipt:?}");
        eprintln!("{} was opened for and applied in {} ms", action.id, begun.elapsed().as_millis());
    }

    pub fn effect(&self, action: &Action) -> Effect {
        self.target().read_back(action).unwrap()
    }

    pub fn is_done(&self, action: &Action) -> bool {
        matches!(self.effect(action), Effect::Done { .. })
    }

    /// Checks that the action is not applied again, neither by its own generation nor by an older
    /// one.
    pub fn applies_once(&self, action: &Action) {
        let again = self.try_apply(action).unwrap();
        assert!(again.already, "{again:?}");
        let stale =
            Action { id: format!("{}-late", action.id), generation: action.generation - 1, ..action.clone() };
        let seen = TargetError::StaleGeneration { generation: stale.generation, seen: action.generation };
        assert_eq!(self.try_apply(&stale), Err(seen));
        assert_eq!(self.effect(&stale), Effect::Absent);
    }

    /// Submits a job of a team that runs for an hour.
    pub fn submit(&self, team: &str, options: &[&str]) -> String {
        let account = format!("--account={team}");
        self.cluster.submit(&[&["--no-kill", &account], options].concat(), "sleep 3600")
    }

    /// Fields of `scontrol show` for one object.
    pub fn show(&self, kind: &str, name: &str) -> BTreeMap<String, String> {
        let line = self.cluster.run("scontrol", &["--oneliner", "show", kind, name]);
        let fields = line.split(' ').filter_map(|word| word.split_once('='));
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Nodes that a job holds, by `squeue`.
    pub fn nodes_of(&self, job: &str) -> String {
        self.cluster.run("squeue", &["--noheader", "--format=%N", "--jobs", job])
    }

    /// Waits until the job runs after exactly this many restarts.
    pub fn wait_started(&self, job: &str, restarts: u32) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while self.cluster.state(job) != "R" || self.restarts(job) < restarts {
            let is_late = std::time::Instant::now() > deadline;
            assert!(!is_late, "{:?}\n{}", self.show("job", job), self.cluster.run("sinfo", &["-N", "-l"]));
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        assert_eq!(self.restarts(job), restarts);
    }

    /// Waits until the scheduler shows why the job does not start.
    pub fn wait_refused(&self, job: &str) {
        let reason = || self.cluster.run("squeue", &["--noheader", "--format=%r", "--jobs", job]);
        wait_for("the scheduler to refuse the job", 60, || !["", "None"].contains(&reason().trim()));
    }

    pub fn restarts(&self, job: &str) -> u32 {
        self.show("job", job)["Restarts"].parse().unwrap()
    }
}
