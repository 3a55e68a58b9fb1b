//! Jobs that wait for a loan.

use std::collections::BTreeMap;

use crate::state::{JobId, OwnerName, PoolName};

/// A waiting job that could run on a loan: GPUs it needs lent to start, and GPUs it could use.
#[derive(Debug, Clone)]
pub(super) struct WaitingJob<'a> {
    pub(super) id: &'a JobId,
    pub(super) needs: u32,
    pub(super) uses: u32,
}

/// Waiting jobs by owner and pool, in the order in which they will start.
pub(super) type WaitingJobs<'a> = BTreeMap<OwnerName, BTreeMap<PoolName, Vec<WaitingJob<'a>>>>;
