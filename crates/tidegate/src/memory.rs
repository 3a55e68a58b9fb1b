//! The allocator, and what it does with freed pages.

use tikv_jemalloc_ctl::{Access, AsName, Result};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Keeps freed pages until the process ends; for commands that work through a lot of history and then end.
///
/// Columnar batches come and go in tens of megabytes. Pages given back in between are cleared by the kernel when they are
/// taken again, which took a tenth of the CPU time of an import (see ARCHITECTURE.md). A process that stays does not do
/// this: it gives back what it has not used for ten seconds.
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
