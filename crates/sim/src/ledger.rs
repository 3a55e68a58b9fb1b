//! Where GPU time went, exactly: each GPU is in one class at each moment, and classes are integers
//! of GPU-µs.

/// What a GPU was doing, as the cluster sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Class {
    /// Its node is broken.
    Down,
    /// Held by a job.
    Allocated,
    /// Free for jobs, on a node of its own pool.
    Idle,
    /// Free for jobs, on a node that is on loan.
    IdleLent,
    /// On a node that takes no new jobs.
    Drained,
    /// On its way from one owner to the other: given over, or loading a model.
    Transit,
    /// Answering requests of its service.
    Serving,
    /// Ready to serve, not needed at the moment.
    Headroom,
}

impl Class {
    pub const ALL: [Self; 8] = [
        Self::Down,
        Self::Allocated,
        Self::Idle,
        Self::IdleLent,
        Self::Drained,
        Self::Transit,
        Self::Serving,
        Self::Headroom,
    ];
}

/// GPU-µs by class, and what jobs made of those allocated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    classes_gpu_us: [i128; 8],
    /// Progress that is safe: checkpointed, or of a job that ended.
    pub kept_gpu_us: i128,
    /// Progress that was thrown away because the scheduler, an action or a preemption stopped the
    /// job.
    pub lost_preempted_gpu_us: i128,
    /// Progress that was thrown away because a node failed.
    pub lost_failed_gpu_us: i128,
    /// Starting, restarting, writing checkpoints, being killed.
    pub overhead_gpu_us: i128,
    /// Demand of services that no GPU answered.
    pub unmet_gpu_us: i128,
    /// Time during which a service had unmet demand, summed over services, µs.
    pub unmet_us: i64,
}

impl Ledger {
    /// GPU-µs of a class.
    pub fn gpu_us(&self, class: Class) -> i128 {
        self.classes_gpu_us[class as usize]
    }

    /// GPU-µs of all classes: what the cluster was paid for.
    pub fn paid_gpu_us(&self) -> i128 {
        self.classes_gpu_us.iter().sum()
    }

    /// Adds `span_us` with `gpus` GPUs in each class.
    pub(crate) fn advance(&mut self, gpus: &[i64; 8], span_us: i64) {
        for (sum, gpus) in self.classes_gpu_us.iter_mut().zip(gpus) {
            *sum += i128::from(*gpus) * i128::from(span_us);
        }
    }

    /// What jobs made of the GPU time they held, as far as it is settled.
    pub fn settled_gpu_us(&self) -> i128 {
        self.kept_gpu_us + self.lost_preempted_gpu_us + self.lost_failed_gpu_us + self.overhead_gpu_us
    }
}
