//! Description of a simulation: the cluster, its jobs and services, and the time that changes take.

use tidegate_autopilot::state::ScalingCurve;

use crate::{HOUR_US, SECOND_US, SimError, amdahl};

/// A cluster at the beginning of a simulation.
#[derive(Debug, Clone, Default)]
pub struct ClusterSpec {
    /// Name of the cluster, as events carry it.
    pub name: String,
    /// When the simulation begins, µs since 1970. All other times count from there.
    pub epoch_us: i64,
    /// GPU models; nodes and jobs refer to them by index.
    pub models: Vec<String>,
    /// Pools.
    pub pools: Vec<PoolSpec>,
    /// Nodes.
    pub nodes: Vec<NodeSpec>,
    /// Teams.
    pub teams: Vec<TeamSpec>,
    /// Scaling curves of elastic jobs; jobs refer to them by index.
    pub curves: Vec<ScalingCurve>,
    /// Durations of changes.
    pub latency: Latency,
    /// Settings of the scheduler.
    pub schedule: Schedule,
    /// Number by which the first job is known, as schedulers number jobs; `None`: jobs are named
    /// `job-0`, `job-1` and so on.
    pub first_job_id: Option<u64>,
}

/// Nodes of one owner. A pool with a service belongs to that service, and its nodes take jobs only
/// while they are lent.
#[derive(Debug, Clone, Default)]
pub struct PoolSpec {
    /// Name of the pool.
    pub name: String,
    /// GPUs that are never lent.
    pub floor_gpus: u32,
}

/// One node, with GPUs of one model.
#[derive(Debug, Clone)]
pub struct NodeSpec {
    /// Name of the node.
    pub name: String,
    /// Index in [`ClusterSpec::models`].
    pub model: u16,
    /// Number of GPUs.
    pub gpus: u32,
    /// Its rack.
    pub rack: u32,
    /// Owner: index in [`ClusterSpec::pools`].
    pub pool: usize,
}

/// A team and its GPU quota.
#[derive(Debug, Clone)]
pub struct TeamSpec {
    /// Name of the team.
    pub name: String,
    /// Pool its jobs run in: index in [`ClusterSpec::pools`].
    pub pool: usize,
    /// Its quota; `None` is no limit.
    pub quota_gpus: Option<u32>,
}

/// Duration of each step of a change. Reclaiming a busy node takes notice, checkpoint, kill,
/// hand-over and load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// From the scheduling decision to the first process of the job.
    pub start_us: i64,
    /// From the notice to a job until it must stop.
    pub notice_us: i64,
    /// Writing a checkpoint after the notice.
    pub checkpoint_us: i64,
    /// Killing the processes and cleaning up.
    pub kill_us: i64,
    /// Handing a node from one owner to another.
    pub handover_us: i64,
    /// Loading a model on a returned node until it serves.
    pub load_us: i64,
}

impl Default for Latency {
    /// A busy node takes 6 minutes in total. The parts are assumptions (docs/control.md, 4.4): a
    /// minute of notice, a minute of checkpoint, Slurm's `KillWait` of 30 s, half a minute of
    /// hand-over, and three minutes of model load.
    fn default() -> Self {
        Self {
            start_us: 5 * SECOND_US,
            notice_us: 60 * SECOND_US,
            checkpoint_us: 60 * SECOND_US,
            kill_us: 30 * SECOND_US,
            handover_us: 30 * SECOND_US,
            load_us: 180 * SECOND_US,
        }
    }
}

impl Latency {
    /// From the order to reclaim a busy node until it serves.
    pub fn reclaim_us(&self) -> i64 {
        self.notice_us + self.checkpoint_us + self.kill_us + self.handover_us + self.load_us
    }
}

/// Settings of the simulated scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Schedule {
    /// Which jobs may overtake the head of the queue.
    pub backfill: Backfill,
    /// Whether jobs of higher priority preempt jobs of lower priority.
    pub preempt: bool,
    /// Whether an elastic job that does not fit starts smaller, down to its minimum.
    pub start_smaller: bool,
    /// Whether a job held back by its team's quota lets later jobs of the team pass that are not,
    /// as Slurm does at a QOS limit. If not, the whole team waits.
    pub pass_at_quota: bool,
}

