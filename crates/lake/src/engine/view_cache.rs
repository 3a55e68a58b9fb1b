//! View cache: rows of materialized views, kept between queries.
//!
//! A view's rows are held by its `ViewSlot`, for the next query, and by every query that reads
//! them. Their memory stays claimed from the pool until the last holder drops them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use datafusion::common::DataFusionError;
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::ExecutionPlan;

/// Rows of one view, with the memory claimed for them.
#[derive(Debug)]
pub(crate) struct ViewRows {
    pub(crate) table: MemTable,
    /// Released after the rows: fields are dropped in order.
    claimed: MemoryReservation,
}

impl ViewRows {
    pub(crate) fn new(table: MemTable, claimed: MemoryReservation) -> Self {
        Self { table, claimed }
    }
}

/// Place of one view's rows in one catalog.
#[derive(Debug, Default)]
pub(crate) struct ViewSlot(Mutex<Option<Arc<ViewRows>>>);

impl ViewSlot {
    pub(crate) fn rows(&self) -> Option<Arc<ViewRows>> {
        locked(&self.0).clone()
    }

    fn bytes(&self) -> usize {
        locked(&self.0).as_ref().map_or(0, |rows| rows.claimed.size())
    }

    /// Drops rows that no query reads. Returns whether that freed memory.
    fn evict_if_unused(&self) -> bool {
        let cached_bytes = locked(&self.0).take_if(|rows| Arc::strong_count(rows) == 1);
        cached_bytes.is_some_and(|rows| rows.claimed.size() > 0)
    }
}

/// The cached views of one pool.
#[derive(Debug, Default)]
pub(crate) struct ViewCache {
    /// Least recently used first.
    slots: Mutex<Vec<Weak<ViewSlot>>>,
}

impl ViewCache {
    /// Caches a view's rows for the next query, then evicts the least recently used views until all
    /// take at most `max_bytes`. Rows that exceed it on their own are not cached: only their query
    /// holds them.
    pub(crate) fn insert(&self, slot: &Arc<ViewSlot>, rows: &Arc<ViewRows>, max_bytes: usize) {
        if rows.claimed.size() > max_bytes {
            return;
        }
        *locked(&slot.0) = Some(Arc::clone(rows));
        self.mark_used(slot);
        let mut slots = locked(&self.slots);
        let mut cached_bytes: usize = slots.iter().filter_map(Weak::upgrade).map(|slot| slot.bytes()).sum();
        while cached_bytes > max_bytes && !slots.is_empty() {
            if let Some(oldest) = slots.remove(0).upgrade() {
                cached_bytes -= oldest.bytes();
                locked(&oldest.0).take();
            }
        }
    }

    /// Marks a cached view as used.
    pub(crate) fn mark_used(&self, slot: &Arc<ViewSlot>) {
        let mut slots = locked(&self.slots);
        slots.retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(slot)));
        slots.push(Arc::downgrade(slot));
    }

    /// Evicts the least recently used view that no query reads. Returns `false` if there is none.
    pub(crate) fn evict_one(&self) -> bool {
        let mut slots = locked(&self.slots);
        let freed = slots.iter().position(|slot| slot.upgrade().is_some_and(|slot| slot.evict_if_unused()));
        freed.map(|place| slots.remove(place)).is_some()
    }
}

/// Guards the work of a query: its own plan, and the plans of views it reads.
pub trait QueryGuard: Send + Sync {
    /// Returns the plan with guards around its operators.
    fn guard(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError>;
}

/// The materialized views that a query reads, held until it ends. An extension of the query's
/// session.
#[derive(Default)]
pub struct QueryViews {
    rows: Mutex<Vec<(Arc<ViewSlot>, Arc<ViewRows>)>>,
    guard: Option<Box<dyn QueryGuard>>,
}

impl fmt::Debug for QueryViews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryViews").field("views", &locked(&self.rows).len()).finish_non_exhaustive()
    }
}

impl QueryViews {
    /// For a guarded query, which is refused if there is no room for a view's rows.
    pub fn guarded(guard: impl QueryGuard + 'static) -> Self {
        Self { rows: Mutex::default(), guard: Some(Box::new(guard)) }
    }

    pub(crate) fn guard(&self) -> Option<&dyn QueryGuard> {
        self.guard.as_deref()
    }

    pub(crate) fn rows(&self, slot: &Arc<ViewSlot>) -> Option<Arc<ViewRows>> {
        locked(&self.rows).iter().find(|(of, _)| Arc::ptr_eq(of, slot)).map(|(_, rows)| Arc::clone(rows))
    }

    pub(crate) fn hold(&self, slot: &Arc<ViewSlot>, rows: &Arc<ViewRows>) {
        locked(&self.rows).push((Arc::clone(slot), Arc::clone(rows)));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
