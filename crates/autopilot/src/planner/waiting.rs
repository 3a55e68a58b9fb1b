//! Jobs that wait for a loan.

use std::collections::BTreeMap;

use crate::state::{OwnerName, PoolName};

/// A job that waits and could run on a loan: GPUs that must be lent for it to start, and GPUs it
/// could use of a loan.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingJob {
    pub(super) needs: u32,
    pub(super) uses: u32,
}

/// Who waits for a loan: jobs by owner and pool they wait in, in the order in which they will
/// start.
pub(super) type WaitingJobs = BTreeMap<OwnerName, BTreeMap<PoolName, Vec<WaitingJob>>>;
