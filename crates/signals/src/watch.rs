//! Notes what the signals work on, and leaves out what earlier lives died of.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_log::poison::{DeathWatch, Place};

use crate::detectors::JobKey;

/// The watch of this life; none for a service without a folder.
#[derive(Debug, Clone, Default)]
pub struct Watch(Option<Arc<Mutex<DeathWatch>>>);

impl Watch {
    pub fn new(watch: DeathWatch) -> Self {
        Self(Some(Arc::new(Mutex::new(watch))))
    }

    /// The watch itself.
    pub fn lock(&self) -> Option<MutexGuard<'_, DeathWatch>> {
        // What a panic leaves is a note, whole or not.
        self.0.as_ref().map(|watch| watch.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An event is applied or taken early. Returns whether it is to be left out.
    pub fn enter_event(&self, id: u128) -> bool {
        self.enter(|| Place::event(id))
    }

    /// A job moves on. Returns whether it is to be left out.
    pub fn enter_job(&self, job: &JobKey) -> bool {
        self.enter(|| Place::Job(job.0.clone(), job.1.clone()))
    }

    /// What comes next is no single event's.
    pub fn leave(&self) {
        if let Some(mut watch) = self.lock().filter(|watch| watch.is_careful() || watch.tries_any()) {
            watch.enter(Place::Work);
        }
    }

    fn enter(&self, place: impl FnOnce() -> Place) -> bool {
        let asks =
            |watch: &MutexGuard<'_, DeathWatch>| watch.is_careful() || watch.skips_any() || watch.tries_any();
        let Some(mut watch) = self.lock().filter(asks) else { return false };
        let place = place();
        if watch.skips(&place) {
            return true;
        }
        watch.enter(place);
        false
    }
}
