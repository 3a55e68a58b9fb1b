//! Cost of interrupting a job (docs/control.md, 4.1).
//!
//! Without notice: L = g · (min(time since checkpoint, run time) + restart + requeue). With a
//! checkpoint on notice: L = g · (save + restart + requeue).

use tidegate_units::{Micros, Millis};

use super::Job;

/// Cost of an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption {
    /// GPU time lost without notice, GPUs × ms.
    pub abrupt_gpu_ms: i64,
    /// GPU time lost with notice. `None`: the job takes none, or its checkpoint time is unknown.
    pub noticed_gpu_ms: Option<i64>,
}

impl Interruption {
    /// The smaller loss, and whether it requires notice.
    pub fn least(&self) -> (i64, bool) {
        match self.noticed_gpu_ms {
            Some(noticed) if noticed < self.abrupt_gpu_ms => (noticed, true),
            _ => (self.abrupt_gpu_ms, false),
        }
    }
}

/// Loss of interrupting `job` at `now_us` while it holds `gpus`. A job that does not run loses only
/// its restart. `usual_restart_s` stands in for an unknown restart time.
pub fn interruption(job: &Job, gpus: u32, now_us: i64, usual_restart_s: i64) -> Interruption {
    let gpus = i64::from(gpus);
    let again_ms = job.checkpoint.restart_ms.unwrap_or(Millis::from_secs(usual_restart_s).0)
        + job.checkpoint.requeue_ms.unwrap_or(0);
    let run_us = job.running_since_us().map_or(0, |since| (now_us - since).max(0));
    // An earlier attempt's checkpoint is where this attempt began, so at most its own run is lost.
    let since_us = job.checkpoint.last_us.map_or(run_us, |last| (now_us - last).max(0)).min(run_us);
    let noticed = job.checkpoint.save_ms.filter(|_| job.checkpoint.on_notice);
    Interruption {
        abrupt_gpu_ms: gpus * (Micros(since_us).floor_millis().0 + again_ms),
        noticed_gpu_ms: noticed.map(|save_ms| gpus * (save_ms + again_ms)),
    }
}
