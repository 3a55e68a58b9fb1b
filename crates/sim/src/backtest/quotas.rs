//! Lends idle quota across teams: a team at its quota may use what others do not, until they ask.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Run, run_services_to_span};
use crate::scenario::Scenario;
use crate::{Backfill, JobState, MINUTE_US, Place, Sim, SimError, schedulers::Scheduler};

/// Lends idle quota between teams that share one pool.
///
/// Each step, if no owner waits for room, the longest waiting job beyond a quota may start, if
/// there is room beyond what is kept for owners. A team exceeds its quota by no more than its
/// stoppable jobs hold. If a job within its quota does not fit, jobs of teams beyond their quotas
/// are stopped, on the nodes where that loses least.
#[derive(Debug, Clone)]
pub struct QuotaLender {
    /// Whether quota is lent. If not, quotas are hard limits and waits are only measured.
    pub lends: bool,
    /// GPUs of each team's idle quota that are never lent.
    pub keep_gpus: u32,
    /// Promised time until an owner has its room, µs.
    pub promise_us: i64,
    quotas: Vec<u32>,
    /// The first job of each team that waits within its quota, with the start of the wait.
    entitled: BTreeMap<u32, i64>,
    last_us: i64,
    seen: Owners,
}

/// Waits of owners, and the lent time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Owners {
    /// Jobs that waited within their team's quota; only the first job of a team counts.
    pub waits: u64,
    /// Of those, jobs that waited longer than promised.
    pub late: u64,
    /// The longest of these waits, µs.
    pub longest_us: i64,
    /// GPU time held beyond quotas, GPU-µs.
    pub borrowed_gpu_us: i128,
    /// Number of times that room was made for an owner.
    pub reclaims: u64,
}

/// Result of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QuotaRun {
    /// The usual numbers of a backtest.
    pub run: Run,
    /// GPU time that jobs waited for in the measured time, GPU-µs.
    pub waited_gpu_us: i128,
    /// Waits of owners.
    pub owners: Owners,
}

impl QuotaLender {
    /// A lender of all idle quota, or of none, that promises room within `promise_us`.
    pub fn new(lends: bool, promise_us: i64) -> Self {
        Self {
            lends,
            keep_gpus: 0,
            promise_us,
            quotas: Vec::new(),
            entitled: BTreeMap::new(),
            last_us: 0,
            seen: Owners::default(),
        }
    }

    fn quota(&self, team: usize) -> u32 {
        self.quotas.get(team).copied().unwrap_or(u32::MAX)
    }

    /// The first job of each team that waits within its quota, or beyond it.
    fn first(&self, sim: &Sim, within: bool) -> Vec<u32> {
        let of = |queue: &BTreeSet<(i32, u32)>| {
            queue.iter().map(|key| key.1).find(|job| self.within(sim, *job) == within)
        };
        sim.queues.iter().filter_map(of).collect()
    }

    /// Whether a job is within its team's quota, with what the team holds.
    fn within(&self, sim: &Sim, job: u32) -> bool {
        let spec = &sim.jobs()[job as usize].spec;
        sim.held_gpus(spec.team) + spec.gpus <= self.quota(spec.team)
    }

    /// Counts finished waits of owners, and starts measuring new ones.
    fn measure(&mut self, sim: &Sim) {
        let now_us = sim.now_us();
        for team in 0..sim.spec().teams.len() {
            let beyond = sim.held_gpus(team).saturating_sub(self.quota(team));
            self.seen.borrowed_gpu_us += i128::from(beyond) * i128::from(now_us - self.last_us);
        }
        let waiting = std::mem::take(&mut self.entitled);
        for (job, since_us) in waiting {
            let j = &sim.jobs()[job as usize];
            let still = j.state == JobState::Queued && self.within(sim, job);
            let until_us = if j.state == JobState::Queued { now_us } else { j.started_us };
            let waited_us = until_us - since_us;
            self.seen.longest_us = self.seen.longest_us.max(waited_us);
            if still {
                self.entitled.insert(job, since_us);
            } else {
                self.seen.waits += 1;
                self.seen.late += u64::from(waited_us > self.promise_us);
            }
        }
        for job in self.first(sim, true) {
            let since_us = sim.jobs()[job as usize].queued_us.max(self.last_us);
            self.entitled.entry(job).or_insert(since_us);
        }
        self.last_us = now_us;
    }

