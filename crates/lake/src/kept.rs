//! Rows of views that are computed once, and who holds them.
//!
//! A view's rows are held by its [`Slot`], so that the next query finds them, and by every query
//! that reads them. What they take is claimed from the pool of the query that computed them until
//! the last of these lets go.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use datafusion::common::DataFusionError;
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::ExecutionPlan;

/// Rows of one view, with the memory that is claimed for them.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) table: MemTable,
    /// Freed after the rows: fields are dropped in order.
    claimed: MemoryReservation,
}

impl Rows {
    pub(crate) fn new(table: MemTable, claimed: MemoryReservation) -> Self {
        Self { table, claimed }
    }
}

/// Where one view of one catalog has its rows, while they are kept.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Arc<Rows>>>);

impl Slot {
    pub(crate) fn rows(&self) -> Option<Arc<Rows>> {
        locked(&self.0).clone()
    }

    fn bytes(&self) -> usize {
        locked(&self.0).as_ref().map_or(0, |rows| rows.claimed.size())
    }

    /// Lets go of rows that no query reads; whether that freed any.
    fn free_if_unread(&self) -> bool {
        let taken = locked(&self.0).take_if(|rows| Arc::strong_count(rows) == 1);
        taken.is_some_and(|rows| rows.claimed.size() > 0)
    }
}

/// The views whose rows are kept in one pool.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The one that was not asked for longest comes first.
    slots: Mutex<Vec<Weak<Slot>>>,
}

impl Kept {
    /// Keeps a view's rows for the next query that asks, and lets go of those not asked for longest
    /// until all of them take `most` bytes at most. Rows that take more on their own are not kept:
    /// they are their query's.
    pub(crate) fn keep(&self, slot: &Arc<Slot>, rows: &Arc<Rows>, most: usize) {
        if rows.claimed.size() > most {
            return;
        }
        *locked(&slot.0) = Some(Arc::clone(rows));
        self.asked_for(slot);
        let mut slots = locked(&self.slots);
        let mut taken: usize = slots.iter().filter_map(Weak::upgrade).map(|slot| slot.bytes()).sum();
        while taken > most && !slots.is_empty() {
            if let Some(oldest) = slots.remove(0).upgrade() {
                taken -= oldest.bytes();
                locked(&oldest.0).take();
            }
        }
    }

    /// Notes that a query asks for a view whose rows are kept.
    pub(crate) fn asked_for(&self, slot: &Arc<Slot>) {
        let mut slots = locked(&self.slots);
        slots.retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(slot)));
        slots.push(Arc::downgrade(slot));
    }

    /// Lets go of the rows not asked for longest that no query reads. False if there are none.
    pub(crate) fn make_room(&self) -> bool {
        let mut slots = locked(&self.slots);
        let freed = slots.iter().position(|slot| slot.upgrade().is_some_and(|slot| slot.free_if_unread()));
        freed.map(|place| slots.remove(place)).is_some()
    }
}

/// What watches over the work of a query, be it the query's own plan or that of a view it reads.
pub trait Watch: Send + Sync {
    fn over(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError>;
}

/// What a query holds of views that are computed once, until it ends. It is an extension of the
/// query's session.
#[derive(Default)]
pub struct Held {
    rows: Mutex<Vec<(Arc<Slot>, Arc<Rows>)>>,
    watch: Option<Box<dyn Watch>>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("views", &locked(&self.rows).len()).finish_non_exhaustive()
    }
}

impl Held {
    /// Of a query under watch, which is refused when there is no room for a view's rows.
    pub fn watched(watch: impl Watch + 'static) -> Self {
        Self { rows: Mutex::default(), watch: Some(Box::new(watch)) }
    }

    pub(crate) fn watch(&self) -> Option<&dyn Watch> {
        self.watch.as_deref()
    }

    pub(crate) fn rows_of(&self, slot: &Arc<Slot>) -> Option<Arc<Rows>> {
        locked(&self.rows).iter().find(|(of, _)| Arc::ptr_eq(of, slot)).map(|(_, rows)| Arc::clone(rows))
    }

    pub(crate) fn hold(&self, slot: &Arc<Slot>, rows: &Arc<Rows>) {
        locked(&self.rows).push((Arc::clone(slot), Arc::clone(rows)));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
