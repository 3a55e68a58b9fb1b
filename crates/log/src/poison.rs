//! Records that a reader dies of, and how the next life goes on without them.
//!
//! A reader writes down what it works on, beside its state and before it begins ([`DeathWatch`]). A
//! life that ends in order removes the note. One that finds a note knows that the last life died,
//! and where. After a first death it is careful: it notes each record by itself. A record at which
//! it dies [twice](MAX_DEATHS) is suspect, no more: the memory may have been full, or somebody
//! killed the process. The next life processes it alone. If it dies again, the record is set aside:
//! it is skipped from then on, and named in `dead_letters` and by `tidegate status`. If the process
//! survives, the record is processed as usual and its deaths are forgotten.
//!
//! A note is written, not synced: it has to outlive the process, not the machine. What cannot be
//! written stops nothing.

mod deaths;
mod hook;
mod note;

use std::fs;
use std::path::{Path, PathBuf};

use tidegate_events::v1::{DeadLetter, Envelope};
use tidegate_events::{Event, SchemaId};

use crate::{Batch, EventLog, LogError, Producer, StoredRecord, TopicPartition};
use deaths::file_of;
pub use deaths::{Deaths, Place, SetAside};
pub use hook::die_for_test;
use note::Note;

/// Deaths at the same record after which it is tried alone.
pub const MAX_DEATHS: u32 = 2;
/// Code of the dead letter of a record that was set aside.
pub const CODE: &str = "POISON";
/// Bytes of the record in its dead letter.
const RAW_BYTES: usize = 4_096;

/// Notes what a reader works on, and knows what its earlier lives died of.
#[derive(Debug)]
pub struct DeathWatch {
    folder: PathBuf,
    reader: String,
    note: Note,
    deaths: Deaths,
}

impl DeathWatch {
    /// Begins a life of `reader`, whose files are in `folder`. If the last life left a note, it
    /// died.
    pub fn begin(folder: &Path, reader: &str) -> Self {
        let (note, left) = Note::open(folder, reader);
        let deaths = Deaths::read(folder, reader);
        let mut own = Self { folder: folder.to_owned(), reader: reader.to_owned(), note, deaths };
        if let Some((place, was_alone)) = left {
            own.died_at(place, was_alone);
        }
        own.enter(Place::Work);
        own
    }

    /// The life that notes here has panicked, and this process begins another one.
    pub fn panicked(&mut self) {
        if let Some((place, was_alone)) = self.note.last() {
            self.died_at(place, was_alone);
        }
        self.note.write(&Place::Work, false);
    }

    /// Whether each record is to be noted.
    pub fn is_careful(&self) -> bool {
        self.deaths.recent > 0
    }

    /// Notes the place, if the reader is careful or tries it alone. A place that was tried alone
    /// and is left is acquitted.
    pub fn enter(&mut self, place: Place) {
        let is_alone = self.deaths.is_suspect(&place);
        let tried = self.note.last().filter(|(tried, was_alone)| *was_alone && *tried != place);
        if let Some((tried, _)) = &tried {
            tracing::info!(reader = self.reader, place = ?tried, "tried alone, and it is not to blame");
            self.deaths.acquit(tried);
            self.save();
        }
        if self.is_careful() || is_alone || tried.is_some() || place == Place::Work {
            self.note.write(&place, is_alone);
        }
    }

    /// The first record of a partition between two offsets that is to be tried alone: with nothing
    /// before it that is not saved, and saved before anything after it.
    pub fn suspect(&self, at: &TopicPartition, (from, to): (u64, u64)) -> Option<u64> {
        self.deaths.suspects(at).into_iter().filter(|offset| (from..to).contains(offset)).min()
    }

    /// Whether places are to be entered although no life died lately.
    pub fn tries_any(&self) -> bool {
        self.deaths.has_suspects()
    }

    /// As many records are taken at once: after a death at many, a part of them.
    pub fn piece(&self, at: &TopicPartition) -> usize {
        let least = self.deaths.piece(at).filter(|_| self.is_careful());
        least.map_or(usize::MAX, |records| usize::try_from(records).unwrap_or(usize::MAX))
    }