    /// Lets the job beyond a quota that waits longest start, of those for which there is room.
    fn lend(&self, sim: &mut Sim) {
        let kept = |team: usize| self.keep_gpus.min(self.quota(team).saturating_sub(sim.held_gpus(team)));
        let kept: u32 = (0..self.quotas.len()).map(kept).sum();
        let room = sim.free_gpus(0).0.saturating_sub(kept);
        let mut heads = self.first(sim, false);
        heads.sort_by_key(|job| (sim.jobs()[*job as usize].queued_us, *job));
        let chosen = heads.into_iter().find(|job| {
            let spec = &sim.jobs()[*job as usize].spec;
            let own = if spec.loan { spec.gpus } else { 0 };
            let stoppable: u32 =
                own + stoppable(sim, spec.team).map(|job| sim.jobs()[job as usize].gpus()).sum::<u32>();
            let beyond = (sim.held_gpus(spec.team) + spec.gpus).saturating_sub(self.quota(spec.team));
            spec.gpus <= room
                && beyond <= stoppable
                && sim.nodes.fit(0, spec.model, spec.gpus, false).is_some()
        });
        if let Some(job) = chosen {
            let spec = &sim.jobs()[job as usize].spec;
            let (team, limit) = (spec.team, sim.held_gpus(spec.team) + spec.gpus);
            sim.set_limit(team, Some(limit));
        }
    }

    /// Stops jobs beyond their teams' quotas so that an owner's job fits: whole nodes first, then
    /// the rest, where least is lost. Does nothing and returns `false` if that is not enough.
    fn make_room(&mut self, sim: &mut Sim, job: u32) -> bool {
        let gpus = sim.jobs()[job as usize].spec.gpus;
        let teams = 0..sim.spec().teams.len();
        let mut beyond: Vec<u32> =
            teams.clone().map(|t| sim.held_gpus(t).saturating_sub(self.quota(t))).collect();
        let lent: BTreeSet<u32> = teams.filter(|t| beyond[*t] > 0).flat_map(|t| stoppable(sim, t)).collect();
        let size = sim.nodes().iter().map(|n| n.gpus).max().unwrap_or(1);
        let mut nodes: Vec<(i128, u32, u32, Vec<u32>)> = Vec::new();
        for (at, n) in sim.nodes().iter().enumerate() {
            if n.place != Place::Home || !n.up || n.drained {
                continue;
            }
            let go: Vec<u32> = n.jobs.iter().copied().filter(|job| lent.contains(job)).collect();
            let here = |job: &u32| {
                let held = &sim.jobs()[*job as usize].held;
                held.iter().filter(|h| h.0 as usize == at).map(|h| h.1).sum::<u32>()
            };
            let free = n.free + go.iter().map(here).sum::<u32>();
            nodes.push((go.iter().map(|job| loss(sim, *job)).sum(), at as u32, free, go));
        }
        nodes.sort_unstable();
        let (mut whole, mut rest, mut victims) = (gpus / size, gpus % size, BTreeSet::new());
        for (_, _, free, go) in &nodes {
            if whole > 0 && *free >= size {
                whole -= 1;
                victims.extend(go);
            } else if rest > 0 && *free >= rest {
                rest = 0;
                victims.extend(go);
            }
        }
        if whole > 0 || rest > 0 {
            return false;
        }
        for victim in victims {
            let j = &sim.jobs()[victim as usize];
            let (team, gpus) = (j.spec.team, j.gpus());
            // What is within its quota after all stays.
            if beyond[team] > 0 {
                beyond[team] = beyond[team].saturating_sub(gpus);
                sim.evict(victim, true);
            }
        }
        self.seen.reclaims += 1;
        true
    }
}

