//! Agent.
mod clock;
mod columns;
mod gather;
pub mod spool;
pub use clock::*;
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
