//! Finds rows that repeat or contradict earlier rows of a file, in bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Number of distinct rows that are checked; 14 Mi entries take about 220 MiB.
pub(crate) const CHECKED_ROWS: usize = 14 << 20;

/// A hasher that keeps keys unchanged: they are hashes already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, byte| sum.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// How a row compares with earlier rows of the same identity.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RowCheck {
    /// No earlier row has this identity.
    New,
    /// An earlier row gave the same events.
    Repeated,
    /// An earlier row gave other events.
    Conflicting,
}

#[derive(Default)]
pub(crate) struct Duplicates {
    fingerprints: HashMap<u64, u32, BuildHasherDefault<IdentityHasher>>,
    pub(crate) unchecked: u64,
}

impl Duplicates {
    /// Compares the row with the first one of its identity, and remembers it if it is the first.
    pub(crate) fn check(&mut self, identity: u64, fingerprint: u32) -> RowCheck {
        if let Some(first) = self.fingerprints.get(&identity) {
            return if *first == fingerprint { RowCheck::Repeated } else { RowCheck::Conflicting };
        }
        if self.fingerprints.len() >= CHECKED_ROWS {
            self.unchecked += 1;
        } else {
            self.fingerprints.insert(identity, fingerprint);
        }
        RowCheck::New
    }
}
