//! The memory that queries share: what they claim, what they hold beyond it, and what is kept for
//! the next one.
//!
//! The engine claims memory for hash tables, sorts and one side of a join, and nothing for windows,
//! lists that become rows, results of expressions, files being decoded or rows that wait for a slow
//! reader. What is held beyond the claims is measured where the process has a [`Gauge`], and
//! claimed from the same pool.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

use crate::kept::Kept;

/// Measured memory that needs no claim: plans, pages of files, what the allocator rounds up.
pub const UNCLAIMED_BYTES: usize = 32 << 20;
/// Kept rows of views may take one part in so many of the pool.
const KEPT_PART: usize = 4;
/// Memory is measured each time so small a part of the limit was allocated.
const MEASURED_PART: usize = 64;

/// What the allocator knows of the memory that the threads of queries hold.
pub trait Gauge: fmt::Debug + Send + Sync {
    /// Counts what this thread allocates from now on.
    fn adopt_thread(&self);
    /// Bytes that are held now, whoever frees them in the end.
    fn held(&self) -> usize;
    /// Bytes that this thread has ever allocated; cheap.
    fn allocated_by_thread(&self) -> u64;
    /// Gives freed memory back to the system if more than so many bytes are held or freed and not
    /// given back.
    fn give_back_beyond(&self, bytes: usize);
}

/// The pool of all queries of a service. Spillable operators share it fairly, rows of views that
/// nobody reads make room, and then claims are refused.
pub struct QueryPool {
    limit: usize,
    fair: Arc<dyn MemoryPool>,
    kept: Kept,
    gauge: Option<&'static dyn Gauge>,
    /// What is held beyond all claims, as a claim.
    beyond: Mutex<MemoryReservation>,
    /// Bytes allocated since memory was measured last.
    since: AtomicUsize,
}

impl QueryPool {
    pub fn new(limit: usize, gauge: Option<&'static dyn Gauge>) -> Self {
        let fair: Arc<dyn MemoryPool> = Arc::new(FairSpillPool::new(limit));
        let beyond = Mutex::new(MemoryConsumer::new("what is held beyond claims").register(&fair));
        Self { limit, fair, kept: Kept::default(), gauge, beyond, since: AtomicUsize::new(0) }
    }

    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Bytes that rows of views may take while no query reads them.
    pub(crate) fn kept_most(&self) -> usize {
        self.limit / KEPT_PART
    }

    /// Has to be called where a thread has worked for a query, with the bytes it allocated. Now and
    /// then it measures; an error says that the queries hold more than they may, and has to end the
    /// one that worked.
    pub fn worked(&self, allocated: usize) -> Result<(), DataFusionError> {
        let since = self.since.fetch_add(allocated, Ordering::Relaxed) + allocated;
        if self.gauge.is_none() || since < self.limit / MEASURED_PART {
            return Ok(());
        }
        self.since.store(0, Ordering::Relaxed);
        let mut lacking = self.measure();
        while lacking > 0 && self.kept.make_room() {
            lacking = self.measure();
        }
        match lacking {
            0 => Ok(()),
            _ => Err(self.refusal("this one", lacking)),
        }
    }

    /// Claims what is held beyond all claims. Returns the bytes for which there is no room.
    fn measure(&self) -> usize {
        let Some(gauge) = self.gauge else { return 0 };
        let beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        gauge.give_back_beyond(self.limit + UNCLAIMED_BYTES);
        let claims = self.fair.reserved().saturating_sub(beyond.size());
        let needed = gauge.held().saturating_sub(claims + UNCLAIMED_BYTES);
        if needed <= beyond.size() {
            beyond.shrink(beyond.size() - needed);
            return 0;
        }
        let more = needed - beyond.size();
        match beyond.try_grow(more) {
            Ok(()) => 0,
            Err(_) => more,
        }
    }

    fn refusal(&self, what: &str, more: usize) -> DataFusionError {
        DataFusionError::ResourcesExhausted(format!(
            "the running queries hold {} of the {} MiB that they may hold together, and {what} asks for {} MiB more",
            mib(self.fair.reserved()),
            mib(self.limit),
            mib(more).max(1),
        ))
    }
}

fn mib(bytes: usize) -> usize {
    bytes >> 20
}

impl fmt::Debug for QueryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryPool")
            .field("limit", &self.limit)
            .field("fair", &self.fair)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for QueryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fair)
    }
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &str {
        "queries"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.fair.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.fair.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.fair.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.fair.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<(), DataFusionError> {
        if self.fair.try_grow(reservation, additional).is_ok() {
            return Ok(());
        }
        // What was held beyond the claims may be free by now.
        self.measure();
        let spills = reservation.consumer().can_spill() && reservation.size() > 0;
        loop {
            if self.fair.try_grow(reservation, additional).is_ok() {
                return Ok(());
            }
            // Spilling costs less than computing a view again.
            if spills || !self.kept.make_room() {
                let name = reservation.consumer().name();
                let spills = if spills { ", whose fair share is taken," } else { "" };
                return Err(self.refusal(&format!("{name}{spills}"), additional));
            }
        }
    }

    fn reserved(&self) -> usize {
        self.fair.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 128 << 20;

    /// Reports that queries hold so many bytes.
    #[derive(Debug)]
    struct Measured(AtomicUsize);

    impl Gauge for Measured {
        fn adopt_thread(&self) {}

        fn held(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn allocated_by_thread(&self) -> u64 {
            0
        }

        fn give_back_beyond(&self, _: usize) {}
    }

    fn pool() -> (&'static Measured, Arc<dyn MemoryPool>) {
        let gauge: &'static Measured = Box::leak(Box::new(Measured(AtomicUsize::new(0))));
        (gauge, Arc::new(QueryPool::new(LIMIT, Some(gauge))))
    }

    fn worked(pool: &Arc<dyn MemoryPool>) -> Result<(), DataFusionError> {
        pool.downcast_ref::<QueryPool>().unwrap().worked(LIMIT)
    }

    #[test]
    fn what_is_held_beyond_claims_leaves_less_to_claim() {
        let (gauge, pool) = pool();
        let claim = MemoryConsumer::new("a join").register(&pool);
        claim.try_grow(LIMIT / 4).unwrap();
        gauge.0.store(LIMIT / 4 + LIMIT / 2 + UNCLAIMED_BYTES, Ordering::Relaxed);
        worked(&pool).unwrap();
        assert_eq!(pool.reserved(), LIMIT / 4 + LIMIT / 2, "the claim, and what is held beyond it");
        let refused = claim.try_grow(LIMIT / 2).unwrap_err().to_string();
        assert!(
            refused.contains("hold 96 of the 128 MiB") && refused.contains("a join asks for 64"),
            "{refused}"
        );
        gauge.0.store(0, Ordering::Relaxed);
        claim.try_grow(LIMIT / 2).expect("what is not held any more is measured before a claim is refused");
    }

    #[test]
    fn who_holds_more_than_all_may_is_ended() {
        let (gauge, pool) = pool();
        gauge.0.store(LIMIT + UNCLAIMED_BYTES, Ordering::Relaxed);
        worked(&pool).unwrap();
        gauge.0.store(LIMIT + UNCLAIMED_BYTES + 1, Ordering::Relaxed);
        let refused = worked(&pool).unwrap_err();
        assert!(matches!(refused, DataFusionError::ResourcesExhausted(_)), "{refused}");
        pool.downcast_ref::<QueryPool>().unwrap().worked(1).expect("so little is not measured again");
    }
}
