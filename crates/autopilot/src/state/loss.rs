//! The cost of interrupting a job (4.1):
//! L = g · (min(time since checkpoint, time run) + restart + requeue).
//! A job that saves a checkpoint when it gets notice loses less:
//! L = g · (checkpoint + restart + requeue).

use super::Job;

/// What interrupting a job costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption {
    /// GPU time lost without notice, GPUs × milliseconds.
    pub abrupt_gpu_ms: i64,
    /// GPU time lost with notice; `None`: it takes none, or nobody knows how long its checkpoint
    /// takes.
    pub noticed_gpu_ms: Option<i64>,
}

impl Interruption {
    /// The lesser, and whether it takes notice.
    pub fn least(&self) -> (i64, bool) {
        match self.noticed_gpu_ms {
            Some(noticed) if noticed < self.abrupt_gpu_ms => (noticed, true),
            _ => (self.abrupt_gpu_ms, false),
        }
    }
}

/// Loss of interrupting `job` at `now_us` while it holds `gpus`. A job that does not run loses
/// nothing but its restart.
pub fn interruption(job: &Job, gpus: u32, now_us: i64, usual_restart_s: i64) -> Interruption {
    let gpus = i64::from(gpus);
    let again_ms =
        job.checkpoint.restart_ms.unwrap_or(usual_restart_s * 1000) + job.checkpoint.requeue_ms.unwrap_or(0);
    let run_us = job.running_since_us().map_or(0, |since| (now_us - since).max(0));
    // A checkpoint of an earlier attempt is what this one began from: no more than its own time is
    // lost.
    let since_us = job.checkpoint.last_us.map_or(run_us, |last| (now_us - last).max(0)).min(run_us);
    let noticed = job.checkpoint.save_ms.filter(|_| job.checkpoint.on_notice);
    Interruption {
        abrupt_gpu_ms: gpus * (since_us / 1000 + again_ms),
        noticed_gpu_ms: noticed.map(|save_ms| gpus * (save_ms + again_ms)),
    }
}
