//! What a reader has died of, as it is stored.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::MAX_DEATHS;
use crate::TopicPartition;

/// Places of deaths that are remembered.
const MAX_PLACES: usize = 64;
/// After a death at many records at once, the next life takes this share of them at a time.
const SHARE: u64 = 16;

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

    /// Whether it is one record, event or job.
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

    /// Adds a death. One at a place that the reader [tried alone](Self::is_suspect) convicts it.
    pub(super) fn add(&mut self, place: Place, was_alone: bool) {
        self.recent += 1;
        match self.places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, times)) => *times += 1,
            None => self.places.push_back((place.clone(), 1)),
        }
        while self.places.len() > MAX_PLACES {
            self.places.pop_front();
        }
        if was_alone && place.is_to_blame() && !self.is_set_aside(&place) {
            self.set_aside.push(SetAside { place, skipped: None });
        }
    }

    /// Whether the reader died there so often that it tries the record, event or job alone.
    pub(super) fn is_suspect(&self, place: &Place) -> bool {
        let died_often = |(known, times): &(Place, u32)| known == place && *times >= MAX_DEATHS;
        place.is_to_blame() && self.places.iter().any(died_often)
    }

    /// Whether anything is to be tried alone.
    pub(super) fn has_suspects(&self) -> bool {
        let waits = |(place, _): &(Place, u32)| self.is_suspect(place) && !self.is_set_aside(place);
        self.places.iter().any(waits)
    }

    pub(super) fn is_set_aside(&self, place: &Place) -> bool {
        self.set_aside.iter().any(|it| it.place == *place)
    }

    /// Records of a partition that are to be tried alone.
    pub(super) fn suspects(&self, at: &TopicPartition) -> Vec<u64> {
        let suspects = self.places.iter().filter(|(place, _)| self.is_suspect(place));
        let offsets = suspects.filter_map(|(place, _)| match place {
            Place::Records { topic, partition, from, .. }
                if (topic, partition) == (&at.topic, &at.partition) =>
            {
                Some(*from)
            }
            _ => None,
        });
        offsets.filter(|offset| !self.is_set_aside(&Place::record(at, *offset))).collect()
    }

    /// The reader lived through it alone.
    pub(super) fn acquit(&mut self, place: &Place) {
        self.places.retain(|(known, _)| known != place);
    }

    /// After a death at many records of a partition: how many of them to take at once.
    pub(super) fn piece(&self, at: &TopicPartition) -> Option<u64> {
        let lengths = self.places.iter().filter_map(|(place, _)| match place {
            Place::Records { topic, partition, from, to }
                if (topic, partition) == (&at.topic, &at.partition) && to - from > 1 =>
            {
                Some((to - from).div_ceil(SHARE))
            }
            _ => None,
        });
        lengths.min()
    }
}

/// File of a reader's deaths.
pub(super) fn file_of(folder: &Path, reader: &str) -> PathBuf {
    folder.join(format!("{reader}.json"))
}
