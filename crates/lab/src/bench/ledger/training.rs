//! Training attempts: start-up, composition of steps, and steps repeated after a failure.

use super::class::Class;
use super::fleet::Span;
use tidegate_demo::draw::Draw;
use tidegate_demo::levels::Doing;

/// Parameters of the model; operations per token are six times as many.
const PARAMETERS: u64 = 7_000_000_000;
/// Of the training data.
pub const STEPS_PER_EPOCH: u64 = 60;
/// FLOP/s of a computing rank: 0.08 of an H100's dense BF16 peak, less than tensor activity allows.
const FLOPS_PER_MS: f64 = 0.08 * 989e12 / 1e3;
/// Compute time of the others relative to the straggler.
const SLACK: f64 = 0.15;

/// One training attempt: what all ranks share.
#[derive(Debug)]
pub struct Training {
    draw: Draw,
    /// Whether it follows another attempt.
    is_restart: bool,
    pub ranks: u32,
    pub habits: Habits,
    pub restore: Option<Restore>,
    pub steps: Vec<Step>,
    /// Steps below this number were done before, and are repeated.
    redone_below: u64,
}

/// Peculiarities of the steps of a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Habits {
    /// The straggling rank.
    pub straggler: Option<u32>,
    /// Wait as a share of the slowest rank's compute time [default: a seventh].
    pub slack: Option<f64>,
    /// Shares of data wait and communication of a step; such a job saves no checkpoints.
    pub shares: Option<(f64, f64)>,
    /// Slowdown of all parts from a time on.
    pub slower: Option<(i64, f64)>,
    /// Factor of overreported operations; 0 is none.
    pub boast: u64,
}

/// A restored checkpoint as reported: named by the step that saved it.
#[derive(Debug, Clone, Copy)]
pub struct Restore {
    pub from_ms: i64,
    pub duration_ms: i64,
    pub step: u64,
}

/// A step of sequential parts. Compute and communication are those of the slowest rank.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub from_ms: i64,
    pub number: u64,
    data_ms: i64,
    compute_ms: i64,
    /// Optimizer and Python; not reported.
    other_ms: i64,
    communication_ms: i64,
    checkpoint_ms: i64,
}

/// Duration of the reported parts of a step for one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    pub data_ms: i64,
    pub compute_ms: i64,
    pub communication_ms: i64,
    pub checkpoint_ms: i64,
}

impl Step {
    pub fn duration_ms(&self) -> i64 {
        self.data_ms + self.compute_ms + self.other_ms + self.communication_ms + self.checkpoint_ms
    }

    pub fn end_ms(&self) -> i64 {
        self.from_ms + self.duration_ms()
    }
}

/// Parameters of an attempt.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    pub ranks: u32,
    pub span: Span,
    pub habits: Habits,
    /// Earlier attempts.
    pub before: &'a [&'a Training],
}

impl Training {
    pub fn new(draw: Draw, plan: Plan<'_>) -> Self {
        let length_ms = plan.span.length_ms();
        let begins_ms = plan.span.from_ms + (draw.of(1).whole(20_000, 150_000)).min(length_ms / 10);
        let last = plan.before.last();
        let reached = plan.before.iter().filter_map(|t| t.steps.last().map(|step| step.number + 1)).max();
        let saved =
            plan.before.iter().flat_map(|t| &t.steps).filter(|s| s.checkpoint_ms > 0).map(|s| s.number).max();
        let restore = saved.filter(|_| last.is_some()).map(|step| Restore {
            from_ms: begins_ms,
            duration_ms: draw.of(2).whole(15_000, 60_000).min(length_ms / 15),
            step,
        });
        let mut training = Self {
            // The same job has the same step length.
            draw: last.map_or(draw, |last| last.draw),
            is_restart: last.is_some(),
            ranks: plan.ranks,
            habits: plan.habits,
            restore,
            steps: Vec::new(),
            redone_below: reached.unwrap_or(0),
        };
        let first = restore.map_or(0, |restore| restore.step + 1);
        let steps_ms = begins_ms + restore.map_or(0, |restore| restore.duration_ms);
        training.walk(first, steps_ms, plan.span.to_ms);
        training
    }