    /// Why a reader that skips nothing may not go on at a place [from an offset
    /// on](Place::all_from): it has died there as often as another one sets a record aside.
    pub fn stops(&self, at: &TopicPartition, offset: u64) -> Option<String> {
        let stops = self.deaths.stopped_at().contains(&(&at.topic, at.partition, offset));
        stops.then(|| {
            format!(
                "{} died {MAX_DEATHS} times while it read {}/{} from offset {offset} on; please report it, and delete {} once a \
                 newer version reads it",
                self.reader,
                at.topic,
                at.partition,
                file_of(&self.folder, &self.reader).display()
            )
        })
    }

    /// Whether there is anything to skip.
    pub fn skips_any(&self) -> bool {
        !self.deaths.set_aside.is_empty()
    }

    /// Whether the record, event or job is set aside.
    pub fn skips(&self, place: &Place) -> bool {
        self.deaths.set_aside.iter().any(|it| it.place == *place)
    }

    /// What is set aside.
    pub fn set_aside(&self) -> &[SetAside] {
        &self.deaths.set_aside
    }

    /// A record of something that is set aside was skipped. Notes where it stands, and returns
    /// whether it is the first one, or the only one there is.
    pub fn skipped(&mut self, place: &Place, at: &TopicPartition, offset: u64) -> bool {
        let known = self.deaths.set_aside.iter_mut().find(|it| it.place == *place);
        let Some(known) = known.filter(|it| it.skipped.is_none()) else { return false };
        known.skipped = Some((at.topic.clone(), at.partition, offset));
        self.save();
        true
    }

    /// The state is saved, so that the next life begins here.
    pub fn saved(&mut self) {
        if self.is_careful() {
            self.deaths.recent = 0;
            self.save();
        }
        self.enter(Place::Work);
    }

    /// Appends the dead letter of a record that was skipped. The log takes it once.
    ///
    /// # Errors
    /// The log's.
    pub fn append_letter(
        &self,
        log: &dyn EventLog,
        at: &TopicPartition,
        stored: &StoredRecord,
    ) -> Result<(), LogError> {
        let StoredRecord { offset, record } = stored;
        let mut letter = Event::DeadLetter(DeadLetter {
            envelope: Some(Envelope {
                event_time_ms: record.event_time_ms,
                observed_time_ms: record.event_time_ms,
                source: self.reader.clone(),
                ..Envelope::default()
            }),
            origin: at.topic.clone(),
            line: None,
            partition: Some(at.partition),
            offset: Some(*offset),
            code: CODE.into(),
            reason: self.reason(),
            raw: record.payload.slice(..record.payload.len().min(RAW_BYTES)).to_vec(),
        });
        let Ok(record) = letter.record() else { return Ok(()) };
        let source = format!("poison/{}/{}/{}#{offset}", self.reader, at.topic, at.partition);
        let letters = TopicPartition { topic: SchemaId::DeadLetter.topic().into(), partition: 0 };
        let batch =
            Batch { producer: Producer { source, epoch: 0 }, first_seq: 0, records: vec![record.into()] };
        log.append(&letters, batch).map(|_| ())
    }

    /// Why a record was skipped.
    pub fn reason(&self) -> String {
        format!(
            "{} died {MAX_DEATHS} times while it worked on this record, and again with nothing else, and skips it; please \
             report it with its payload, and delete {} once a newer version reads it",
            self.reader,
            file_of(&self.folder, &self.reader).display()
        )
    }

    fn died_at(&mut self, place: Place, was_alone: bool) {
        let known = self.deaths.set_aside.len();
        tracing::error!(reader = self.reader, ?place, "the last life died here; this one notes each record");
        self.deaths.add(place, was_alone);
        if let Some(new) = self.deaths.set_aside.get(known) {
            tracing::error!(reader = self.reader, place = ?new.place, "set aside: it died of it alone");
        }
        self.save();
    }

    fn save(&self) {
        let file = file_of(&self.folder, &self.reader);
        let unfinished = file.with_extension("unfinished");
        let text = serde_json::to_vec_pretty(&self.deaths).unwrap_or_default();
        let saved = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &file));
        if let Err(error) = saved {
            tracing::warn!(%error, "{} cannot be written: a death is not remembered", file.display());
        }
    }
}

