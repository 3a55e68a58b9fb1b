//! Sections of a policy. What the numbers mean for people stands in `policies/default.toml`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::{OwnerName, PoolName};

/// How much of a kind may happen.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Actions in an hour.
    pub per_hour: u32,
    /// Actions in 24 hours.
    pub per_day: u32,
    /// GPUs touched in an hour.
    pub gpus_per_hour: u32,
    /// The same as a share of the fleet's GPUs; the greater of the two is allowed.
    pub gpus_share_per_hour: f64,
    /// Actions under way at the same time.
    pub concurrent: u32,
}

impl Budget {
    /// GPUs that may be touched in an hour in a fleet of `fleet_gpus`.
    pub fn most_gpus_per_hour(&self, fleet_gpus: u64) -> u64 {
        // A share of the fleet, rounded down.
        let share = (fleet_gpus as f64 * self.gpus_share_per_hour) as u64;
        share.max(u64::from(self.gpus_per_hour))
    }
}

/// How much may be touched altogether.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blast {
    /// Share of the fleet's GPUs touched within the window that trips the breaker.
    pub fleet_share: f64,
    /// The window, seconds.
    pub window_s: i64,
    /// Failures within the window that trip the breaker.
    pub failures: u32,
    /// Racks with nodes out of service by our doing at the same time.
    pub racks: u32,
    /// Most objects that one action may name.
    pub objects: u32,
    /// GPU-hours of work an owner may lose to us in 24 hours.
    pub owner_lost_gpu_hours: f64,
    /// The same as a share of the GPU-hours its quotas have in a day; the greater of the two is
    /// allowed.
    pub owner_lost_share: f64,
}

impl Blast {
    /// GPU-hours that an owner of `quota_gpus` may lose to us in 24 hours.
    pub fn owner_lost_in_a_day(&self, quota_gpus: u64) -> f64 {
        self.owner_lost_gpu_hours.max(self.owner_lost_share * quota_gpus as f64 * 24.0)
    }
}

/// What always stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floors {
    /// Share of every pool's GPUs that stays in service.
    pub in_service_share: f64,
    /// GPUs in service, by pool.
    pub pools: BTreeMap<PoolName, u32>,
    /// GPUs of its quotas together that an owner never lends.
    pub owners: BTreeMap<OwnerName, u32>,
}

/// How often things may change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stability {
    /// Rest of an object after a change, seconds.
    pub dwell_s: i64,
    /// Rest after a failure, seconds.
    pub cooldown_s: i64,
    /// Longest rest after failures, seconds.
    pub cooldown_most_s: i64,
    /// Identical failures in a row after which an object is left to people.
    pub failures: u32,
    /// Reversals of one object in 24 hours.
    pub reversals: u32,
}

/// How old knowledge may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Freshness {
    /// Greatest age of the newest event of a source and of the observation, seconds.
    pub most_s: i64,
    /// The same by source.
    pub sources: BTreeMap<String, i64>,
    /// Sources without which nothing is done.
    pub required: Vec<String>,
    /// Greatest age of a plan when an action of it begins, seconds.
    pub plan_s: i64,
    /// What waits for a person stands so long, seconds.
    pub person_s: i64,
    /// Objects in dispute at which everything stops.
    pub disagreements: u32,
}

/// What things are worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worth {
    /// An hour of useful work of one GPU, millionths of the currency's unit.
    pub useful_micros_per_gpu_hour: u64,
    /// An hour of one GPU that an owner needs and does not have, millionths.
    pub missing_micros_per_gpu_hour: u64,
    /// Least net benefit, GPU-hours.
    pub least_net_gpu_hours: f64,
    /// Standard deviations to the cautious end of an interval.
    pub caution: f64,
    /// Standard deviation of a prediction over its value, where nothing better is known.
    pub relative_error: f64,
}

/// Whose forecasts of demand count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForecastSource {
    /// Those that were published on the log where there are fresh ones whose bounds hold, else the
    /// past that the autopilot saw.
    #[default]
    Best,
    /// Those that were published alone.
    Log,
    /// The past alone.
    Trailing,
}

/// Whose forecasts count, and how old they may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForecastRules {
    /// Whose.
    pub source: ForecastSource,
    /// Greatest age of the newest published forecast, seconds.
    pub most_age_s: i64,
}

impl Default for ForecastRules {
    /// As shipped; also what plans were made by that were recorded before there was a choice.
    fn default() -> Self {
        Self { source: ForecastSource::Best, most_age_s: 25_200 }
    }
}

/// Numbers of lending and taking back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LendRules {
    /// Least level of demand kept back.
    pub least_quantile: f64,
    /// Level of demand kept back over the time that taking back takes.
    pub promise_quantile: f64,
    /// GPUs kept back beyond it.
    pub buffer_gpus: u32,
    /// The same for taking back; at most `buffer_gpus`.
    pub reclaim_buffer_gpus: u32,
    /// Length of a loan, seconds.
    pub term_s: i64,
    /// Promised time to take back, seconds.
    pub reclaim_within_s: i64,
    /// Most GPUs lent in one step.
    pub step_gpus: u32,
    /// The same as a share of the owner's quota; the greater of the two is lent.
    pub step_share: f64,
    /// Rest between steps, seconds.
    pub step_every_s: i64,
    /// Chance that a loan is taken back before it ends.
    pub reclaim_chance: f64,
    /// GPU-hours lost per GPU-hour lent when it is.
    pub lost_per_lent: f64,
    /// Least share of past demand below the level foreseen.
    pub least_coverage: f64,
    /// Whether work may run on a model of GPU that its own pool does not have.
    pub across_models: bool,
    /// Whether one job may run on its own and on lent nodes together.
    pub gangs_span: bool,
    /// Whether loans are made for jobs that run and would grow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_growth: bool,
}

