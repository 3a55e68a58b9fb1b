//! Steps of training jobs, as the client in each rank reports them: one line of JSON a step.

use crate::draw::Draw;
use crate::levels::{Doing, Levels, Load};

/// Parameters of the model of all jobs; a token takes six operations for each.
const PARAMETERS: u64 = 7_000_000_000;
const STEPS_PER_EPOCH: u64 = 400;
/// Dense BF16 peak of an H100, operations a ms.
const PEAK_PER_MS: f64 = 989e12 / 1e3;
/// Share of its tensor activity that a job turns into useful operations.
const USEFUL: f64 = 0.8;
/// From the start of an attempt to its first step, and to load a checkpoint, ms.
const STARTS_MS: i64 = 60_000;
const RESTORES_MS: i64 = 25_000;
const SAVES_MS: i64 = 12_000;

/// What a job keeps over its attempts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Number of the next step.
    next: u64,
    /// Steps before this one are in a checkpoint.
    saved: u64,
    attempts: u32,
}

/// One attempt that trains.
#[derive(Debug)]
pub(crate) struct Training {
    draw: Draw,
    ranks: usize,
    begins_ms: i64,
    next_ms: i64,
    pub progress: Progress,
    restored: Option<i64>,
    /// Duration of a step at full speed, ms.
    usual_ms: f64,
    /// Shares of a step: data, computing, communication.
    shares: [f64; 3],
    /// A checkpoint after so many steps; 0: never.
    saves_every: u64,
    tensor: f64,
}

/// A step that ended, for all ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub from_ms: i64,
    pub number: u64,
    duration_ms: f64,
    data_ms: f64,
    compute_ms: f64,
    communication_ms: f64,
    checkpoint_ms: f64,
    restore_ms: f64,
    tokens: u64,
}

/// How a rank differs from the others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Time of a step relative to that at full speed.
    pub all: f64,
    /// The rank that all others wait for.
    pub slow: Option<usize>,
}

impl Training {
    /// An attempt from `start_ms` on. `progress` is that of the attempt before.
    pub fn new(draw: Draw, load: &Load, ranks: usize, start_ms: i64, progress: Progress) -> Self {
        let is_restart = progress.attempts > 0;
        let next = if is_restart { progress.saved } else { progress.next };
        let data = if draw.of(5).is_ppm(120_000) { 0.25 } else { draw.of(1).between(0.02, 0.05) };
        let communication = draw.of(2).between(0.08, 0.16);
        let begins_ms = start_ms + STARTS_MS;
        Self {
            draw,
            ranks,
            begins_ms,
            next_ms: begins_ms,
            progress: Progress { next, attempts: progress.attempts + 1, ..progress },
            restored: is_restart.then_some(begins_ms),
            usual_ms: draw.of(3).between(16_000.0, 26_000.0),
            shares: [data, 0.96 - data - communication, communication],
            saves_every: draw.of(4).whole(20, 60).unsigned_abs(),
            tensor: load.full.tensor_active / 1e6,
        }
    }

    /// A short job on a part of a GPU.
    pub fn small(self) -> Self {
        Self { usual_ms: 9_000.0, ..self }
    }

    /// Goes on without reports up to a time: nobody watches yet.
    pub fn skip_to(&mut self, to_ms: i64) {
        let steps = ((to_ms - self.next_ms) as f64 / self.usual_ms).max(0.0) as u64;
        self.progress.next += steps;
        self.progress.saved = self.progress.next;
        self.next_ms += (steps as f64 * self.usual_ms) as i64;
        if steps > 0 {
            self.restored = None;
        }
    }

    /// Steps that end up to a time.
    pub fn until(&mut self, to_ms: i64, pace: Pace) -> Vec<Step> {
        let mut ended = Vec::new();
        while let Some(step) = self.step(pace).filter(|step| step.end_ms() <= to_ms) {
            self.next_ms = step.end_ms();
            if self.restored.take().is_none() {
                self.progress.next += 1;
            }
            if step.checkpoint_ms > 0.0 {
                self.progress.saved = self.progress.next;
            }
            ended.push(step);
        }
        ended
    }

    fn step(&self, pace: Pace) -> Option<Step> {
        let number = self.progress.next;
        if let Some(from_ms) = self.restored {
            // Named by the step that saved it.
            let number = number.saturating_sub(1);
            let restore_ms = RESTORES_MS as f64;
            return Some(Step { from_ms, number, duration_ms: restore_ms, restore_ms, ..Step::nothing() });
        }
        let draw = self.draw.of(1_000 + number).of(self.next_ms.unsigned_abs());
        let length_ms = self.usual_ms * draw.of(1).between(0.985, 1.015);
        let [data, compute, communication] = self.shares;
        let saves = self.saves_every > 0 && (number + 1).is_multiple_of(self.saves_every);
        let checkpoint_ms = if saves { SAVES_MS as f64 } else { 0.0 };
        let (data_ms, compute_ms) = (length_ms * data, length_ms * compute * pace.all);
        let communication_ms = length_ms * communication * draw.of(2).between(0.9, 1.1);
        let other_ms = length_ms * 0.03;
        let operations = length_ms * compute * PEAK_PER_MS * self.tensor * USEFUL;
        Some(Step {
            from_ms: self.next_ms,
            number,
            duration_ms: data_ms + compute_ms + communication_ms + other_ms + checkpoint_ms,
            data_ms,
            compute_ms,
            communication_ms,
            checkpoint_ms,
            restore_ms: 0.0,
            tokens: (operations / (6 * PARAMETERS) as f64) as u64 / 256 * 256,
        })
    }

