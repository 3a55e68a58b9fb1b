//! Exact accounting of GPU time: each GPU is in one class at each moment, counted in whole GPU-µs.

/// State of a GPU, as the cluster sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Class {
    /// Its node is down.
    Down,
    /// Held by a job.
    Allocated,
    /// Free for jobs, on a node at home.
    Idle,
    /// Free for jobs, on a lent node.
    IdleLent,
    /// Free, on a drained node.
    Drained,
    /// In transit between owners: being called back or handed over, or loading a model.
    Transit,
    /// Serving the demand of its service.
    Serving,
    /// Ready to serve, not needed now.
    Headroom,
}

impl Class {
    /// All classes, in order.
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

/// GPU-µs by class, and what jobs made of the allocated part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    classes_gpu_us: [i128; 8],
    /// Saved progress: checkpointed, or of a finished job.
    pub kept_gpu_us: i128,
    /// Progress lost because the scheduler or an action stopped the job.
    pub lost_preempted_gpu_us: i128,
    /// Progress lost because a node failed.
    pub lost_failed_gpu_us: i128,
    /// Time spent on starts, restarts, checkpoints and kills.
    pub overhead_gpu_us: i128,
    /// Demand of services that no GPU served.
    pub unmet_gpu_us: i128,
    /// Time during which a service had unmet demand, summed over services, µs.
    pub unmet_us: i64,
}

impl Ledger {
    /// GPU-µs of a class.
    pub fn gpu_us(&self, class: Class) -> i128 {
        self.classes_gpu_us[class as usize]
    }

    /// GPU-µs of all classes: the paid time.
    pub fn paid_gpu_us(&self) -> i128 {
        self.classes_gpu_us.iter().sum()
    }

    /// Adds `span_us` with `gpus` GPUs in each class.
    pub(crate) fn advance(&mut self, gpus: &[i64; 8], span_us: i64) {
        for (sum, gpus) in self.classes_gpu_us.iter_mut().zip(gpus) {
            *sum += i128::from(*gpus) * i128::from(span_us);
        }
    }

    /// Allocated GPU time that is settled: kept, lost or overhead.
    pub fn settled_gpu_us(&self) -> i128 {
        self.kept_gpu_us + self.lost_preempted_gpu_us + self.lost_failed_gpu_us + self.overhead_gpu_us
    }
}
