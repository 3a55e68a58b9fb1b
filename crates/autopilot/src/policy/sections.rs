//! Sections of a policy. `policies/default.toml` explains the numbers to people.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::{OwnerName, PoolName};

/// Budget of a kind of decision.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Actions per hour.
    pub per_hour: u32,
    /// Actions per 24 hours.
    pub per_day: u32,
    /// GPUs touched per hour.
    pub gpus_per_hour: u32,
    /// The same as a share of the fleet's GPUs. The larger of the two applies.
    pub gpus_share_per_hour: f64,
    /// Actions in flight at once.
    pub concurrent: u32,
}

impl Budget {
    /// GPUs that may be touched per hour in a fleet of `fleet_gpus`.
    pub fn most_gpus_per_hour(&self, fleet_gpus: u64) -> u64 {
        // A share of the fleet, rounded down.
        let share = (fleet_gpus as f64 * self.gpus_share_per_hour) as u64;
        share.max(u64::from(self.gpus_per_hour))
    }
}

/// Blast radius: how much may be touched in total.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blast {
    /// Share of the fleet's GPUs that trips the breaker when touched within the window.
    pub fleet_share: f64,
    /// Window, seconds.
    pub window_s: i64,
    /// Failures within the window that trip the breaker.
    pub failures: u32,
    /// Racks that may have drained nodes at once.
    pub racks: u32,
    /// Most objects one action may name.
    pub objects: u32,
    /// GPU-hours of work an owner may lose to the autopilot in 24 hours.
    pub owner_lost_gpu_hours: f64,
    /// The same as a share of the GPU-hours of its quotas per day. The larger of the two applies.
    pub owner_lost_share: f64,
}

impl Blast {
    /// GPU-hours an owner of `quota_gpus` may lose to the autopilot in 24 hours.
    pub fn owner_lost_in_a_day(&self, quota_gpus: u64) -> f64 {
        self.owner_lost_gpu_hours.max(self.owner_lost_share * quota_gpus as f64 * 24.0)
    }
}

/// Capacity that must always stay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floors {
    /// Share of every pool's GPUs that stays in service.
    pub in_service_share: f64,
    /// GPUs that stay in service, by pool.
    pub pools: BTreeMap<PoolName, u32>,
    /// GPUs an owner never lends, over all its quotas.
    pub owners: BTreeMap<OwnerName, u32>,
}

/// Rests between changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stability {
    /// Rest of an object after a change, seconds.
    pub dwell_s: i64,
    /// Rest after a failure, seconds.
    pub cooldown_s: i64,
    /// Longest rest after failures, seconds.
    pub cooldown_most_s: i64,
    /// Identical failures in a row after which only people may act on the object.
    pub failures: u32,
    /// Reversals of one object allowed in 24 hours.
    pub reversals: u32,
}

/// Limits on the age of data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Freshness {
    /// Greatest age of the observation and of each source's newest event, seconds.
    pub most_s: i64,
    /// The same for single sources.
    pub sources: BTreeMap<String, i64>,
    /// Sources that must be present.
    pub required: Vec<String>,
    /// Greatest age of a plan when one of its actions begins, seconds.
    pub plan_s: i64,
    /// How long a decision waits for a person's approval, seconds.
    pub person_s: i64,
    /// Number of disputed objects beyond which everything stops.
    pub disagreements: u32,
}

/// Value of GPU time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worth {
    /// An hour of useful work of one GPU, millionths of the currency unit.
    pub useful_micros_per_gpu_hour: u64,
    /// An hour of a GPU that its owner needs and lacks, millionths.
    pub missing_micros_per_gpu_hour: u64,
    /// Least net benefit of a decision, GPU-hours.
    pub least_net_gpu_hours: f64,
    /// Standard deviations to the cautious end of an interval.
    pub caution: f64,
    /// Relative standard deviation of a prediction when nothing better is known.
    pub relative_error: f64,
}

