//! Policies: what the autopilot may do, how much of it, and by which numbers. A policy file is TOML
//! laid over the shipped policy, validated as a whole.

mod calendar;
mod direction;
mod error;
mod named;
mod overlay;
mod rollout;
mod sections;
mod service;
mod validate;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use calendar::{Day, Freeze};
pub use direction::{PolicyChange, changes, signers_needed};
pub use error::PolicyError;
pub use rollout::{Canary, CanaryRules, RollbackRules, ShadowRules};
pub use sections::{
    AdviceRules, Blast, Budget, DrainRules, Floors, ForecastRules, ForecastSource, Freshness, LendRules,
    Objective, PreemptRules, PromiseRules, RecordRules, ReservationRules, ResizeRules, SloRules, Stability,
    Worth,
};
pub use service::Service;

use crate::action::Kind;
use crate::names::{JobId, NodeName, OwnerName, PoolName};

/// The shipped policy.
pub const SHIPPED: &str = include_str!("../../policies/default.toml");

/// Built-in policies, by name.
pub const NAMED: [(&str, &str); 2] =
    [("default", SHIPPED), ("auto", include_str!("../../policies/auto.toml"))];

/// How far a kind of decision may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Not planned.
    Stop,
    /// Planned and recorded, but not shown.
    Observe,
    /// Shown to people.
    Suggest,
    /// Carried out once a person approves it.
    Approve,
    /// Carried out.
    Act,
}

impl Mode {
    /// Next mode up. `act` stays, and `stop` stays because a person set it.
    pub fn up(self) -> Self {
        match self {
            Self::Stop => Self::Stop,
            Self::Observe => Self::Suggest,
            Self::Suggest => Self::Approve,
            Self::Approve | Self::Act => Self::Act,
        }
    }

    /// Next mode down, never to `stop`: a kind that does badly is still observed.
    pub fn down(self) -> Self {
        match self {
            Self::Stop => Self::Stop,
            Self::Observe | Self::Suggest => Self::Observe,
            Self::Approve => Self::Suggest,
            Self::Act => Self::Approve,
        }
    }

    /// Spelling in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Observe => "observe",
            Self::Suggest => "suggest",
            Self::Approve => "approve",
            Self::Act => "act",
        }
    }
}

/// A mode for part of the cluster. Fields left out match everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Kind of decision.
    pub kind: Option<Kind>,
    /// Owner of the jobs or capacity.
    pub owner: Option<OwnerName>,
    /// Pool.
    pub pool: Option<PoolName>,
    /// Node.
    pub node: Option<NodeName>,
    /// Job.
    pub job: Option<JobId>,
    /// Mode where it matches.
    pub mode: Mode,
}

/// Objects an action touches, matched against scopes and freezes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Footprint {
    /// Owners whose jobs or capacity it touches.
    pub owners: Vec<OwnerName>,
    /// Pools.
    pub pools: Vec<PoolName>,
    /// Nodes.
    pub nodes: Vec<NodeName>,
    /// Jobs.
    pub jobs: Vec<JobId>,
}

