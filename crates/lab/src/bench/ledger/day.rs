//! The day: requests, holds and incidents, and so the use of every GPU-millisecond.

use tidegate_events::FinalState;

use super::bottleneck::Bottleneck;
use super::class::Class;
use super::fleet::{BURST, Fleet, SHARED, Span, TRAIN, WHOLE};
use super::training::{Habits, Plan, Training};
use tidegate_demo::draw::Draw;
use tidegate_demo::levels::Doing;

/// 2025-11-21 00:00 UTC.
const FIRST_MS: i64 = 1_763_683_200_000;
const HOUR_MS: i64 = 3_600_000;
/// Id of the first job.
const FIRST_JOB: usize = 1_001;

#[derive(Debug)]
pub struct Day {
    pub draw: Draw,
    pub span: Span,
    pub fleet: Fleet,
    pub jobs: Vec<Job>,
    pub conditions: Vec<Condition>,
    pub quotas: Vec<Quota>,
    pub prices: Vec<Price>,
    /// The reservation of pool `burst`, paid throughout.
    pub reserved: Span,
    /// Holds of each unit, in order of time.
    held: Vec<Vec<Held>>,
}

#[derive(Debug)]
pub struct Job {
    pub id: String,
    pub team: &'static str,
    pub user: String,
    pub pool: &'static str,
    pub name: &'static str,
    /// Thousandths of a GPU as the scheduler counts: a slice counts as one GPU, a time share as
    /// none.
    pub asked_milli: Option<u64>,
    pub submit_ms: i64,
    /// The scheduler's reason for its wait.
    pub reason: Option<&'static str>,
    /// The bottleneck it is made to have.
    pub bottleneck: Option<Bottleneck>,
    /// Growth of its memory, bytes per hour.
    pub growth: i64,
    pub attempts: Vec<Attempt>,
}

#[derive(Debug)]
pub struct Attempt {
    pub span: Span,
    pub state: FinalState,
    /// Units it holds, one per rank.
    pub units: Vec<usize>,
    pub work: Activity,
}

#[derive(Debug)]
pub enum Activity {
    /// Trains and reports its steps.
    Training(Training),
    /// Phases, each with its end in ms; reports nothing.
    Phases(Vec<(i64, Doing)>),
}

/// An incident of a pool, a node or a GPU, and its period.
#[derive(Debug, Clone, Copy)]
pub struct Condition {
    pub span: Span,
    pub what: Incident,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incident {
    /// The node does not respond.
    Down(usize),
    /// The node takes no new jobs; its jobs continue.
    Drained(usize),
    /// The GPU of the node fell off the bus.
    Lost(usize, usize),
    /// A process outside the scheduler computes on the GPU of the node.
    Stranger(usize, usize),
    /// The node's agent sends nothing.
    Silent(usize),
    /// Jobs wait in the pool and free GPUs cannot serve them, for this class of reason.
    Waits(&'static str, Class),
}

/// A quota of a team in a pool, from a time on.
#[derive(Debug, Clone, Copy)]
pub struct Quota {
    pub at_ms: i64,
    pub pool: &'static str,
    pub team: &'static str,
    pub gpus: usize,
}

/// Price of a GPU-hour of a pool in millionths, from a time on.
#[derive(Debug, Clone, Copy)]
pub struct Price {
    pub from_ms: i64,
    pub pool: &'static str,
    pub micros: i64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    span: Span,
    by: By,
}

/// A rank of an attempt of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct By {
    pub job: usize,
    pub attempt: usize,
    pub rank: u32,
}

/// A period of one unit with one class.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    pub span: Span,
    pub class: Class,
    pub doing: Doing,
    pub by: Option<By>,
}

