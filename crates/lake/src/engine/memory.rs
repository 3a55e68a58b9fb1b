//! Memory limit of queries: what they claim, what they hold untracked, and what the view cache
//! holds.
//!
//! DataFusion claims memory for hash tables, sorts and the build side of a join. It claims nothing
//! for window functions, unnested lists, results of expressions, files being decoded, or rows that
//! wait for a slow reader. If the process has a [`Gauge`], memory beyond the claims is measured and
//! claimed from the same pool.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

use crate::engine::view_cache::ViewCache;

/// Measured memory that needs no claim: plans, pages of files, and the allocator's rounding.
pub const UNCLAIMED_BYTES: usize = 32 << 20;
/// The view cache may use one part in this many of the pool.
const CACHE_FRACTION: usize = 4;
/// Memory is measured each time one part in this many of the limit was allocated.
const MEASURE_FRACTION: usize = 64;

/// Reports the memory that query threads hold, as known to the allocator.
pub trait Gauge: fmt::Debug + Send + Sync {
    /// Counts allocations of this thread from now on.
    fn adopt_thread(&self);
    /// Bytes held now, including those that another thread will free.
    fn held_bytes(&self) -> usize;
    /// Bytes that this thread ever allocated. Must be cheap.
    fn allocated_by_thread(&self) -> u64;
    /// Returns freed memory to the system if held and unreturned memory together exceed `bytes`.
    fn trim_above(&self, bytes: usize);
}

/// The memory pool of all queries of a process. When it is full, operators that can spill get a
/// fair share, then cached rows of views are evicted, and then claims are refused.
pub struct QueryPool {
    limit: usize,
    fair: Arc<dyn MemoryPool>,
    view_cache: ViewCache,
    gauge: Option<&'static dyn Gauge>,
    /// Claim for memory that is held beyond all other claims.
    untracked: Mutex<MemoryReservation>,
    /// Bytes allocated since the last measurement.
    unmeasured: AtomicUsize,
}

impl QueryPool {
    /// A pool of `limit` bytes. Without a `gauge`, memory beyond the claims is not limited.
    pub fn new(limit: usize, gauge: Option<&'static dyn Gauge>) -> Self {
        let fair: Arc<dyn MemoryPool> = Arc::new(FairSpillPool::new(limit));
        let untracked = Mutex::new(MemoryConsumer::new("untracked memory").register(&fair));
        Self {
            limit,
            fair,
            view_cache: ViewCache::default(),
            gauge,
            untracked,
            unmeasured: AtomicUsize::new(0),
        }
    }

    pub(crate) fn view_cache(&self) -> &ViewCache {
        &self.view_cache
    }

    /// Bytes that cached rows of views may use.
    pub(crate) fn max_cached_bytes(&self) -> usize {
        self.limit / CACHE_FRACTION
    }

    /// Records bytes that a thread allocated for a query. Every so often it measures. An error
    /// means that the queries together exceed the limit, and must end the query that called.
    pub fn record_allocation(&self, allocated: usize) -> Result<(), DataFusionError> {
        let unmeasured = self.unmeasured.fetch_add(allocated, Ordering::Relaxed) + allocated;
        if self.gauge.is_none() || unmeasured < self.limit / MEASURE_FRACTION {
            return Ok(());
        }
        self.unmeasured.store(0, Ordering::Relaxed);
        let mut lacking = self.measure();
        while lacking > 0 && self.view_cache.evict_one() {
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
        let untracked = self.untracked.lock().unwrap_or_else(PoisonError::into_inner);
        gauge.trim_above(self.limit + UNCLAIMED_BYTES);
        let claims = self.fair.reserved().saturating_sub(untracked.size());
        let needed = gauge.held_bytes().saturating_sub(claims + UNCLAIMED_BYTES);
        if needed <= untracked.size() {
            untracked.shrink(untracked.size() - needed);
            return 0;
        }
        let more = needed - untracked.size();
        match untracked.try_grow(more) {
            Ok(()) => 0,
            Err(_) => more,
        }
    }

    fn refusal(&self, what: &str, more: usize) -> DataFusionError {
        DataFusionError::ResourcesExhausted(format!(
            "the running queries hold {} of the {} MiB they may use together, and {what} asks for {} MiB more",
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
        // Memory held beyond the claims may have been freed by now.
        self.measure();
        let spills = reservation.consumer().can_spill() && reservation.size() > 0;
        loop {
            if self.fair.try_grow(reservation, additional).is_ok() {
                return Ok(());
            }
            // Spilling is cheaper than computing a view again.
            if spills || !self.view_cache.evict_one() {
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

    /// Reports this number of bytes as held.
    #[derive(Debug)]
    struct Measured(AtomicUsize);

    impl Gauge for Measured {
        fn adopt_thread(&self) {}

        fn held_bytes(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn allocated_by_thread(&self) -> u64 {
            0
        }

        fn trim_above(&self, _: usize) {}
    }

    fn pool() -> (&'static Measured, Arc<dyn MemoryPool>) {
        let gauge: &'static Measured = Box::leak(Box::new(Measured(AtomicUsize::new(0))));
        (gauge, Arc::new(QueryPool::new(LIMIT, Some(gauge))))
    }

    fn record_allocation(pool: &Arc<dyn MemoryPool>) -> Result<(), DataFusionError> {
        pool.downcast_ref::<QueryPool>().unwrap().record_allocation(LIMIT)
    }

    #[test]
    fn untracked_memory_leaves_less_to_claim() {
        let (gauge, pool) = pool();
        let claim = MemoryConsumer::new("a join").register(&pool);
        claim.try_grow(LIMIT / 4).unwrap();
        gauge.0.store(LIMIT / 4 + LIMIT / 2 + UNCLAIMED_BYTES, Ordering::Relaxed);
        record_allocation(&pool).unwrap();
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
    fn a_query_that_exceeds_the_limit_is_ended() {
        let (gauge, pool) = pool();
        gauge.0.store(LIMIT + UNCLAIMED_BYTES, Ordering::Relaxed);
        record_allocation(&pool).unwrap();
        gauge.0.store(LIMIT + UNCLAIMED_BYTES + 1, Ordering::Relaxed);
        let refused = record_allocation(&pool).unwrap_err();
        assert!(matches!(refused, DataFusionError::ResourcesExhausted(_)), "{refused}");
        pool.downcast_ref::<QueryPool>()
            .unwrap()
            .record_allocation(1)
            .expect("so little is not measured again");
    }
}
