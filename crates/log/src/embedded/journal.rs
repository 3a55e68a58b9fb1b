//! Checks the store's journals before the store replays them.
//!
//! The store replays a journal up to the first entry that it cannot decode and cuts the rest off,
//! and refuses to open over a commit whose checksum is wrong. Both are wrong for a log: a flipped
//! bit in the middle would cost every commit after it, and a power cut in the middle of the last
//! write would cost the whole log. Every commit here is fsynced before the next one is written, so
//! a bad one is torn only if nothing follows it. Then it was never acknowledged and is cut off;
//! anything else is damage and stays untouched.
//!
//! A commit in a journal of store format 3, little-endian: start tag 1, item count u32, sequence
//! number u64; per item tag 2, value type u8, compression u8, keyspace u64, key length u16, value
//! length u32, stored value length u32, key, value; end tag 3, xxh3 of the items u64, `FJL\x03`.
//! Preallocated space follows as zeros.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::frame::Reader;
use crate::LogError;

const END_OF_COMMIT: &[u8] = b"FJL\x03";
/// Compared in pieces, because most of a journal's 64 MiB is usually preallocated and empty.
const ZEROS: [u8; 4096] = [0; 4096];
const CLEAR_BYTES: usize = 8;

/// Rejects a store with a damaged journal and truncates a torn last commit. The store must not be
/// open.
pub(super) fn check(log_dir: &Path, store_dir: &Path) -> Result<(), LogError> {
    let io = |e| LogError::io(log_dir, format!("checking the journals in {}", store_dir.display()), e);
    let journals = journals(store_dir).map_err(io)?;
    for (i, path) in journals.iter().enumerate() {
        let bytes = fs::read(path).map_err(io)?;
        let mut whole = 0;
        while let Some(commit) = commit_bytes(&bytes[whole..]) {
            whole += commit;
        }
        let rest = &bytes[whole..];
        if rest.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()]) {
            continue;
        }
        let sealed = i + 1 < journals.len();
        if sealed || holds_a_commit(rest) {
            let what =
                format!("{} is damaged at byte {whole}, before commits that are whole", path.display());
            return Err(LogError::CorruptStore { dir: log_dir.to_path_buf(), what });
        }
        tracing::warn!(journal = %path.display(), byte = whole, "cutting off a commit that was never finished");
        let journal = File::options().write(true).open(path).map_err(io)?;
        journal.set_len(whole as u64).and_then(|()| journal.sync_all()).map_err(io)?;
    }
    Ok(())
}

/// Oldest first; only the last one is written to.
fn journals(store_dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(store_dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut journals: Vec<(u64, PathBuf)> = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".jnl")?.parse().ok());
        journals.extend(number.map(|number| (number, path)));
    }
    journals.sort();
    Ok(journals.into_iter().map(|(_, path)| path).collect())
}

/// Length of the commit at the beginning of `bytes`, if it is whole.
fn commit_bytes(bytes: &[u8]) -> Option<usize> {
    let mut reader = Reader(bytes);
    let [1] = reader.array()? else { return None };
    let items = u32::from_le_bytes(reader.array()?);
    let _sequence_number: [u8; 8] = reader.array()?;
    let before_items = reader.0;
    for _ in 0..items {
        match reader.array()? {
            [2] => {
                let _type_compression_keyspace: [u8; 10] = reader.array()?;
                let key_bytes = u16::from_le_bytes(reader.array()?);
                let _value_bytes: [u8; 4] = reader.array()?;
                let stored_bytes = u32::from_le_bytes(reader.array()?);
                reader.take(usize::from(key_bytes) + stored_bytes as usize)?;
            }
            [4] => drop(reader.take(CLEAR_BYTES)?),
            _ => return None,
        }
    }
    let items = &before_items[..before_items.len() - reader.0.len()];
    let [3] = reader.array()? else { return None };
    let checksum = u64::from_le_bytes(reader.array()?);
    let whole = reader.take(END_OF_COMMIT.len())? == END_OF_COMMIT && checksum == xxh3_64(items);
    whole.then_some(bytes.len() - reader.0.len())
}

/// Whether a complete commit begins anywhere after the first one.
fn holds_a_commit(bytes: &[u8]) -> bool {
    let ends = bytes.windows(END_OF_COMMIT.len()).enumerate().filter(|(_, window)| *window == END_OF_COMMIT);
    ends.map(|(end, window)| end + window.len()).any(|next| commit_bytes(&bytes[next..]).is_some())
}
