//! Jobs that wait for a loan.

use std::collections::BTreeMap;

use crate::state::{OwnerName, PoolName};

/// A waiting job that could run on a loan: GPUs it needs lent to start, and GPUs it could use.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingJob {
    pub(super) needs: u32,
    pub(super) uses: u32,
}

/// Waiting jobs by owner and pool, in the order in which they will start.
pub(super) type WaitingJobs = BTreeMap<OwnerName, BTreeMap<PoolName, Vec<WaitingJob>>>;