    /// The line of a rank; `gpu`: the UUID of its device.
    pub fn line(&self, job: u64, step: &Step, rank: usize, pace: Pace, gpu: &str) -> String {
        // Ranks at full speed wait in the collective for the slow one.
        let waits_ms = match pace.slow {
            Some(slow) if slow == rank => 0.0,
            Some(_) => step.compute_ms * (1.0 - 1.0 / pace.all),
            None => {
                let draw = self.draw.of(7).of(step.number).of(rank as u64);
                step.compute_ms * draw.between(0.0, 0.015)
            }
        };
        let (ranks, epoch) = (self.ranks, step.number / STEPS_PER_EPOCH);
        let start_ms = step.from_ms;
        if step.restore_ms > 0.0 {
            return format!(
                r#"{{"job":{job},"rank":{rank},"world_size":{ranks},"step":{},"start_ms":{start_ms},"duration_ms":{},"restore_ms":{},"gpu":"{gpu}"}}"#,
                step.number, step.duration_ms, step.restore_ms
            );
        }
        format!(
            r#"{{"job":{job},"rank":{rank},"world_size":{ranks},"step":{},"start_ms":{start_ms},"duration_ms":{:.3},"compute_ms":{:.3},"communication_ms":{:.3},"data_wait_ms":{:.3},"checkpoint_ms":{:.3},"tokens":{},"model_flops":{},"flops_convention":"6n","precision":"bf16","epoch":{epoch},"gpu":"{gpu}"}}"#,
            step.number,
            step.duration_ms,
            step.compute_ms - waits_ms,
            step.communication_ms + waits_ms,
            step.data_ms,
            step.checkpoint_ms,
            step.tokens,
            step.tokens * 6 * PARAMETERS,
        )
    }

    /// Levels of a rank's GPU, averaged over its steps.
    pub fn levels(&self, load: &Load, at_ms: i64) -> Levels {
        let mut levels = Levels::default();
        if at_ms < self.begins_ms {
            return load.levels(Doing::Load);
        }
        let [data, compute, communication] = self.shares;
        for (doing, share) in [
            (Doing::WaitForData, data),
            (Doing::Compute, compute),
            (Doing::Communicate, communication),
            (Doing::Idle, 0.04),
        ] {
            levels.add(load.levels(doing), share);
        }
        levels
    }
}

impl Step {
    fn nothing() -> Self {
        Self {
            from_ms: 0,
            number: 0,
            duration_ms: 0.0,
            data_ms: 0.0,
            compute_ms: 0.0,
            communication_ms: 0.0,
            checkpoint_ms: 0.0,
            restore_ms: 0.0,
            tokens: 0,
        }
    }

    pub fn end_ms(&self) -> i64 {
        self.from_ms + self.duration_ms as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_goes_on_from_the_checkpoint_and_a_slow_rank_holds_up_the_others() {
        let load = Load::new(Draw::new(1));
        let pace = Pace { all: 1.0, slow: None };
        let at = |minute: i64| 1_767_225_600_000 + minute * 60_000;
        let mut first = Training::new(Draw::new(2), &load, 4, at(0), Progress::default());
        let steps = first.until(at(60), pace);
        assert!(steps.windows(2).all(|two| two[0].end_ms() == two[1].from_ms), "no gaps");
        let saved = first.progress.saved;
        assert!(saved > 0 && saved < first.progress.next);
        let mut second = Training::new(Draw::new(2), &load, 4, at(62), first.progress);
        let again = second.until(at(67), Pace { all: 1.2, slow: Some(3) });
        assert_eq!((again[0].restore_ms > 0.0, again[1].number), (true, saved));
        let part = |rank| {
            let line = second.line(1, &again[1], rank, Pace { all: 1.2, slow: Some(3) }, "GPU-1");
            let report = tidegate_collect::receiver::read_step(&line, "n").expect("it is accepted");
            report.compute_us.zip(report.communication_us).expect("both are told")
        };
        assert!(part(3).0 > part(0).0 && part(3).1 < part(0).1);
        assert_eq!(part(0).0 + part(0).1, part(3).0 + part(3).1, "all take the same time");
    }
}