/// Which demand forecast to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForecastSource {
    /// Published forecasts while fresh and calibrated, otherwise the observed past.
    #[default]
    Best,
    /// Published forecasts only.
    Log,
    /// The observed past only.
    Trailing,
}

/// Choice of forecast and its age limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForecastRules {
    /// Which forecast.
    pub source: ForecastSource,
    /// Greatest age of the newest published forecast, seconds.
    pub most_age_s: i64,
}

impl Default for ForecastRules {
    /// As shipped. Plans recorded before the choice existed used the same.
    fn default() -> Self {
        Self { source: ForecastSource::Best, most_age_s: 25_200 }
    }
}

/// Lending and reclaiming.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LendRules {
    /// Lowest quantile of demand to keep back.
    pub least_quantile: f64,
    /// Quantile of demand to keep back over the reclaim time.
    pub promise_quantile: f64,
    /// `promise_quantile` of single owners.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub owner_promise_quantile: BTreeMap<OwnerName, f64>,
    /// GPUs kept back on top.
    pub buffer_gpus: u32,
    /// The same when reclaiming; at most `buffer_gpus`.
    pub reclaim_buffer_gpus: u32,
    /// Length of a loan, seconds.
    pub term_s: i64,
    /// Promised reclaim time, seconds.
    pub reclaim_within_s: i64,
    /// Most GPUs lent in one step.
    pub step_gpus: u32,
    /// The same as a share of the owner's quota. The larger of the two applies.
    pub step_share: f64,
    /// Rest between steps, seconds.
    pub step_every_s: i64,
    /// Probability that a loan is reclaimed before it ends.
    pub reclaim_chance: f64,
    /// GPU-hours lost per GPU-hour lent when that happens.
    pub lost_per_lent: f64,
    /// Least share of past bounds that must have held.
    pub least_coverage: f64,
    /// Whether jobs may run on a GPU model that their own pool lacks.
    pub across_models: bool,
    /// Whether one job may span its own and lent nodes.
    pub gangs_span: bool,
    /// Whether running jobs that could grow count as borrowers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_growth: bool,
}

impl LendRules {
    /// Quantile of an owner's demand to keep back over the reclaim time.
    pub fn promise_to(&self, owner: &str) -> f64 {
        self.owner_promise_quantile.get(owner).copied().unwrap_or(self.promise_quantile)
    }
}

/// Resizing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeRules {
    /// Rest of a job after a resize, in multiples of the resize pause.
    pub dwell_pauses: f64,
    /// How long free GPUs are expected to stay free, seconds.
    pub hold_s: i64,
    /// Pause of a resize, seconds.
    pub pause_s: i64,
    /// Least ratio of benefit to cost for growth.
    pub gain_ratio: f64,
    /// Free GPUs that growth leaves untouched.
    pub spare_gpus: u32,
    /// What a GPU beyond its present size is assumed to do for a job that reports steps and whose
    /// scaling is unknown, as a share of one GPU's work. 0: such jobs do not grow.
    #[serde(default, skip_serializing_if = "is_none_of_it")]
    pub trial_gain: f64,
}

// Serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_none_of_it(share: &f64) -> bool {
    *share == 0.0
}

/// Quotas and reservations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationRules {
    /// Quantile of demand that a quota covers.
    pub quantile: f64,
    /// Horizon of that demand, seconds.
    pub horizon_s: i64,
    /// Step of a change, GPUs.
    pub step_gpus: u32,
    /// Price of a reserved GPU-hour relative to on-demand.
    pub price_ratio: f64,
    /// Term of a commitment, days.
    pub term_days: u32,
    /// Owners whose peaks are reserved ahead, and the most GPUs for each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ahead: BTreeMap<OwnerName, u32>,
    /// How far ahead to look for a peak, seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ahead_s: i64,
}

// Serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Draining and returning nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRules {
    /// Probability of being bad at which a node is drained.
    pub bad: f64,
    /// Kinds of evidence required.
    pub families: u32,
    /// Slowdown of a gang, as a share of its rate, at which its node is considered.
    pub slowdown: f64,
    /// How long a node must test healthy before it returns, seconds.
    pub good_for_s: i64,
    /// How long a drained node is away, seconds.
    pub repair_s: i64,
}

