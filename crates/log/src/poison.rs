//! Records that a reader dies of, and how the next life goes on without them.
//!
//! A reader writes down what it works on, beside its state and before it begins ([`DeathWatch`]). A
//! life that ends in order removes the note. One that finds a note knows that the last life died,
//! and where. After a first death it is careful: it notes each record by itself. A record that it
//! dies of [twice](MAX_DEATHS) is set aside: skipped from then on, named in `dead_letters` and in
//! `tidegate status`.
//!
//! A note is written, not synced: it has to outlive the process, not the machine. What cannot be
//! written stops nothing.

mod hook;
mod note;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_events::v1::{DeadLetter, Envelope};
use tidegate_events::{Event, SchemaId};

use crate::{Batch, EventLog, LogError, Producer, StoredRecord, TopicPartition};
pub use hook::die_for_test;
use note::Note;

/// Deaths at the same record after which it is set aside.
pub const MAX_DEATHS: u32 = 2;
/// Code of the dead letter of a record that was set aside.
pub const CODE: &str = "POISON";
/// Places of deaths that are remembered.
const MAX_PLACES: usize = 64;
/// After a death at many records at once, the next life takes this share of them at a time.
const SHARE: u64 = 16;
/// Bytes of the record in its dead letter.
const RAW_BYTES: usize = 4_096;

/// What a reader works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Something that no single record is to blame for.
    Work,
    /// Records of a partition from one offset to another, which is excluded.
    Records {
        /// Topic.
        topic: String,
        /// Partition.
        partition: u32,
        /// First offset.
        from: u64,
        /// Offset after the last.
        to: u64,
    },
    /// An event that was read before, by its id in hexadecimal.
    Event(String),
    /// A job, by cluster and id: its step reports together.
    Job(String, String),
}

impl Place {
    /// One record.
    pub fn record(at: &TopicPartition, offset: u64) -> Self {
        Self::Records { topic: at.topic.clone(), partition: at.partition, from: offset, to: offset + 1 }
    }

    /// An event by its id.
    pub fn event(id: u128) -> Self {
        Self::Event(format!("{id:032x}"))
    }

    /// Everything of a partition from an offset on, for a reader that skips nothing.
    pub fn all_from(at: &TopicPartition, offset: u64) -> Self {
        Self::Records { topic: at.topic.clone(), partition: at.partition, from: offset, to: u64::MAX }
    }

    fn is_to_blame(&self) -> bool {
        match self {
            Self::Work => false,
            Self::Records { from, to, .. } => to - from == 1,
            Self::Event(_) | Self::Job(..) => true,
        }
    }
}

/// What is set aside, and since when it is known where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// The record, event or job.
    pub place: Place,
    /// Where a record of it was first skipped: topic, partition, offset.
    pub skipped: Option<(String, u32, u64)>,
}

/// What a reader has died of, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deaths {
    /// Deaths since the reader last came to a point that it need not go back behind.
    pub recent: u32,
    /// Where it died, and how often.
    places: VecDeque<(Place, u32)>,
    /// What it skips.
    pub set_aside: Vec<SetAside>,
}

impl Deaths {
    /// Those of a reader; none if it has no readable file.
    pub fn read(folder: &Path, reader: &str) -> Self {
        let text = fs::read(file_of(folder, reader)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Where a reader that skips nothing has died so often that it goes no further: topic,
    /// partition, offset.
    pub fn stopped_at(&self) -> Vec<(&str, u32, u64)> {
        let often = self.places.iter().filter(|(_, times)| *times >= MAX_DEATHS);
        let from = often.filter_map(|(place, _)| match place {
            Place::Records { topic, partition, from, to: u64::MAX } => {
                Some((topic.as_str(), *partition, *from))
            }
            _ => None,
        });
        from.collect()
    }

    fn add(&mut self, place: Place) {
        self.recent += 1;
        let known = self.places.iter_mut().find(|(known, _)| *known == place);
        let times = match known {
            Some((_, times)) => {
                *times += 1;
                *times
            }
            None => {
                self.places.push_back((place.clone(), 1));
                1
            }
        };
        while self.places.len() > MAX_PLACES {
            self.places.pop_front();
        }
        if times >= MAX_DEATHS && place.is_to_blame() && !self.set_aside.iter().any(|it| it.place == place) {
            self.set_aside.push(SetAside { place, skipped: None });
        }
    }
}

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
        if let Some(place) = left {
            own.died_at(place);
        }
        own.enter(Place::Work);
        own
    }

    /// The life that notes here has panicked, and this process begins another one.
    pub fn panicked(&mut self) {
        if let Some(place) = self.note.last() {
            self.died_at(place);
        }
        self.note.write(&Place::Work);
    }

    /// Whether each record is to be noted.
    pub fn is_careful(&self) -> bool {
        self.deaths.recent > 0
    }

    /// Notes the place, if the reader is careful.
    pub fn enter(&mut self, place: Place) {
        if self.is_careful() || place == Place::Work {
            self.note.write(&place);
        }
    }

    /// As many records are taken at once: after a death at many, a part of them.
    pub fn piece(&self, at: &TopicPartition) -> usize {
        let lengths = self.deaths.places.iter().filter_map(|(place, _)| match place {
            Place::Records { topic, partition, from, to }
                if (topic, partition) == (&at.topic, &at.partition) && to - from > 1 =>
            {
                Some((to - from).div_ceil(SHARE))
            }
            _ => None,
        });
        let least = lengths.min().filter(|_| self.is_careful());
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
            "{} died {MAX_DEATHS} times while it worked on this record, and skips it; please report it with its payload, and \
             delete {} once a newer version reads it",
            self.reader,
            file_of(&self.folder, &self.reader).display()
        )
    }

    fn died_at(&mut self, place: Place) {
        let known = self.deaths.set_aside.len();
        tracing::error!(reader = self.reader, ?place, "the last life died here; this one notes each record");
        self.deaths.add(place);
        if let Some(new) = self.deaths.set_aside.get(known) {
            tracing::error!(reader = self.reader, place = ?new.place, "set aside: it died of it {MAX_DEATHS} times");
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

fn file_of(folder: &Path, reader: &str) -> PathBuf {
    folder.join(format!("{reader}.json"))
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
    fn a_record_is_set_aside_after_it_was_died_of_twice() {
        let folder = tempfile::tempdir().unwrap();
        let poison = Place::record(&jobs(), 7);
        // The first life notes no record, because none has died before.
        for known in [false, false, false, true] {
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
        for _ in 0..MAX_DEATHS {
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
        // Unknown, 100,000, 6,250, 391, 25, 2, one twice.
        assert!(lives <= 9, "{lives}");
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
