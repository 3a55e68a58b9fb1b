//! Which rows of a file say the same thing twice, and which contradict each other, in bounded
//! memory.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Rows beyond this many different ones are not checked against each other: 14 Mi entries take
/// about 220 MiB.
pub(crate) const CHECKED_ROWS: usize = 14 << 20;

/// The keys are hashes already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
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

/// What an earlier row with the same identity says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    New,
    /// The same.
    Equal,
    /// Something else.
    Different,
}

#[derive(Default)]
pub(crate) struct Duplicates {
    fingerprints: HashMap<u64, u32, BuildHasherDefault<AsIs>>,
    pub(crate) unchecked: u64,
}

impl Duplicates {
    /// Compares with the first row of the identity and remembers it if this is the first.
    pub(crate) fn check(&mut self, identity: u64, fingerprint: u32) -> Seen {
        if let Some(first) = self.fingerprints.get(&identity) {
            return if *first == fingerprint { Seen::Equal } else { Seen::Different };
        }
        if self.fingerprints.len() >= CHECKED_ROWS {
            self.unchecked += 1;
        } else {
            self.fingerprints.insert(identity, fingerprint);
        }
        Seen::New
    }
}