impl Drop for DeathWatch {
    /// An orderly end; a panic is none.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.note.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> TopicPartition {
        TopicPartition { topic: "jobs".into(), partition: 3 }
    }

    /// A life that dies at `place`, if it works on it.
    fn dies_at(folder: &Path, place: &Place) {
        let mut watch = DeathWatch::begin(folder, "reader");
        if !watch.skips(place) {
            watch.enter(place.clone());
            std::mem::forget(watch);
        }
    }

    #[test]
    fn a_suspect_that_is_lived_through_alone_is_acquitted() {
        let folder = tempfile::tempdir().unwrap();
        let suspect = Place::record(&jobs(), 7);
        // Unknown, then twice at the record.
        (0..3).for_each(|_| dies_at(folder.path(), &suspect));
        let mut watch = DeathWatch::begin(folder.path(), "reader");
        assert!(!watch.skips(&suspect) && watch.tries_any());
        assert_eq!(watch.suspect(&jobs(), (0, 100)), Some(7));
        assert_eq!(watch.suspect(&jobs(), (8, 100)), None);
        // Its work is saved before: the life is not careful any more, but tries it nevertheless.
        watch.saved();
        watch.enter(suspect.clone());
        watch.enter(Place::record(&jobs(), 8));
        assert!(!watch.tries_any() && watch.suspect(&jobs(), (0, 100)).is_none());
        // A death after that is not at the record.
        std::mem::forget(watch);
        let watch = DeathWatch::begin(folder.path(), "reader");
        assert!(!watch.skips(&suspect) && !watch.tries_any());
    }

    #[test]
    fn a_record_is_set_aside_after_it_was_died_of_twice_and_then_alone() {
        let folder = tempfile::tempdir().unwrap();
        let poison = Place::record(&jobs(), 7);
        // The first life notes no record, because none has died before.
        for known in [false, false, false, false, true] {
            let watch = DeathWatch::begin(folder.path(), "reader");
            assert_eq!(watch.skips(&poison), known);
            drop(watch);
            dies_at(folder.path(), &poison);
        }
        let mut watch = DeathWatch::begin(folder.path(), "reader");
        assert!(!watch.skips(&Place::record(&jobs(), 8)) && !watch.skips(&Place::event(7)));
        assert!(watch.skipped(&poison, &jobs(), 7) && !watch.skipped(&poison, &jobs(), 7), "named once");
        watch.saved();
        assert!(!watch.is_careful() && watch.skips(&poison), "for good");
    }

    #[test]
    fn an_orderly_end_is_no_death_and_a_panic_is_one() {
        let folder = tempfile::tempdir().unwrap();
        drop(DeathWatch::begin(folder.path(), "reader"));
        let mut watch = DeathWatch::begin(folder.path(), "reader");
        assert!(!watch.is_careful());
        watch.panicked();
        assert!(watch.is_careful());
        let event = Place::event(0xabc);
        for _ in 0..=MAX_DEATHS {
            assert!(!watch.skips(&event));
            watch.enter(event.clone());
            watch.panicked();
        }
        assert!(watch.skips(&event));
        drop(watch);
        assert!(!DeathWatch::begin(folder.path(), "reader").set_aside().is_empty());
    }

    #[test]
    fn many_records_are_cut_until_one_is_to_blame() {
        let folder = tempfile::tempdir().unwrap();
        let (mut lives, poison) = (0, 77_123);
        let range = |from, to| Place::Records { topic: "jobs".into(), partition: 3, from, to };
        loop {
            lives += 1;
            let mut watch = DeathWatch::begin(folder.path(), "reader");
            let piece = watch.piece(&jobs()).min(100_000) as u64;
            let from = poison / piece * piece;
            let place = range(from, (from + piece).min(100_000));
            if watch.skips(&place) {
                break;
            }
            watch.enter(place);
            std::mem::forget(watch);
        }
        // Unknown, 100,000, 6,250, 391, 25, 2, one twice and then alone.
        assert!(lives <= 10, "{lives}");
        assert!(DeathWatch::begin(folder.path(), "reader").skips(&range(poison, poison + 1)));
    }

    #[test]
    fn what_cannot_be_read_or_written_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("reader.json"), "{").unwrap();
        std::fs::write(folder.path().join("reader.at"), [0xff; 700]).unwrap();
        let watch = DeathWatch::begin(folder.path(), "reader");
        assert!(watch.is_careful() && watch.set_aside().is_empty());
        drop(watch);
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!DeathWatch::begin(&file, "reader").is_careful());
    }
}
