//! What the autopilot may do, how much of it, and by which numbers: a TOML file laid over the
//! shipped one, checked as a whole.

mod calendar;
mod direction;
mod error;
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
    Objective, PreemptRules, RecordRules, ReservationRules, ResizeRules, SloRules, Stability, Worth,
};
pub use service::Service;

use crate::action::Kind;
use crate::names::{JobId, NodeName, OwnerName, PoolName};

/// The shipped policy.
pub const SHIPPED: &str = include_str!("../../policies/default.toml");

/// Policies that come with the program, by name.
pub const NAMED: [(&str, &str); 2] =
    [("default", SHIPPED), ("auto", include_str!("../../policies/auto.toml"))];

/// How far a kind of decision may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Not even planned.
    Stop,
    /// Planned and recorded; nobody is told.
    Observe,
    /// Told to people.
    Suggest,
    /// Done when a person approved it.
    Approve,
    /// Done.
    Act,
}

impl Mode {
    /// One mode further; `act` stays. `stop` is a person's word and stays too.
    pub fn up(self) -> Self {
        match self {
            Self::Stop => Self::Stop,
            Self::Observe => Self::Suggest,
            Self::Suggest => Self::Approve,
            Self::Approve | Self::Act => Self::Act,
        }
    }

    /// One mode back, never to `stop`: what goes badly is still watched.
    pub fn down(self) -> Self {
        match self {
            Self::Stop => Self::Stop,
            Self::Observe | Self::Suggest => Self::Observe,
            Self::Approve => Self::Suggest,
            Self::Act => Self::Approve,
        }
    }

    /// Its spelling.
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

/// A mode for part of the cluster. What is left out fits everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Of this kind.
    pub kind: Option<Kind>,
    /// Of this owner's jobs and capacity.
    pub owner: Option<OwnerName>,
    /// In this pool.
    pub pool: Option<PoolName>,
    /// On this node.
    pub node: Option<NodeName>,
    /// On this job.
    pub job: Option<JobId>,
    /// The mode.
    pub mode: Mode,
}

/// What an action touches, for scopes and freezes.
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

/// A policy, complete and checked. In files every key comes from the shipped policy; what a record
/// of an older program lacks is off, and is not written again, so that its plans keep their hashes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Version of this file's form: 1.
    pub format: u32,
    /// Its name in records and tables.
    pub name: String,
    /// Jobs are touched only where their owner opted in.
    pub require_opt_in: bool,
    /// Modes for parts of the cluster; the last that fits decides, a `stop` that fits always does.
    pub scopes: Vec<Scope>,
    /// When nothing is done.
    pub calendar: Vec<Freeze>,
    /// Local time of the calendar: minutes east of UTC.
    pub utc_offset_minutes: i32,
    /// Services whose requests may not wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// Mode by kind.
    pub modes: BTreeMap<Kind, Mode>,
    /// How far the record of each kind lets it go, by the executor: no file says it, recorded plans
    /// do.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at_most: BTreeMap<Kind, Mode>,
    /// Budget by kind.
    pub budgets: BTreeMap<Kind, Budget>,
    /// How much may be touched altogether.
    pub blast: Blast,
    /// What always stays.
    pub floors: Floors,
    /// How often things may change.
    pub stability: Stability,
    /// How old knowledge may be.
    pub freshness: Freshness,
    /// Whose forecasts of demand count.
    #[serde(default)]
    pub forecast: ForecastRules,
    /// What things are worth.
    pub worth: Worth,
    /// Numbers of lending and taking back.
    pub lend: LendRules,
    /// Numbers of resizing.
    pub resize: ResizeRules,
    /// Numbers of quotas and reservations.
    pub reservation: ReservationRules,
    /// Numbers of draining and returning.
    pub drain: DrainRules,
    /// Numbers of stopping jobs for others.
    pub preempt: PreemptRules,
    /// What people are advised.
    #[serde(default, skip_serializing_if = "AdviceRules::are_default")]
    pub advice: AdviceRules,
    /// When a kind of decision is promoted or demoted.
    pub record: RecordRules,
    /// A policy that only thinks beside this one.
    #[serde(default, skip_serializing_if = "ShadowRules::is_off")]
    pub shadow: ShadowRules,
    /// A policy that acts for some owners instead of this one.
    #[serde(default, skip_serializing_if = "CanaryRules::is_off")]
    pub canary: CanaryRules,
    /// What the autopilot promises of itself.
    #[serde(default, skip_serializing_if = "SloRules::are_default")]
    pub slo: SloRules,
}

impl Policy {
    /// Reads `text` and lays it over the shipped policy.
    ///
    /// # Errors
    /// The first thing that is wrong: the key, its value and how to mend it.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let policy = overlay::over_shipped(text)?;
        validate::validate(&policy)?;
        Ok(policy)
    }

    /// The shipped policy.
    pub fn shipped() -> Self {
        Self::parse("").expect("the shipped policy is complete and right; a test reads it")
    }

    /// The policy of those who let it act: what can be undone is done.
    pub fn auto() -> Self {
        Self::named("auto").expect("it comes with the program")
    }

    /// A policy that comes with the program; `None`: no such name.
    pub fn named(name: &str) -> Option<Self> {
        let (_, text) = NAMED.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(text).expect("policies that come with the program are right; a test reads them"))
    }

    /// Mode of `kind` for what it touches.
    pub fn mode(&self, kind: Kind, reach: &Footprint) -> Mode {
        let mut mode = self.modes.get(&kind).copied().unwrap_or(Mode::Observe);
        if mode == Mode::Stop {
            return mode;
        }
        for scope in self.scopes.iter().filter(|scope| scope.fits(kind, reach)) {
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

    /// The freeze that holds at `now_us` for `kind` and what it touches.
    pub fn frozen(&self, kind: Kind, reach: &Footprint, now_us: i64) -> Option<&Freeze> {
        let offset = self.utc_offset_minutes;
        self.calendar.iter().find(|freeze| freeze.fits(kind, reach) && freeze.holds(now_us, offset))
    }
}

impl Scope {
    fn fits(&self, kind: Kind, reach: &Footprint) -> bool {
        let among = |wanted: &Option<String>, touched: &[String]| {
            wanted.as_ref().is_none_or(|wanted| touched.contains(wanted))
        };
        self.kind.is_none_or(|wanted| wanted == kind)
            && among(&self.owner, &reach.owners)
            && among(&self.pool, &reach.pools)
            && among(&self.node, &reach.nodes)
            && among(&self.job, &reach.jobs)
    }
}

#[cfg(test)]
mod tests;