/// Running jobs of a team that may be stopped.
fn stoppable(sim: &Sim, team: usize) -> impl Iterator<Item = u32> + '_ {
    sim.running().filter(move |job| {
        let spec = &sim.jobs()[*job as usize].spec;
        spec.team == team && spec.loan && sim.is_steady(*job)
    })
}

/// GPU time lost if a job is stopped with notice.
fn loss(sim: &Sim, job: u32) -> i128 {
    let j = &sim.jobs()[job as usize];
    let saves = j.spec.checkpoint.is_some_and(|c| c.on_notice);
    let risk = if saves { 0 } else { j.at_risk_gpu_us(sim.now_us()) };
    risk + i128::from(j.gpus()) * i128::from(j.spec.restart_us)
}

impl Scheduler for QuotaLender {
    fn name(&self) -> String {
        if self.lends { "quotas lent".into() } else { "quotas".into() }
    }

    fn every_us(&self) -> i64 {
        MINUTE_US
    }

    fn act(&mut self, sim: &mut Sim) {
        if self.quotas.is_empty() {
            self.quotas =
                (0..sim.spec().teams.len()).map(|t| sim.limit_gpus(t).unwrap_or(u32::MAX)).collect();
        }
        self.measure(sim);
        if !self.lends {
            return;
        }
        // What was allowed and not used is not allowed any more.
        for team in 0..self.quotas.len() {
            let limit = Some(self.quota(team)).filter(|gpus| *gpus < u32::MAX);
            if sim.limit_gpus(team) != limit {
                sim.set_limit(team, limit);
            }
        }
        let going = sim.running().any(|job| !sim.is_steady(job));
        let waits: Vec<u32> = self.entitled.keys().copied().collect();
        // One owner at a time: freed GPUs must not be counted twice.
        if !going && waits.iter().any(|job| self.make_room(sim, *job)) {
            return;
        }
        if waits.is_empty() && !going {
            self.lend(sim);
        }
    }
}

/// Runs the teams of a scenario with their quotas to the end of the measured time, and lets waiting
/// jobs finish after it.
///
/// # Errors
/// [`SimError`] if the setting does not fit together.
pub fn play_quotas(setting: &Scenario, mut lender: QuotaLender) -> Result<QuotaRun, SimError> {
    let mut spec = setting.spec.clone();
    spec.schedule.backfill = Backfill::Easy { depth: 100 };
    spec.schedule.pass_at_quota = true;
    let mut sim = Sim::new(spec, setting.jobs.clone(), setting.services.clone())?;
    for fault in &setting.faults {
        sim.plan_failure(fault.at_us, fault.node, fault.repair_us);
    }
    let span_us = setting.span_us;
    let mut at_span = None;
    let mut at = |sim: &Sim| {
        if at_span.is_none() && sim.now_us() >= span_us {
            at_span = Some((sim.outcome(), waited_gpu_us(sim)));
        }
    };
    crate::schedulers::run(&mut sim, &mut lender, span_us + setting.drain_us, &mut at);
    run_services_to_span(&mut sim, &mut lender, span_us, &mut at);
    let (at_span, waited_gpu_us) = at_span.unwrap_or_else(|| (sim.outcome(), waited_gpu_us(&sim)));
    let run = Run { at_span, at_end: sim.outcome(), span_us, price_micros: setting.price_micros };
    Ok(QuotaRun { run, waited_gpu_us, owners: lender.seen })
}

fn waited_gpu_us(sim: &Sim) -> i128 {
    let waited = |j: &crate::Job| {
        let lasts_us = if j.state == JobState::Queued { sim.now_us() - j.queued_us } else { 0 };
        i128::from(j.waited_us + lasts_us) * i128::from(j.spec.gpus)
    };
    sim.jobs().iter().map(waited).sum()
}
