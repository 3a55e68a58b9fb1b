//! A job: its state, and how much of the GPU time it held became progress.

use crate::{JobSpec, PPM, nodes::Held};

/// Life cycle of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Not submitted yet.
    Future,
    /// Waiting for GPUs.
    Queued,
    /// Holding GPUs.
    Running,
    /// Finished.
    Done,
}

/// What happens to a job once its notice is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It returns to the queue.
    Requeue,
    /// It continues with these GPUs.
    Keep(Held),
}

/// State of one job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its description.
    pub spec: JobSpec,
    /// Its state.
    pub state: JobState,
    /// GPUs it holds now.
    pub held: Held,
    /// When it last entered the queue.
    pub queued_us: i64,
    /// Time in the queue over all finished waits.
    pub waited_us: i64,
    /// First start; `None` if it never started.
    pub first_start_us: Option<i64>,
    /// When its current or last attempt started.
    pub started_us: i64,
    /// End; `None` until it is finished.
    pub end_us: Option<i64>,
    /// Starts so far.
    pub attempts: u32,
    /// Number of preemptions.
    pub preempted: u32,
    /// Saved progress in ppm·µs: 1 µs with the GPUs it asked for is 1,000,000.
    pub(crate) done: i128,
    pub(crate) segment: Segment,
    pub(crate) closing: Option<Closing>,
    /// Number of releases; a scheduled stop with an older number is stale.
    pub(crate) epoch: u32,
    /// Number of scheduled ends; all but the newest are stale.
    pub(crate) end_version: u32,
}

/// A period in which a job had the same GPUs and speed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Segment {
    /// When it began to hold the GPUs.
    pub(crate) held_us: i64,
    /// When it began to make progress.
    pub(crate) from_us: i64,
    pub(crate) gpus: u32,
    pub(crate) rate_ppm: u32,
    /// Position in the cycle of progress and checkpoint at `from_us`.
    pub(crate) phase_us: i64,
    /// Progress before `from_us` that no checkpoint has saved, ppm·µs and GPU-µs.
    pub(crate) risk: i128,
    pub(crate) risk_gpu_us: i128,
}

/// What a segment yielded up to some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SegmentAccount {
    /// Newly saved, ppm·µs and GPU-µs.
    pub(crate) safe: i128,
    pub(crate) safe_gpu_us: i128,
    /// Not saved yet, ppm·µs and GPU-µs.
    pub(crate) risk: i128,
    pub(crate) risk_gpu_us: i128,
    /// Held without progress, GPU-µs.
    pub(crate) overhead_gpu_us: i128,
    /// Position in the cycle.
    pub(crate) phase_us: i64,
}

impl Job {
    pub(crate) fn new(spec: JobSpec) -> Self {
        Self {
            spec,
            state: JobState::Future,
            held: Vec::new(),
            queued_us: 0,
            waited_us: 0,
            first_start_us: None,
            started_us: 0,
            end_us: None,
            attempts: 0,
            preempted: 0,
            done: 0,
            segment: Segment::default(),
            closing: None,
            epoch: 0,
            end_version: 0,
        }
    }

    /// GPUs it holds.
    pub fn gpus(&self) -> u32 {
        self.segment.gpus
    }

    /// Total work, ppm·µs.
    pub(crate) fn work(&self) -> i128 {
        i128::from(self.spec.work_us) * i128::from(PPM)
    }

    /// At position `phase_us` of the cycle: progress time, checkpoints written, and progress since
    /// the last checkpoint.
    fn cycle(&self, phase_us: i64) -> (i64, i64, i64) {
        let Some(c) = self.spec.checkpoint else { return (phase_us, 0, phase_us) };
        let (cycles, within) = (phase_us / (c.every_us + c.cost_us), phase_us % (c.every_us + c.cost_us));
        let since = within.min(c.every_us);
        (cycles * c.every_us + since, cycles, since)
    }

    /// Yield of the segment up to `now_us`, whose last `idle_us` made no progress.
    pub(crate) fn account(&self, now_us: i64, idle_us: i64) -> SegmentAccount {
        let s = &self.segment;
        let (gpus, rate) = (i128::from(s.gpus), i128::from(s.rate_ppm));
        let ran_us = (now_us - idle_us - s.from_us).max(0);
        let phase_us = s.phase_us + ran_us;
        let (progress_end, cycles, since) = self.cycle(phase_us);
        let progress = progress_end - self.cycle(s.phase_us).0;
        let (safe_us, risk_us) = if cycles > 0 { (progress - since, since) } else { (0, progress) };
        // A checkpoint in this segment also saves the progress before it.
        let (saved, saved_gpu_us, risk, risk_gpu_us) =
            if cycles > 0 { (s.risk, s.risk_gpu_us, 0, 0) } else { (0, 0, s.risk, s.risk_gpu_us) };
        let held_us = now_us - s.held_us;
        SegmentAccount {
            safe: i128::from(safe_us) * rate + saved,
            safe_gpu_us: i128::from(safe_us) * gpus + saved_gpu_us,
            risk: i128::from(risk_us) * rate + risk,
            risk_gpu_us: i128::from(risk_us) * gpus + risk_gpu_us,
            overhead_gpu_us: i128::from(held_us - progress) * gpus,
            phase_us: if cycles > 0 { self.within(phase_us) } else { phase_us },
        }
    }

    fn within(&self, phase_us: i64) -> i64 {
        self.spec.checkpoint.map_or(phase_us, |c| phase_us % (c.every_us + c.cost_us))
    }

    /// When the job will finish if nothing changes.
    pub(crate) fn end_of_segment_us(&self) -> i64 {
        let s = &self.segment;
        let left = self.work() - self.done - s.risk;
        let rate = i128::from(s.rate_ppm.max(1));
        let progress_us = ((left + rate - 1) / rate).max(0) as i64;
        let Some(c) = self.spec.checkpoint else { return s.from_us + progress_us };
        // Progress already made in the current cycle. A checkpoint due at the very end is not
        // written.
        let into = s.phase_us.min(c.every_us);
        let rest_of_pause = s.phase_us - into;
        let pauses = if progress_us == 0 { 0 } else { (into + progress_us - 1) / c.every_us };
        s.from_us + progress_us + (pauses * c.cost_us - rest_of_pause).max(0)
    }

    /// When the last save of this segment began. `None`: it has completed none.
    pub(crate) fn last_save_us(&self, now_us: i64) -> Option<i64> {
        let checkpoint = self.spec.checkpoint?;
        let cycle_us = checkpoint.every_us + checkpoint.cost_us;
        let phase_us = self.segment.phase_us + (now_us - self.segment.from_us).max(0);
        (phase_us >= cycle_us).then(|| now_us - phase_us % cycle_us - checkpoint.cost_us)
    }

    /// GPU-µs lost if the job is stopped now without notice.
    pub fn at_risk_gpu_us(&self, now_us: i64) -> i128 {
        if self.state == JobState::Running { self.account(now_us, 0).risk_gpu_us } else { 0 }
    }

    /// Work done up to `now_us`, saved or not, ppm·µs.
    pub(crate) fn progress(&self, now_us: i64) -> i128 {
        match self.state {
            JobState::Done => self.work(),
            JobState::Running => {
                let a = self.account(now_us, 0);
                (self.done + a.safe + a.risk).min(self.work())
            }
            _ => self.done,
        }
    }
}
