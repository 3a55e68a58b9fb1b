//! The allocator: when it returns freed pages, and how it measures the memory of queries.

use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_lake::engine::memory::Gauge;
use tikv_jemalloc_ctl::thread::ThreadLocal;
use tikv_jemalloc_ctl::{Access, AsName, Mib, Result, epoch, thread};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Delay until freed pages are returned to the kernel; jemalloc's default.
const DIRTY_DECAY_MS: isize = 10_000;
/// Arenas for query threads, assigned round-robin. Few, because each keeps freed pages of its own.
const ARENAS: u32 = 4;

/// Keeps freed pages until the process ends; for commands that process history and exit.
///
/// Columnar batches come and go in tens of megabytes. The kernel clears a returned page when it is
/// taken again, which cost a tenth of the CPU time of an import. Long-running processes instead
/// return pages that were unused for ten seconds.
pub fn keep_pages() {
    let kept = set(b"arenas.dirty_decay_ms\0")
        .and_then(|()| set(b"arenas.muzzy_decay_ms\0"))
        .and_then(|()| set(b"arena.0.dirty_decay_ms\0"))
        .and_then(|()| set(b"arena.0.muzzy_decay_ms\0"));
    if let Err(e) = kept {
        tracing::debug!(%e, "the allocator keeps its defaults");
    }
}

/// -1 is jemalloc's "never give back".
fn set(name: &'static [u8]) -> Result<()> {
    name.name().write(-1_isize)
}

/// Measures the memory of queries: their threads allocate from arenas of their own, whose pages are
/// counted whichever thread frees them. Without such arenas queries are bounded by their claims.
pub fn measure_queries() {
    match QueryArenas::create() {
        Ok(arenas) => tidegate_server::measure_by(Box::leak(Box::new(arenas))),
        Err(e) => {
            tracing::warn!(%e, "the allocator does not measure queries; only what they claim is bounded")
        }
    }
}

#[derive(Debug)]
struct QueryArenas {
    indices: Vec<u32>,
    /// Number of threads with an arena.
    threads: AtomicU32,
    page: usize,
    in_use: Mib<[usize; 4]>,
    freed: Mib<[usize; 4]>,
    decay: Mib<[usize; 3]>,
}

impl QueryArenas {
    fn create() -> Result<Self> {
        let create = b"arenas.create\0".name();
        let indices: Vec<u32> = (0..ARENAS).map(|_| create.read()).collect::<Result<_>>()?;
        let arenas = Self {
            indices,
            threads: AtomicU32::new(0),
            page: b"arenas.page\0".name().read()?,
            in_use: b"stats.arenas.0.pactive\0".name().mib()?,
            freed: b"stats.arenas.0.pdirty\0".name().mib()?,
            decay: b"arena.0.dirty_decay_ms\0".name().mib()?,
        };
        arenas.set_decay(DIRTY_DECAY_MS)?;
        Ok(arenas)
    }

    /// Sums a page statistic over the arenas, in bytes, as of the last [`epoch::advance`].
    fn sum(&self, mut pages: Mib<[usize; 4]>) -> Result<usize> {
        let mut sum = 0;
        for index in &self.indices {
            pages[2] = *index as usize;
            let of_arena: usize = pages.read()?;
            sum += of_arena * self.page;
        }
        Ok(sum)
    }

    fn set_decay(&self, ms: isize) -> Result<()> {
        let mut decay = self.decay;
        for index in &self.indices {
            decay[1] = *index as usize;
            decay.write(ms)?;
        }
        Ok(())
    }
}

impl Gauge for QueryArenas {
    fn adopt_thread(&self) {
        let turn = self.threads.fetch_add(1, Ordering::Relaxed) as usize;
        let arena = self.indices[turn % self.indices.len()];
        if let Err(e) = b"thread.arena\0".name().write(arena) {
            tracing::warn!(%e, "memory of a query thread is not measured");
        }
    }

    fn held_bytes(&self) -> usize {
        epoch::advance().and_then(|_| self.sum(self.in_use)).unwrap_or(0)
    }

    fn allocated_by_thread(&self) -> u64 {
        thread_local!(static ALLOCATED: Option<ThreadLocal<u64>> = thread::allocatedp::read().ok());
        ALLOCATED.with(|allocated| allocated.map_or(0, ThreadLocal::get))
    }

    fn trim_above(&self, bytes: usize) {
        let held = self.held_bytes();
        let freed = self.sum(self.freed).unwrap_or(0);
        // A decay of 0 returns freed pages at once.
        if held + freed > bytes && freed > 0 {
            self.set_decay(0).and_then(|()| self.set_decay(DIRTY_DECAY_MS)).ok();
        }
    }
}