/// Preemption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreemptRules {
    /// Times a job may be stopped for others in 24 hours.
    pub per_job_per_day: u32,
    /// Least run time before that, seconds.
    pub least_run_s: i64,
    /// How long a job waits before others are stopped for it, seconds.
    pub after_wait_s: i64,
    /// How long the first gang waits before small jobs are moved to free whole nodes, seconds.
    pub gather_after_s: i64,
    /// Restart time of a job whose own is unknown, seconds.
    pub restart_s: i64,
    /// Notice to write a checkpoint, seconds.
    pub notice_s: i64,
}

/// Advice to people in a plan's report.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdviceRules {
    /// Most items per kind. 0: none.
    pub most: u32,
    /// Share of its throughput a gang must keep with fewer GPUs.
    pub keeps_share: f64,
}

impl AdviceRules {
    pub(super) fn are_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What every owner is promised while the autopilot acts: [`crate::promise`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromiseRules {
    /// Whether the guard keeps it. `false`: it is measured and shown only.
    pub keep: bool,
    /// How much longer the 95th percentile of an owner's waits may be than before the autopilot
    /// acted, share of it.
    pub wait_longer: f64,
    /// So many seconds longer is allowed in any case.
    pub wait_slack_s: i64,
    /// Fewest waits in thirty days that say something, before and now.
    pub least_jobs: u32,
    /// Most minutes in thirty days in which an owner lacks GPUs that it lent.
    pub unmet_minutes: u32,
    /// 95th percentile of the waits promised to an owner, s, instead of the derived one.
    pub owner_wait_p95_s: BTreeMap<OwnerName, u32>,
    /// `unmet_minutes` of single owners.
    pub owner_unmet_minutes: BTreeMap<OwnerName, u32>,
}

impl PromiseRules {
    pub(super) fn are_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A service level objective of the autopilot itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Reclaimed GPUs are free within the promised time after the decision. A reclaim dropped
    /// before it began is not counted; the next decision is.
    Promises,
    /// Begun actions are read back as done, by kind. Actions a person changed meanwhile are not
    /// counted.
    Verified,
    /// A plan is made every interval, including the time in which nobody held the lease.
    Cycles,
}

impl Objective {
    /// Spelling in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Promises => "promises",
            Self::Verified => "verified",
            Self::Cycles => "cycles",
        }
    }
}

/// Service level objectives of the autopilot: see [`crate::slo`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SloRules {
    /// Share of promises to owners kept in time. 0: no objective.
    pub promises: f64,
    /// Share of a kind's actions read back as done. 0: no objective.
    pub verified: f64,
    /// Share of plans made in time. 0: no objective.
    pub cycles: f64,
    /// Days of the error budget.
    pub window_days: u32,
    /// Fewest failures in the long window that raise an alert.
    pub least_bad: u32,
    /// Whether a kind drops one mode while its budget burns fast.
    pub step_down: bool,
}

impl SloRules {
    pub(super) fn are_default(&self) -> bool {
        *self == Self::default()
    }

    /// Objective in millionths. `None`: no objective.
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

/// Promotion and demotion of a kind by its scorecard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordRules {
    /// Scored decisions required for promotion.
    pub decisions: u32,
    /// Share that took effect required for promotion.
    pub verified: f64,
    /// Median ratio of realised to predicted benefit required for promotion.
    pub realised: f64,
    /// Share that took effect below which the kind is demoted.
    pub verified_down: f64,
    /// Median ratio below which the kind is demoted.
    pub realised_down: f64,
    /// Realised over predicted benefit of a month, both summed: outside, a person decides.
    pub calibrated_least: f64,
    /// See `calibrated_least`.
    pub calibrated_most: f64,
    /// Number of recent decisions considered.
    pub window: u32,
}
