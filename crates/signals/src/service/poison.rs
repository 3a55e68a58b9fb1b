//! Records that earlier lives of the service died of: they are skipped as they are read.

use tidegate_events::Event;
use tidegate_log::poison::{DeathWatch, Place};
use tidegate_log::{LogError, StoredRecord, TopicPartition};

use super::SignalService;
use crate::watch::Watch;

impl SignalService {
    /// Notes with `watch` what the service works on, and skips what its earlier lives died of.
    #[must_use]
    pub fn watched_by(mut self, watch: DeathWatch) -> Self {
        self.watch = Watch::new(watch);
        self.reorder.watched_by(self.watch.clone());
        self
    }

    /// Ends a life that has panicked. The next one, which a caller opens, knows where.
    pub fn panicked(self) {
        if let Some(mut watch) = self.watch.lock() {
            watch.panicked();
        }
    }

    /// Decodes a record. `None` if it is set aside, or is no event.
    pub(super) fn decode(
        &mut self,
        at: &TopicPartition,
        stored: &StoredRecord,
    ) -> Result<Option<Event>, LogError> {
        let is_watched = self
            .watch
            .lock()
            .is_some_and(|watch| watch.is_careful() || watch.skips_any() || watch.tries_any());
        if is_watched {
            let place = Place::record(at, stored.offset);
            if self.skip(&place, at, stored)? {
                return Ok(None);
            }
            if let Some(mut watch) = self.watch.lock() {
                watch.enter(place);
            }
        }
        let Ok(event) = Event::decode(stored.record.schema, &stored.record.payload) else {
            self.stats.undecodable += 1;
            return Ok(None);
        };
        if is_watched {
            for place in places_of(&event) {
                if self.skip(&place, at, stored)? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(event))
    }

    /// Skips a record that is set aside. The first one of its place gets a dead letter.
    fn skip(&mut self, place: &Place, at: &TopicPartition, stored: &StoredRecord) -> Result<bool, LogError> {
        let Some(mut watch) = self.watch.lock().filter(|watch| watch.skips(place)) else { return Ok(false) };
        if watch.skipped(place, at, stored.offset) {
            match watch.append_letter(self.log.as_ref(), at, stored) {
                Ok(()) | Err(LogError::UnknownTopic(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.stats.poison += 1;
        Ok(true)
    }
}

/// What an event can be set aside as.
fn places_of(event: &Event) -> Vec<Place> {
    let id = event.envelope().and_then(|envelope| envelope.event_id.first_chunk());
    let mut places: Vec<Place> = id.map(|id| Place::event(u128::from_be_bytes(*id))).into_iter().collect();
    if let (Event::Step(step), Some(envelope)) = (event, event.envelope()) {
        places.push(Place::Job(envelope.cluster.clone(), step.job_id.clone()));
    }
    places
}