/// Numbers of resizing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeRules {
    /// Rest of a job, in pauses of a resize.
    pub dwell_pauses: f64,
    /// How long free GPUs stay so, seconds.
    pub hold_s: i64,
    /// Pause of a resize, seconds.
    pub pause_s: i64,
    /// Least benefit over cost of growth.
    pub gain_ratio: f64,
    /// Free GPUs that growth leaves alone.
    pub spare_gpus: u32,
}

/// Numbers of quotas and reservations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationRules {
    /// Level of demand that a quota covers.
    pub quantile: f64,
    /// Horizon of that demand, seconds.
    pub horizon_s: i64,
    /// Step of a change, GPUs.
    pub step_gpus: u32,
    /// Price of a reserved over an on-demand GPU-hour.
    pub price_ratio: f64,
    /// Term of a commitment, days.
    pub term_days: u32,
    /// Owners for whom the scheduler reserves GPUs ahead of their peak, and how many at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ahead: BTreeMap<OwnerName, u32>,
    /// How far ahead a peak is looked for, seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ahead_s: i64,
}

// Serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Numbers of draining and returning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRules {
    /// Probability of being bad from which a node is drained.
    pub bad: f64,
    /// Kinds of evidence it takes.
    pub families: u32,
    /// Slowdown of the gang from which a node is weighed, share of its rate.
    pub slowdown: f64,
    /// How long a node must be found well before it returns, seconds.
    pub good_for_s: i64,
    /// How long a drained node is away, seconds.
    pub repair_s: i64,
}

/// Numbers of stopping jobs for others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreemptRules {
    /// Times a job is stopped for others in 24 hours.
    pub per_job_per_day: u32,
    /// Least run before it is, seconds.
    pub least_run_s: i64,
    /// Wait of a job before others are stopped for it, seconds.
    pub after_wait_s: i64,
    /// Wait of the first gang before small jobs are moved to gather whole nodes for it, seconds.
    pub gather_after_s: i64,
    /// Restart where a job's own is not known, seconds.
    pub restart_s: i64,
    /// Notice to write a checkpoint, seconds.
    pub notice_s: i64,
}

/// What people are advised in the report of a plan.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdviceRules {
    /// Pieces of advice of a kind; 0: none.
    pub most: u32,
    /// Share of its throughput that a gang keeps with fewer GPUs.
    pub keeps_share: f64,
}

impl AdviceRules {
    pub(super) fn are_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What the autopilot promises of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// GPUs that are taken back are free within the promised time from the decision. A reclaim that
    /// was dropped before it was begun counts neither way: the next decision is counted.
    Promises,
    /// Actions that were begun are read back as done; by kind. What a person changed meanwhile
    /// counts neither way.
    Verified,
    /// A plan is made every interval while somebody holds the lease, and after a time without
    /// anybody.
    Cycles,
}

impl Objective {
    /// Its spelling.
    pub fn name(self) -> &'static str {
        match self {
            Self::Promises => "promises",
            Self::Verified => "verified",
            Self::Cycles => "cycles",
        }
    }
}

/// What the autopilot promises of itself: see [`crate::slo`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SloRules {
    /// Share of promises to owners that are kept in time; 0: none is asked for.
    pub promises: f64,
    /// Share of the actions of a kind that are read back as done; 0: none is asked for.
    pub verified: f64,
    /// Share of plans that are made in time; 0: none is asked for.
    pub cycles: f64,
    /// Days that the error budget is for.
    pub window_days: u32,
    /// Failures in the long window that an alert takes at least.
    pub least_bad: u32,
    /// Whether a kind goes one mode down while its budget burns fast.
    pub step_down: bool,
}

impl SloRules {
    pub(super) fn are_default(&self) -> bool {
        *self == Self::default()
    }

    /// The objective, millionths; `None`: there is none.
    pub fn objective_ppm(&self, objective: Objective) -> Option<u64> {
        let share = match objective {
            Objective::Promises => self.promises,
            Objective::Verified => self.verified,
            Objective::Cycles => self.cycles,
        };
        // From 0 to a million.
        (share > 0.0 && share < 1.0).then(|| (share * 1e6).round() as u64)
    }
}

/// When a kind of decision is promoted or demoted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordRules {
    /// Scored decisions it takes to be promoted.
    pub decisions: u32,
    /// Share of them that took effect, to be promoted.
    pub verified: f64,
    /// Median of realised over predicted benefit, to be promoted.
    pub realised: f64,
    /// Share that took effect, below which it is demoted.
    pub verified_down: f64,
    /// Median of realised over predicted benefit, below which it is demoted.
    pub realised_down: f64,
    /// Decisions looked back on.
    pub window: u32,
}