/// Which jobs may overtake the head of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backfill {
    /// None: first come, first served.
    #[default]
    Off,
    /// EASY: jobs that do not delay the head, going by the run times that users state. Nodes are
    /// reserved for the head. At most `depth` jobs of a queue are considered, as with Slurm's
    /// `bf_max_job_test`.
    Easy {
        /// Jobs of a queue that are tried.
        depth: usize,
    },
}

/// A job as it is submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// Submission time, µs.
    pub submit_us: i64,
    /// GPUs it asks for.
    pub gpus: u32,
    /// Run time on `gpus` GPUs at full speed, without checkpoints.
    pub work_us: i64,
    /// Run time stated by the user, for backfill.
    pub estimate_us: i64,
    /// Index in [`ClusterSpec::teams`]; the job runs in the team's pool.
    pub team: usize,
    /// Required GPU model; `None` means any single model.
    pub model: Option<u16>,
    /// Larger goes first.
    pub priority: i32,
    /// Whether it may run on borrowed nodes.
    pub loan: bool,
    /// Sizes and scaling curve if it can be resized.
    pub elastic: Option<Elastic>,
    /// Its checkpoints; a stopped job without them begins anew.
    pub checkpoint: Option<Checkpoint>,
    /// From each start to the first step.
    pub restart_us: i64,
}

/// Range of sizes of an elastic job, and its scaling curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elastic {
    /// Minimum size.
    pub min_gpus: u32,
    /// Maximum size.
    pub max_gpus: u32,
    /// Index in [`ClusterSpec::curves`].
    pub curve: usize,
}

/// A job writes a checkpoint after each `every_us` of progress and pauses for `cost_us` meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Progress between checkpoints, µs.
    pub every_us: i64,
    /// Duration of a checkpoint, µs.
    pub cost_us: i64,
    /// Whether it writes one when it gets notice.
    pub on_notice: bool,
}

/// An online service that owns a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Index in [`ClusterSpec::pools`].
    pub pool: usize,
    /// GPUs it needs during each step.
    pub demand_gpus: Vec<u32>,
    /// Length of a step.
    pub step_us: i64,
}

impl ServiceSpec {
    /// GPUs needed at a time; after the last step, as in the last step.
    pub fn demand_at(&self, at_us: i64) -> u32 {
        let step = (at_us.max(0) / self.step_us) as usize;
        self.demand_gpus.get(step).or(self.demand_gpus.last()).copied().unwrap_or(0)
    }

    /// Maximum demand from `now_us` until `ahead_us` later.
    pub fn most_within(&self, now_us: i64, ahead_us: i64) -> u32 {
        let steps = now_us / self.step_us..=(now_us + ahead_us) / self.step_us;
        steps.map(|step| self.demand_at(step * self.step_us)).max().unwrap_or(0)
    }
}

impl JobSpec {
    /// A job of team 0 that is neither elastic nor checkpointed, with an exact estimate.
    pub fn plain(submit_us: i64, gpus: u32, work_us: i64) -> Self {
        Self {
            submit_us,
            gpus,
            work_us,
            estimate_us: work_us,
            team: 0,
            model: None,
            priority: 0,
            loan: false,
            elastic: None,
            checkpoint: None,
            restart_us: 0,
        }
    }

    /// Minimum and maximum GPUs it can run on.
    pub fn sizes(&self) -> (u32, u32) {
        self.elastic.map_or((self.gpus, self.gpus), |e| (e.min_gpus, e.max_gpus))
    }
}

impl ClusterSpec {
    /// Id of a job, by its index.
    pub fn job_id(&self, job: u32) -> String {
        self.first_job_id.map_or_else(|| format!("job-{job}"), |first| (first + u64::from(job)).to_string())
    }

