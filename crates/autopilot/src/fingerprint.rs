//! Names for inputs: a hash of their JSON bytes.

use std::io::{self, BufWriter, Write};

use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

struct Hashing(Xxh3);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of JSON hashed at once: it is written in pieces of a few bytes, and each call of the hash
/// costs as much as a hundred.
const AT_ONCE: usize = 16 * 1024;

/// Hash of `value` as JSON, 64 bits. What has no JSON (a map with keys that are no text) has none
/// in this crate.
pub(crate) fn fingerprint(value: &impl Serialize) -> u64 {
    let mut hashing = Hashing(Xxh3::new());
    let mut writer = BufWriter::with_capacity(AT_ONCE, &mut hashing);
    serde_json::to_writer(&mut writer, value).expect("plain data has JSON, and a hash takes all bytes");
    writer.flush().expect("a hash takes all bytes");
    drop(writer);
    hashing.0.digest()
}

/// Place of `name` in an order that `seed` shuffles.
pub(crate) fn shuffled(seed: u64, name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), seed)
}