impl Day {
    /// Fleet, prices and reservation of a day, as yet without jobs; [`scenes`](super::scenes) adds
    /// them.
    pub fn without_jobs(seed: u64, hours: u32, nodes: usize) -> Self {
        let draw = Draw::new(seed);
        let length_ms = i64::from(hours) * HOUR_MS;
        let at = |share: f64| FIRST_MS + (length_ms as f64 * share / 1_000.0) as i64 * 1_000;
        let span = Span { from_ms: FIRST_MS, to_ms: FIRST_MS + length_ms };
        let reserved = Span { from_ms: at(0.1), to_ms: at(0.9) };
        let burst = Span { from_ms: at(0.4), ..reserved };
        let fleet = Fleet::new(draw.of(1), nodes, span, burst);
        let held = vec![Vec::new(); fleet.units.len()];
        let (jobs, conditions, quotas) = Default::default();
        let price = |from_ms, pool, micros| Price { from_ms, pool, micros };
        // One price changes within a minute.
        let prices = vec![
            price(span.from_ms, TRAIN, 2_500_000),
            price(span.from_ms, SHARED, 2_000_000),
            price(span.from_ms, BURST, 4_100_000),
            price(at(0.53) + 1_234, TRAIN, 3_100_003),
        ];
        Self { draw, span, fleet, jobs, conditions, quotas, prices, reserved, held }
    }

    /// Sorts the holds of each unit by time, once all jobs are there.
    pub fn sort_holds(&mut self) {
        for held in &mut self.held {
            held.sort_by_key(|held| held.span.from_ms);
        }
    }

    /// GPU-ms of the reservation before its node joined, in fourteenths.
    pub fn not_provisioned(&self) -> i64 {
        let node = &self.fleet.nodes[self.fleet.of_pool(BURST)[0]];
        (node.registered.from_ms - self.reserved.from_ms) * WHOLE * node.gpus.len() as i64
    }

    /// All paid time, in fourteenths of GPU-ms.
    pub fn paid(&self) -> i64 {
        self.fleet.provisioned() + self.not_provisioned()
    }

    /// Adds a job to the queue; returns its index.
    pub fn submit(&mut self, job: Job) -> usize {
        let id = (FIRST_JOB + self.jobs.len()).to_string();
        self.jobs.push(Job { id, ..job });
        self.jobs.len() - 1
    }

    /// Adds an attempt of a job that holds units for a span.
    pub fn hold(&mut self, job: usize, span: Span, state: FinalState, units: &[usize], work: Activity) {
        let attempt = self.jobs[job].attempts.len();
        for (rank, unit) in (0_u32..).zip(units) {
            self.held[*unit].push(Held { span, by: By { job, attempt, rank } });
        }
        self.jobs[job].attempts.push(Attempt { span, state, units: units.to_vec(), work });
    }

    /// Adds a training attempt of a job.
    pub fn train(
        &mut self,
        job: usize,
        span: Span,
        state: FinalState,
        units: &[usize],
        straggler: Option<u32>,
    ) {
        let habits = self.jobs[job].bottleneck.map_or_else(Habits::default, Bottleneck::habits);
        self.train_as(job, span, state, units, Habits { straggler, ..habits });
    }

    /// As [`Day::train`], with explicit habits.
    pub fn train_as(&mut self, job: usize, span: Span, state: FinalState, units: &[usize], habits: Habits) {
        let draw = self.draw.of(1_000 + job as u64).of(self.jobs[job].attempts.len() as u64);
        let before: Vec<&Training> = self.jobs[job].attempts.iter().filter_map(Attempt::training).collect();
        let plan = Plan { ranks: units.len() as u32, span, habits, before: &before };
        let work = Activity::Training(Training::new(draw, plan));
        self.hold(job, span, state, units, work);
    }

    /// Use of a unit in order of time, without gaps, while its node was registered.
    pub fn pieces(&self, unit: usize) -> impl Iterator<Item = Piece> {
        let there = self.fleet.nodes[self.fleet.units[unit].node].registered;
        let mut free_from_ms = there.from_ms;
        let mut spans = Vec::new();
        for held in &self.held[unit] {
            spans.extend(self.free(unit, Span { from_ms: free_from_ms, to_ms: held.span.from_ms }));
            spans.push(Piece {
                span: held.span,
                class: Class::Unknown,
                doing: Doing::Nothing,
                by: Some(held.by),
            });
            free_from_ms = held.span.to_ms;
        }
        spans.extend(self.free(unit, Span { from_ms: free_from_ms, to_ms: there.to_ms }));
        spans.into_iter().flat_map(|piece| match piece.by {
            None => Box::new(std::iter::once(piece)) as Box<dyn Iterator<Item = Piece>>,
            Some(by) => Box::new(self.of_attempt(by)),
        })
    }

