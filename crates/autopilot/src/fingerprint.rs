//! Fingerprints of inputs: a 64-bit hash of their JSON.

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

/// Bytes hashed per call. JSON is written a few bytes at a time, and a call of the hash costs as
/// much as hashing a hundred bytes.
const AT_ONCE: usize = 16 * 1024;

/// 64-bit hash of `value` as JSON.
///
/// # Panics
/// If `value` has no JSON form, such as a map with keys that are not text. This crate has none.
pub(crate) fn fingerprint(value: &impl Serialize) -> u64 {
    let mut hashing = Hashing(Xxh3::new());
    let mut writer = BufWriter::with_capacity(AT_ONCE, &mut hashing);
    serde_json::to_writer(&mut writer, value).expect("plain data has JSON, and a hash takes all bytes");
    writer.flush().expect("a hash takes all bytes");
    drop(writer);
    hashing.0.digest()
}

/// Position of `name` in an order shuffled by `seed`.
pub(crate) fn shuffled(seed: u64, name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), seed)
}