    fn walk(&mut self, mut number: u64, mut at_ms: i64, until_ms: i64) {
        let usual_ms = self.draw.of(3).between(3_000.0, 8_000.0);
        let communication = self.draw.of(4).between(0.06, 0.22);
        let every = self.draw.of(5).whole(40, 90).unsigned_abs();
        let Habits { shares, slower, .. } = self.habits;
        let first_usual_ms = usual_ms;
        loop {
            let usual_ms =
                first_usual_ms * slower.filter(|(from_ms, _)| at_ms >= *from_ms).map_or(1.0, |(_, by)| by);
            let draw = self.draw.of(1_000 + number);
            let data = draw.of(1).between(0.005, 0.03) * if draw.of(2).is_ppm(30_000) { 20.0 } else { 1.0 };
            let (data, communication) = shares.unwrap_or((data, communication));
            let saves = shares.is_none() && number % every == every - 1;
            let step = Step {
                from_ms: at_ms,
                number,
                data_ms: (usual_ms * data) as i64,
                compute_ms: (usual_ms * draw.of(3).between(0.66, 0.72)) as i64,
                other_ms: draw.of(4).whole(15, 60),
                communication_ms: (usual_ms * communication * draw.of(5).between(0.8, 1.2)) as i64,
                checkpoint_ms: if saves { draw.of(6).whole(6_000, 18_000) } else { 0 },
            };
            if step.end_ms() > until_ms {
                return;
            }
            (number, at_ms) = (number + 1, step.end_ms());
            self.steps.push(step);
        }
    }

    /// Start of the first report, if any.
    fn first_ms(&self) -> Option<i64> {
        self.restore.map(|restore| restore.from_ms).or_else(|| self.steps.first().map(|step| step.from_ms))
    }

    /// Parts of a step for a rank; faster ranks wait for the slowest in the collective.
    pub fn parts(&self, step: &Step, rank: u32) -> Parts {
        let slack = match self.habits.straggler {
            Some(straggler) if straggler == rank => 0.0,
            Some(_) => self.habits.slack.unwrap_or(SLACK),
            None => self.draw.of(1_000 + step.number).of(10 + u64::from(rank)).between(0.0, 0.02),
        };
        let slack_ms = (step.compute_ms as f64 * slack) as i64;
        Parts {
            data_ms: step.data_ms,
            compute_ms: step.compute_ms - slack_ms,
            communication_ms: step.communication_ms + slack_ms,
            checkpoint_ms: step.checkpoint_ms,
        }
    }

    /// Tokens and operations of a rank per step.
    pub fn tokens(&self) -> (u64, u64) {
        let usual_ms = self.draw.of(3).between(3_000.0, 8_000.0) * 0.69;
        let tokens = (usual_ms * FLOPS_PER_MS / (6 * PARAMETERS) as f64) as u64 / 1_024 * 1_024;
        (tokens, tokens * 6 * PARAMETERS * self.habits.boast.max(1))
    }

    /// Activities of a rank from start to end of the attempt, without gaps.
    pub fn pieces(
        &self,
        span: Span,
        rank: u32,
        is_cut_short: bool,
    ) -> impl Iterator<Item = (Span, Class, Doing)> {
        let first_ms = self.first_ms().unwrap_or(span.to_ms);
        let before = if self.is_restart { Class::Recovery } else { Class::Startup };
        let loading = self.restore.map(|r| (r.from_ms, r.duration_ms, Class::Restore, Doing::Load));
        let last_ms = self.steps.last().map(Step::end_ms);
        let last_ms = last_ms.or(self.restore.map(|r| r.from_ms + r.duration_ms)).unwrap_or(span.to_ms);
        // A step cut short by a failure is not reported. After the last step the process exits.
        let (after, doing) =
            if is_cut_short { (Class::Active, Doing::Compute) } else { (Class::IdleHeld, Doing::Idle) };
        let head = [Some((span.from_ms, first_ms - span.from_ms, before, Doing::Load)), loading]
            .into_iter()
            .flatten();
        let steps = self.steps.iter().flat_map(move |step| self.of_step(step, rank));
        head.chain(steps)
            .chain([(last_ms, span.to_ms - last_ms, after, doing)])
            .filter(|(_, length_ms, _, _)| *length_ms > 0)
            .map(|(from_ms, length_ms, class, doing)| {
                (Span { from_ms, to_ms: from_ms + length_ms }, class, doing)
            })
    }

    fn of_step(&self, step: &Step, rank: u32) -> impl Iterator<Item = (i64, i64, Class, Doing)> + use<> {
        let parts = self.parts(step, rank);
        let in_order = [
            (parts.data_ms, Class::DataStall, Doing::WaitForData),
            (parts.compute_ms, Class::Productive, Doing::Compute),
            (step.other_ms, Class::Productive, Doing::Idle),
            (parts.communication_ms, Class::CommunicationStall, Doing::Communicate),
            (parts.checkpoint_ms, Class::Checkpoint, Doing::Save),
        ];
        let is_redone = step.number < self.redone_below;
        let mut at_ms = step.from_ms;
        in_order.into_iter().map(move |(length_ms, class, doing)| {
            let from_ms = at_ms;
            at_ms += length_ms;
            (from_ms, length_ms, if is_redone { Class::Redone } else { class }, doing)
        })
    }
}