/// A complete, validated policy.
///
/// In a file, keys left out come from the shipped policy. In a record of an older program, absent
/// keys are off and are not written back, so its plans keep their hashes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Format version of the file: 1.
    pub format: u32,
    /// Name in records and tables.
    pub name: String,
    /// Whether jobs are touched only if their owner opted in.
    pub require_opt_in: bool,
    /// Modes for parts of the cluster. The last match decides; a matching `stop` always wins.
    pub scopes: Vec<Scope>,
    /// Freezes.
    pub calendar: Vec<Freeze>,
    /// Local time of the calendar, minutes east of UTC.
    pub utc_offset_minutes: i32,
    /// Services with a limit on request waiting time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// Mode by kind.
    pub modes: BTreeMap<Kind, Mode>,
    /// Highest mode each kind has earned by its scorecard. The executor sets it; files do not
    /// contain it, recorded plans do.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at_most: BTreeMap<Kind, Mode>,
    /// Budget by kind.
    pub budgets: BTreeMap<Kind, Budget>,
    /// Blast radius: how much may be touched in total.
    pub blast: Blast,
    /// Capacity that must always stay.
    pub floors: Floors,
    /// Rests between changes.
    pub stability: Stability,
    /// Limits on the age of data.
    pub freshness: Freshness,
    /// Choice of demand forecast.
    #[serde(default)]
    pub forecast: ForecastRules,
    /// Value of GPU time.
    pub worth: Worth,
    /// Lending and reclaiming.
    pub lend: LendRules,
    /// Resizing.
    pub resize: ResizeRules,
    /// Quotas and reservations.
    pub reservation: ReservationRules,
    /// Draining and returning nodes.
    pub drain: DrainRules,
    /// Preemption.
    pub preempt: PreemptRules,
    /// Advice to people.
    #[serde(default, skip_serializing_if = "AdviceRules::are_default")]
    pub advice: AdviceRules,
    /// What every owner is promised.
    #[serde(default, skip_serializing_if = "PromiseRules::are_default")]
    pub promise: PromiseRules,
    /// Promotion and demotion by scorecard.
    pub record: RecordRules,
    /// Shadow policy, which plans but never acts.
    #[serde(default, skip_serializing_if = "ShadowRules::is_off")]
    pub shadow: ShadowRules,
    /// Canary policy, which acts for some owners instead of this one.
    #[serde(default, skip_serializing_if = "CanaryRules::is_off")]
    pub canary: CanaryRules,
    /// Service level objectives of the autopilot itself.
    #[serde(default, skip_serializing_if = "SloRules::are_default")]
    pub slo: SloRules,
}

impl Policy {
    /// Parses `text` and lays it over the shipped policy.
    ///
    /// # Errors
    /// The first error: the key, its value and what to write instead.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let policy = overlay::over_shipped(text)?;
        validate::validate(&policy)?;
        Ok(policy)
    }

    /// The shipped policy.
    pub fn shipped() -> Self {
        Self::parse("").expect("the shipped policy is complete and right; a test reads it")
    }

    /// The built-in policy that acts on whatever can be undone.
    pub fn auto() -> Self {
        Self::named("auto").expect("it comes with the program")
    }

    /// A built-in policy by name. `None`: unknown name.
    pub fn named(name: &str) -> Option<Self> {
        let (_, text) = NAMED.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(text).expect("policies that come with the program are right; a test reads them"))
    }

    /// Mode of `kind` for what it touches.
    pub fn mode(&self, kind: Kind, footprint: &Footprint) -> Mode {
        let mut mode = self.modes.get(&kind).copied().unwrap_or(Mode::Observe);
        if mode == Mode::Stop {
            return mode;
        }
        for scope in self.scopes.iter().filter(|scope| scope.fits(kind, footprint)) {
            if scope.mode == Mode::Stop {
                return Mode::Stop;
            }
            mode = scope.mode;
        }
        mode
    }

    /// Budget of `kind`.
    pub fn budget(&self, kind: Kind) -> Budget {
        self.budgets.get(&kind).copied().unwrap_or_default()
    }

    /// The freeze that applies at `now_us` to `kind` and what it touches.
    pub fn frozen(&self, kind: Kind, footprint: &Footprint, now_us: i64) -> Option<&Freeze> {
        let offset = self.utc_offset_minutes;
        self.calendar.iter().find(|freeze| freeze.fits(kind, footprint) && freeze.holds(now_us, offset))
    }
}

impl Scope {
    fn fits(&self, kind: Kind, footprint: &Footprint) -> bool {
        let among = |wanted: &Option<String>, touched: &[String]| {
            wanted.as_ref().is_none_or(|wanted| touched.contains(wanted))
        };
        self.kind.is_none_or(|wanted| wanted == kind)
            && among(&self.owner, &footprint.owners)
            && among(&self.pool, &footprint.pools)
            && among(&self.node, &footprint.nodes)
            && among(&self.job, &footprint.jobs)
    }
}

#[cfg(test)]
mod tests;
