//! When a plan was made, by whom and from what, in words and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_autopilot::state::{ForecastOrigin, JobState};
use tidegate_events::Micros;

use super::newest::Found;
use crate::autopilot::record::has_inputs;

/// When and by whom a plan was made.
#[derive(Debug, Serialize)]
pub(super) struct MadeBy {
    made_time: String,
    age_s: i64,
    /// When the last plan was made that says the same.
    same_until_time: String,
    observed_time: String,
    policy: String,
    policy_hash: String,
    holder: Option<String>,
    generation: Option<u64>,
    is_recorded: bool,
}

/// What a plan was made from.
#[derive(Debug, Serialize)]
pub(super) struct MadeFrom {
    nodes: usize,
    gpus: u32,
    jobs: JobCounts,
    owners: usize,
    loans: usize,
    disagreements: usize,
    sources: Vec<SourceAge>,
    forecasts: Vec<Forecast>,
}

#[derive(Debug, Default, Serialize)]
struct JobCounts {
    running: usize,
    waiting: usize,
    changing_or_unknown: usize,
}

/// A source of the state, and how old its last event was when the plan was made.
#[derive(Debug, Serialize)]
struct SourceAge {
    source: String,
    age_s: Option<i64>,
}

/// Where the forecast of an owner's demand in a pool came from.
#[derive(Debug, Serialize)]
struct Forecast {
    owner: String,
    pool: String,
    origin: String,
}

impl MadeBy {
    pub fn of(found: &Found, now_us: i64) -> Self {
        let plan = &found.planned.plan;
        Self {
            made_time: time(plan.made_us),
            age_s: Micros(now_us.saturating_sub(plan.made_us)).floor_secs(),
            same_until_time: time(found.same_until_us),
            observed_time: time(plan.observed_us),
            policy: plan.policy.clone(),
            policy_hash: plan.policy_hash.clone(),
            holder: found.holder.clone(),
            generation: found.generation,
            is_recorded: found.is_recorded,
        }
    }

    pub fn age_s(&self) -> i64 {
        self.age_s
    }

    /// Lines below the heading of a plan.
    pub fn lines(&self, found: &Found) -> Vec<String> {
        let mut lines = Vec::new();
        if found.same_until_us > found.planned.plan.made_us {
            lines.push(format!("still the same at {}", self.same_until_time));
        }
        let holder = self.holder.as_deref().unwrap_or("a process that is not on record");
        let generation = self.generation.map_or_else(String::new, |number| format!(", generation {number}"));
        let recorded = if self.is_recorded { "" } else { "; not in the journal: it decides nothing new" };
        lines.push(format!("made by    {holder}{generation}{recorded}"));
        lines
    }
}

impl MadeFrom {
    /// `None`: the record is without the state.
    pub fn of(found: &Found) -> Option<Self> {
        if !has_inputs(&found.planned) {
            return None;
        }
        let (state, made_us) = (&found.planned.state, found.planned.plan.made_us);
        let mut jobs = JobCounts::default();
        for job in state.jobs.values() {
            match job.state {
                JobState::Running { .. } => jobs.running += 1,
                JobState::Pending { .. } => jobs.waiting += 1,
                JobState::Changing { .. } | JobState::Unknown => jobs.changing_or_unknown += 1,
            }
        }
        // A plan is dated before the cluster is observed for it.
        let age_s = |at_us: i64| Micros(made_us.saturating_sub(at_us)).floor_secs().max(0);
        let sources = state.sources.iter();
        let origins = state.forecast_origins.iter();
        let of_pools =
            origins.flat_map(|(owner, pools)| pools.iter().map(move |(pool, by)| (owner, pool, by)));
        Some(Self {
            nodes: state.nodes.len(),
            gpus: state.nodes.values().map(|node| node.gpus).sum(),
            jobs,
            owners: state.owners.len(),
            loans: state.loans.len(),
            disagreements: state.disagreements.len(),
            sources: sources
                .map(|(source, of)| SourceAge { source: source.clone(), age_s: of.last_event_us.map(age_s) })
                .collect(),
            forecasts: of_pools
                .map(|(owner, pool, by)| Forecast {
                    owner: owner.clone(),
                    pool: pool.clone(),
                    origin: origin(by),
                })
                .collect(),
        })
    }

    /// Lines below the heading of a plan.
    pub fn lines(&self) -> Vec<String> {
        let JobCounts { running, waiting, changing_or_unknown } = self.jobs;
        let mut lines = vec![format!(
            "made from  {} nodes with {} GPUs, {running} running, {waiting} waiting and {changing_or_unknown} other jobs, {} \
             owners, {} loans",
            self.nodes, self.gpus, self.owners, self.loans
        )];
        if self.disagreements > 0 {
            lines.push(format!("           log and scheduler disagree about {} objects", self.disagreements));
        }
        let age = |of: &SourceAge| match of.age_s {
            Some(age_s) => format!("{}, {age_s} s before", of.source),
            None => format!("{}, nothing yet", of.source),
        };
        let sources: Vec<String> = self.sources.iter().map(age).collect();
        lines.push(match sources.is_empty() {
            true => "sources    none named".to_owned(),
            false => format!("sources    {}", sources.join("; ")),
        });
        // One line for all series of the same origin.
        let mut by_origin: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for Forecast { owner, pool, origin } in &self.forecasts {
            by_origin.entry(origin).or_default().push(format!("{owner} in {pool}"));
        }
        let of = by_origin.iter().map(|(origin, of)| format!("forecast   {}: {origin}", of.join(", ")));
        lines.extend(of);
        if by_origin.is_empty() {
            lines.push("forecast   of nobody: no owner has a share of a pool".to_owned());
        }
        lines
    }
}

fn origin(by: &ForecastOrigin) -> String {
    match by {
        ForecastOrigin::Published { series, issued_us, off, .. } => {
            let off = if off.is_empty() { "" } else { ", some of its bounds do not hold" };
            format!("published on the log as {series} at {}{off}", time(*issued_us))
        }
        ForecastOrigin::Past { why, held_ppm: Some(held) } => {
            format!("its own past, {:.3} of its bounds held ({why})", f64::from(*held) / 1e6)
        }
        ForecastOrigin::Past { why, held_ppm: None } => {
            format!("its own past, too short to be relied on (no published one: {why})")
        }
        ForecastOrigin::Nobody { why } => format!("none: {why}"),
    }
}

/// A time as RFC 3339 in UTC, to the second.
pub(super) fn time(at_us: i64) -> String {
    let time = chrono::DateTime::from_timestamp_micros(at_us);
    time.map_or_else(|| format!("{at_us} us"), |time| time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true))
}

/// A time span as people say it.
pub(super) fn span(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