    /// Use of the unit of one rank of an attempt.
    fn of_attempt(&self, by: By) -> impl Iterator<Item = Piece> {
        let attempt = &self.jobs[by.job].attempts[by.attempt];
        let is_cut_short = attempt.state != FinalState::Completed;
        let (training, phases) = match &attempt.work {
            Activity::Training(training) => {
                (Some(training.pieces(attempt.span, by.rank, is_cut_short)), None)
            }
            Activity::Phases(phases) => (None, Some(phases_of(attempt.span, phases))),
        };
        let pieces = training.into_iter().flatten().chain(phases.into_iter().flatten());
        pieces.map(move |(span, class, doing)| Piece { span, class, doing, by: Some(by) })
    }

    /// Free time of a unit, split by incident.
    fn free(&self, unit: usize, span: Span) -> Vec<Piece> {
        let of_unit: Vec<(Span, Class)> =
            self.conditions.iter().filter_map(|c| Some((c.span, self.is_of(c.what, unit)?))).collect();
        let mut cuts: Vec<i64> = of_unit.iter().flat_map(|(span, _)| [span.from_ms, span.to_ms]).collect();
        cuts.retain(|at_ms| span.from_ms < *at_ms && *at_ms < span.to_ms);
        cuts.extend([span.from_ms, span.to_ms]);
        cuts.sort_unstable();
        cuts.dedup();
        let piece = |pair: &[i64]| {
            let span = Span { from_ms: pair[0], to_ms: pair[1] };
            let class = of_unit.iter().filter(|(when, _)| when.contains(pair[0])).map(|(_, class)| *class);
            // A fault of the device outranks a running kernel, and that outranks waiting jobs.
            let class = class
                .min_by_key(|class| if *class == Class::UnallocatedBusy { Class::NoDemand } else { *class });
            let class = class.unwrap_or(Class::NoDemand);
            let doing = if class == Class::UnallocatedBusy { Doing::Busy } else { Doing::Nothing };
            Piece { span, class, doing, by: None }
        };
        cuts.windows(2).map(piece).collect()
    }

    /// The class that an incident gives to a free unit.
    fn is_of(&self, what: Incident, unit: usize) -> Option<Class> {
        let unit = &self.fleet.units[unit];
        let is_gpu = |node, gpu| unit.node == node && unit.gpu == gpu;
        match what {
            Incident::Down(node) if unit.node == node => Some(Class::Unhealthy),
            Incident::Lost(node, gpu) if is_gpu(node, gpu) => Some(Class::Unhealthy),
            Incident::Drained(node) if unit.node == node => Some(Class::Drained),
            Incident::Stranger(node, gpu) if is_gpu(node, gpu) => Some(Class::UnallocatedBusy),
            Incident::Waits(pool, class) if self.fleet.nodes[unit.node].pool == pool => Some(class),
            _ => None,
        }
    }

    /// Periods in which the node was registered but unobserved.
    pub fn unseen(&self, node: usize) -> impl Iterator<Item = Span> {
        let is_silent = move |condition: &&Condition| condition.what == Incident::Silent(node);
        self.conditions.iter().filter(is_silent).map(|condition| condition.span)
    }
}

impl Attempt {
    pub fn training(&self) -> Option<&Training> {
        match &self.work {
            Activity::Training(training) => Some(training),
            Activity::Phases(_) => None,
        }
    }
}

fn phases_of(span: Span, phases: &[(i64, Doing)]) -> impl Iterator<Item = (Span, Class, Doing)> {
    let mut from_ms = span.from_ms;
    phases.iter().map(move |(to_ms, doing)| {
        let span = Span { from_ms, to_ms: *to_ms };
        from_ms = *to_ms;
        let class = match doing {
            Doing::Nothing => Class::EmptyHeld,
            Doing::Busy => Class::Active,
            _ => Class::IdleHeld,
        };
        (span, class, *doing)
    })
}
