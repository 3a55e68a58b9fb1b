//! The memory that the state of the signals may take. Names of jobs and nodes come from events, so
//! their number has no other bound.
//!
//! Bytes are estimated from lengths, because the allocator cannot say whose they are. Over the
//! limit, what is least useful is forgotten and counted: nothing that an event says can take more.

/// Bytes of a name on the heap, with what the allocator adds.
pub const NAME_BYTES: usize = 64;
/// Bytes of a small entry of a map.
pub const ENTRY_BYTES: usize = 48;
/// Jobs that run or wait, and jobs that ended lately, of one cluster. Slurm's own limit is 10,000.
pub const MAX_JOBS: usize = 1 << 20;
/// Limit if none is set: 2 GiB, enough for 50,000 GPUs.
pub const DEFAULT_LIMIT_BYTES: usize = 2 << 30;

/// Parts of a limit, bytes.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    /// Jobs and nodes.
    pub state: usize,
    /// Windows of devices that are open; each closes within a minute.
    pub windows: usize,
    /// Steps and samples that wait for their turn.
    pub streams: usize,
    /// What is left for events of jobs, nodes and prices that wait when all else is full. They may
    /// take what the others leave, because a whole history is read before it is applied.
    pub history: usize,
}

impl Shares {
    /// A half for the state, a quarter for steps and samples, and an eighth for each of the others.
    pub fn of(limit_bytes: u64) -> Self {
        let limit = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        Self { state: limit / 2, windows: limit / 8, streams: limit / 4, history: limit / 8 }
    }
}

/// Memory of the state, and what was left out for its sake since the service was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes that jobs, nodes and waiting events take, by estimate.
    pub held_bytes: u64,
    /// Of these, bytes of waiting events.
    pub waiting_bytes: u64,
    /// Bytes that they may take.
    pub limit_bytes: u64,
    /// Jobs forgotten over the limit.
    pub evicted_jobs: u64,
    /// Nodes forgotten over the limit.
    pub evicted_nodes: u64,
    /// Events left out: samples and steps over the limit, events dated ahead of all others, events
    /// of too many clusters.
    pub refused: u64,
    /// Events of jobs, nodes and prices applied over the limit before their turn: older ones may
    /// have come after them.
    pub early: u64,
    /// Step reports of jobs that neither a scheduler nor a hold has named.
    pub unknown_jobs: u64,
}

impl Default for MemoryUse {
    fn default() -> Self {
        Self {
            held_bytes: 0,
            waiting_bytes: 0,
            limit_bytes: DEFAULT_LIMIT_BYTES as u64,
            evicted_jobs: 0,
            evicted_nodes: 0,
            refused: 0,
            early: 0,
            unknown_jobs: 0,
        }
    }
}