    /// Index of a job, by its id.
    pub fn job_of_id(&self, id: &str) -> Option<u32> {
        match self.first_job_id {
            None => id.strip_prefix("job-")?.parse().ok(),
            Some(first) => u32::try_from(id.parse::<u64>().ok()?.checked_sub(first)?).ok(),
        }
    }

    /// `counts[p]` nodes of `gpus` GPUs in pool `p`; one model, racks of 16 nodes, one team without
    /// a quota. Pool 0 is named `train`, pool 1 `serve`.
    pub fn uniform(counts: &[usize], gpus: u32) -> Self {
        let names = ["train", "serve"];
        let pool = |p: usize| PoolSpec {
            name: names.get(p).map_or_else(|| format!("pool{p}"), |n| (*n).to_owned()),
            floor_gpus: 0,
        };
        let owners = counts.iter().enumerate().flat_map(|(p, n)| std::iter::repeat_n(p, *n));
        let node = |(i, p): (usize, usize)| NodeSpec {
            name: format!("n{i:05}"),
            model: 0,
            gpus,
            rack: (i / 16) as u32,
            pool: p,
        };
        Self {
            name: "sim".into(),
            models: vec!["H100".into()],
            pools: (0..counts.len()).map(pool).collect(),
            nodes: owners.enumerate().map(node).collect(),
            teams: vec![TeamSpec { name: "research".into(), pool: 0, quota_gpus: None }],
            curves: vec![amdahl(20_000, 256)],
            ..Self::default()
        }
    }

    /// GPUs of a pool.
    pub fn pool_gpus(&self, pool: usize) -> u32 {
        self.nodes.iter().filter(|n| n.pool == pool).map(|n| n.gpus).sum()
    }

    /// Checks that every index exists and every job is well-formed.
    ///
    /// # Errors
    /// [`SimError::Spec`] with the first inconsistency.
    pub fn check(&self, jobs: &[JobSpec], services: &[ServiceSpec]) -> Result<(), SimError> {
        let wrong = |what: String| Err(SimError::Spec { what });
        for n in &self.nodes {
            if n.pool >= self.pools.len() || usize::from(n.model) >= self.models.len() || n.gpus == 0 {
                return wrong(format!(
                    "node {} needs a known pool, a known model and at least one GPU",
                    n.name
                ));
            }
        }
        if self.teams.iter().any(|t| t.pool >= self.pools.len()) {
            return wrong("a team names a pool that the cluster lacks".into());
        }
        for (i, j) in jobs.iter().enumerate() {
            let (least, most) = j.sizes();
            if j.team >= self.teams.len() {
                return wrong(format!("job {i} names team {}, which the cluster lacks", j.team));
            }
            if j.model.is_some_and(|m| usize::from(m) >= self.models.len()) {
                return wrong(format!("job {i} asks for a GPU model that the cluster lacks"));
            }
            if j.gpus == 0 || j.work_us <= 0 || least == 0 || least > j.gpus || most < j.gpus {
                return wrong(format!("job {i} needs work, GPUs, and its size between least and most"));
            }
            if j.elastic.is_some_and(|e| e.curve >= self.curves.len()) {
                return wrong(format!("job {i} names a scaling curve that the cluster lacks"));
            }
            if j.checkpoint.is_some_and(|c| c.every_us <= 0 || c.cost_us < 0) {
                return wrong(format!(
                    "job {i}: a checkpoint needs an interval above 0 and a cost of at least 0"
                ));
            }
            if i > 0 && jobs[i - 1].submit_us > j.submit_us {
                return wrong(format!(
                    "job {i} was submitted before the one in front of it; sort jobs by submit_us"
                ));
            }
        }
        for s in services {
            if s.pool >= self.pools.len() || s.step_us <= 0 {
                return wrong(format!(
                    "a service names pool {}, which the cluster lacks, or has no step",
                    s.pool
                ));
            }
        }
        Ok(())
    }
}

/// A padded estimate: three times the run time, at least an hour.
pub fn padded_estimate_us(work_us: i64) -> i64 {
    (work_us * 3).max(HOUR_US)
}
