//! Cost of interrupting a job (docs/control.md, 4.1).
//!
//! Without notice: L = g · (min(time since checkpoint, run time) + restart + requeue). With a
//! checkpoint on notice: L = g · (save + restart + requeue), if saving is known to fit the notice.

use tidegate_units::{Micros, Millis};

use super::Job;
use crate::policy::PreemptRules;

/// Cost of an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption {
    /// GPU time lost without notice, GPUs × ms.
    pub abrupt_gpu_ms: i64,
    /// GPU time lost with notice, GPUs × ms. `None`: the job takes none, or its checkpoint is not
    /// known to be written in time.
    pub noticed_gpu_ms: Option<i64>,
}

impl Interruption {
    /// Loss to expect of a planned interruption, which gives notice to every job that takes it,
    /// GPUs × ms. What a checkpoint would save counts only where it is known to be in time.
    pub fn planned_gpu_ms(&self) -> i64 {
        self.noticed_gpu_ms.unwrap_or(self.abrupt_gpu_ms)
    }
}

/// Loss of interrupting `job` at `now_us` while it holds `gpus`. A job that does not run loses only
/// its restart. `rules` give the length of a notice, and stand in for an unknown restart time.
pub fn interruption(job: &Job, gpus: u32, now_us: i64, rules: &PreemptRules) -> Interruption {
    let gpus = i64::from(gpus);
    let again_ms = job.checkpoint.restart_ms.unwrap_or(Millis::from_secs(rules.restart_s).0)
        + job.checkpoint.requeue_ms.unwrap_or(0);
    let run_us = job.running_since_us().map_or(0, |since| (now_us - since).max(0));
    // An earlier attempt's checkpoint is where this attempt began, so at most its own run is lost.
    let since_us = job.checkpoint.last_us.map_or(run_us, |last| (now_us - last).max(0)).min(run_us);
    let in_time = |save_ms: &i64| job.checkpoint.on_notice && *save_ms <= Millis::from_secs(rules.notice_s).0;
    Interruption {
        abrupt_gpu_ms: gpus * (Micros(since_us).floor_millis().0 + again_ms),
        noticed_gpu_ms: job.checkpoint.save_ms.filter(in_time).map(|save_ms| gpus * (save_ms + again_ms)),
    }
}
