//! Scenes of the day. Each produces classes beyond doubt; between scenes a pool is empty.
//!
//! A scene leaves no job behind and has at most one reason for which jobs wait.

mod burst;
mod shared;
mod train;

use tidegate_events::FinalState;

use super::day::{Activity, Condition, Day, Incident, Job};
use super::fleet::{BURST, Part, Span};
use tidegate_demo::draw::Draw;
use tidegate_demo::levels::Doing;

/// Longest scene, about, s.
const LONGEST_S: i64 = 6_000;
/// The scheduler's reasons of waits.
pub const RESOURCES: &str = "Resources";
pub const QUOTA: &str = "AssocGrpGRES";

pub const RESEARCH: &str = "research";
pub const PRODUCT: &str = "product";

/// A part of the day in one pool.
pub struct Scene<'a> {
    day: &'a mut Day,
    span: Span,
    pool: &'static str,
    /// The pool's nodes.
    nodes: Vec<usize>,
    draw: Draw,
}

type SceneFn = fn(&mut Scene<'_>);

/// Generates the day that follows from a seed.
///
/// All scenes occur, as often as fit into the day, in an order drawn from the seed.
pub fn generate(seed: u64, hours: u32, nodes: usize) -> Day {
    let mut day = Day::without_jobs(seed, hours, nodes);
    add_scenes(&mut day);
    day.sort_holds();
    day
}

fn add_scenes(day: &mut Day) {
    in_order(day, super::fleet::TRAIN, train::ALL);
    in_order(day, super::fleet::SHARED, shared::ALL);
    let (nodes, draw, span) = (day.fleet.of_pool(BURST), day.draw.of(3), day.span);
    burst::play(&mut Scene { day, span, pool: BURST, nodes, draw });
}

fn in_order(day: &mut Day, pool: &'static str, all: &[SceneFn]) {
    let length_s = day.span.length_ms() / 1_000;
    let rounds = (length_s + LONGEST_S * all.len() as i64 - 1) / (LONGEST_S * all.len() as i64);
    let count = rounds * all.len() as i64;
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..all.len()).collect();
        let draw = day.draw.of(2).of(pool.len() as u64).of(round.unsigned_abs());
        for last in (1..order.len()).rev() {
            order.swap(last, draw.of(last as u64).whole(0, last as i64) as usize);
        }
        for (place, which) in (0..).zip(order) {
            let at = |number: i64| day.span.from_ms + length_s * number / count * 1_000;
            let number = round * all.len() as i64 + place;
            let span = Span { from_ms: at(number), to_ms: at(number + 1) };
            let (nodes, draw) = (day.fleet.of_pool(pool), draw.of(1_000 + which as u64));
            all[which](&mut Scene { day, span, pool, nodes, draw });
        }
    }
}

impl Scene<'_> {
    /// The full second at a share of the scene.
    fn at(&self, share: f64) -> i64 {
        self.span.from_ms + (self.span.length_ms() as f64 * share / 1_000.0) as i64 * 1_000
    }

    fn span(&self, from: f64, to: f64) -> Span {
        Span { from_ms: self.at(from), to_ms: self.at(to) }
    }

    /// Units of these GPUs on a node of the pool.
    fn gpus(&self, node: usize, gpus: impl IntoIterator<Item = usize>) -> Vec<usize> {
        self.day.fleet.units_of(self.nodes[node], gpus)
    }

    fn condition(&mut self, span: Span, what: Incident) {
        self.day.conditions.push(Condition { span, what });
    }

    /// Submits a job that asks for these units.
    fn job(&mut self, team: &'static str, name: &'static str, units: &[usize], submit_ms: i64) -> usize {
        let parts = || units.iter().map(|unit| &self.day.fleet.units[*unit].part);
        let asked_milli = parts().any(|part| *part != Part::Half).then_some(units.len() as u64 * 1_000);
        let user = format!("{team}-{}", self.draw.of(self.day.jobs.len() as u64).whole(1, 4));
        self.day.submit(Job {
            id: String::new(),
            team,
            user,
            pool: self.pool,
            name,
            asked_milli,
            submit_ms,
            reason: None,
            bottleneck: None,
            growth: 0,
            attempts: Vec::new(),
        })
    }

    /// Training that starts at once and completes.
    fn training(&mut self, team: &'static str, units: &[usize], span: Span, straggler: Option<u32>) -> usize {
        let job = self.job(team, "pretrain", units, span.from_ms);
        self.day.train(job, span, FinalState::Completed, units, straggler);
        job
    }

    /// Training that waits from `submit_ms` until the start of `span`.
    fn waiting(
        &mut self,
        team: &'static str,
        reason: &'static str,
        units: &[usize],
        submit_ms: i64,
        span: Span,
    ) {
        let job = self.job(team, "pretrain", units, submit_ms);
        self.day.jobs[job].reason = Some(reason);
        self.day.train(job, span, FinalState::Completed, units, None);
    }

    /// Training that fails at `failed` and continues elsewhere at once.
    fn failing(&mut self, units: [&[usize]; 2], shares: [f64; 3], state: FinalState) {
        let [first, second] = units;
        let [from, failed, to] = shares;
        let job = self.job(RESEARCH, "pretrain", first, self.at(from));
        self.day.train(job, self.span(from, failed), state, first, None);
        self.day.train(job, self.span(failed, to), FinalState::Completed, second, None);
    }

    /// Inference: busy, with pauses.
    fn serving(&mut self, team: &'static str, units: &[usize], span: Span) {
        self.phases(team, "serve", units, span, [(120, 900, Doing::Busy), (30, 240, Doing::Idle)]);
    }

    /// A notebook: a mostly idle process.
    fn notebook(&mut self, units: &[usize], span: Span) {
        self.phases(PRODUCT, "notebook", units, span, [(600, 2_400, Doing::Idle), (20, 120, Doing::Busy)]);
    }

    /// Held, without any process.
    fn empty(&mut self, units: &[usize], span: Span) {
        self.phases(PRODUCT, "interactive", units, span, [(1_000, 1_000, Doing::Nothing); 2]);
    }

    /// Alternates between two activities, each for a random time in its range, s.
    fn phases(
        &mut self,
        team: &'static str,
        name: &'static str,
        units: &[usize],
        span: Span,
        turns: [(i64, i64, Doing); 2],
    ) {
        let job = self.job(team, name, units, span.from_ms);
        let draw = self.draw.of(2_000 + job as u64);
        let (mut at_ms, mut phases) = (span.from_ms, Vec::new());
        for (turn, (least_s, most_s, doing)) in (0..).zip(turns.into_iter().cycle()) {
            if at_ms >= span.to_ms {
                break;
            }
            at_ms = (at_ms + draw.of(turn).whole(least_s, most_s) * 1_000).min(span.to_ms);
            phases.push((at_ms, doing));
        }
        self.day.hold(job, span, FinalState::Completed, units, Activity::Phases(phases));
    }
}
