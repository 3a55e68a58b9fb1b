//! Saved keys: what a start has to know of all keys that ever were, beside their raw table. Without
//! it a start reads the keys and times of all rows.
//!
//! A file is a cache of the table's rows. One that is damaged, or of another version, table or
//! offset, is skipped with a warning; the one before it, or the table, takes its place.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::Lake;
use crate::delta::{DeltaStore, next_checkpoint};
use crate::error::Result;
use crate::state::{GroupState, KnownKeys, SealedKeys};

const FOLDER: &str = "_known_keys";
const SUFFIX: &str = ".keys";
const MAGIC: &[u8; 6] = b"TGKEYS";
/// Format version. Raise it when the filter, the key hash, or the choice of held keys changes. A
/// start skips files of another version and reads the table instead.
pub const VERSION: u16 = 1;
/// Magic, version, length of the header.
const PREAMBLE: usize = 6 + 2 + 4;
const CHECKSUM: usize = 16;
const MAX_HEADER_BYTES: usize = 1 << 20;
/// Half a gigabyte: the keys of a hundred million jobs.
const MAX_FILE_BYTES: usize = 512 << 20;
/// Records between two files of a log partition, at least. A start reads about as many.
const SAVE_AFTER: u64 = 10_000;
/// Records after which a file is written whether or not the raw table has a checkpoint: an import
/// commits many records at once, and few times.
const SAVE_BY: u64 = 100_000;
/// Files kept of each log partition.
const KEPT: usize = 2;

/// By raw table and log partition: offset and version of the raw table of the newest file.
#[derive(Debug, Default)]
pub(super) struct SavedKeys(BTreeMap<(String, u32), (u64, i64)>);

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// Identity of the raw table.
    table: String,
    partition: u32,
    offset: u64,
    /// Version of the raw table.
    version: i64,
    watermarks: Vec<(String, i64)>,
    held: usize,
    held_from: u64,
    /// Keys in each filter.
    counts: Vec<u64>,
}

impl Lake {
    /// Saves the known keys of each partition that is due: at a checkpoint of the raw table, or
    /// [`SAVE_BY`] records after the last save. A failure is logged; the next start then reads more
    /// rows.
    pub(super) async fn save_keys_if_due(&mut self) {
        let is_due = |name: &(String, u32), committed: u64| {
            let (offset, version) = self.saved_keys.0.get(name).copied().unwrap_or((0, -1));
            let now = self.stores[&name.0].version();
            let is_checkpoint = version < 0 || next_checkpoint(&name.0, version + 1) <= now;
            committed >= offset + if is_checkpoint { SAVE_AFTER } else { SAVE_BY }
        };
        let due = self.states.iter().filter(|(name, state)| is_due(name, state.committed));
        for name in due.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.save_keys_of(&name).await;
        }
    }

    /// Saves the known keys of all partitions now. What cannot be saved is logged.
    pub async fn save_keys(&mut self) {
        for name in self.states.keys().cloned().collect::<Vec<_>>() {
            self.save_keys_of(&name).await;
        }
    }

    async fn save_keys_of(&mut self, name: &(String, u32)) {
        let Some(known) = self.states.get_mut(name).and_then(GroupState::known_keys) else { return };
        let store = &self.stores[&name.0];
        let (offset, version) = (known.offset, store.version());
        // Whether or not it works: it is tried again after as many records.
        self.saved_keys.0.insert(name.clone(), (offset, version));
        if let Err(error) = save(store, name.1, known).await {
            let (table, partition) = name;
            tracing::warn!(table, partition, %error, "the known keys cannot be saved: a start reads more rows");
        }
    }

    /// The newest good file of a partition that does not stand after what is committed.
    pub(super) async fn load_keys(&mut self, state: &GroupState) -> Result<Option<KnownKeys>> {
        let name = (state.raw().spec.name.clone(), state.partition);
        let store = &self.stores[&name.0];
        let prefix = prefix(state.partition);
        let files = store.list_beside(FOLDER).await.unwrap_or_else(|error| {
            tracing::warn!(table = name.0, %error, "saved keys cannot be listed");
            Vec::new()
        });
        let own = files.into_iter().filter(|(file, _)| file.starts_with(&prefix) && file.ends_with(SUFFIX));
        for (file, bytes) in own.collect::<Vec<_>>().into_iter().rev() {
            match open(store, state, &file, bytes).await {
                Ok((known, version)) => {
                    self.saved_keys.0.insert(name, (known.offset, version));
                    return Ok(Some(known));
                }
                Err(why) => tracing::warn!(
                    table = name.0,
                    file,
                    "saved keys are skipped: {why}; those saved before are used, or all rows are read"
                ),
            }
        }
        Ok(None)
    }
}

async fn save(store: &DeltaStore, partition: u32, known: KnownKeys) -> Result<()> {
    let (prefix, offset) = (prefix(partition), known.offset);
    let bytes = encode(store.table_id()?, store.version(), partition, &known)?;
    store.write_beside(FOLDER, &format!("{prefix}{offset:020}{SUFFIX}"), bytes).await?;
    let files = store.list_beside(FOLDER).await?;
    let mut kept = 0;
    for (file, _) in files.iter().rev().filter(|(file, _)| file.starts_with(&prefix)) {
        // One that stands later is of a table that was since put back.
        kept += usize::from(offset_of(file, &prefix).is_some_and(|at| at <= offset));
        if kept == 0 || kept > KEPT {
            store.delete_beside(FOLDER, file).await?;
        }
    }
    Ok(())
}

fn prefix(partition: u32) -> String {
    format!("{partition:010}-")
}

fn offset_of(file: &str, prefix: &str) -> Option<u64> {
    file.strip_prefix(prefix)?.strip_suffix(SUFFIX)?.parse().ok()
}

/// Reads a file with the version of the table that it is of; the error says what is wrong with it.
async fn open(
    store: &DeltaStore,
    state: &GroupState,
    file: &str,
    bytes: u64,
) -> Result<(KnownKeys, i64), String> {
    if bytes > MAX_FILE_BYTES as u64 {
        return Err(format!("it has {bytes} bytes, more than {MAX_FILE_BYTES}"));
    }
    let bytes = store.read_beside(FOLDER, file).await.map_err(|e| e.to_string())?;
    let (header, known) = decode(&bytes.ok_or("it is gone")?)?;
    if header.table != store.table_id().map_err(|e| e.to_string())? || header.partition != state.partition {
        return Err("it is of another table".into());
    }
    if known.offset > state.committed {
        return Err(format!("it stands at offset {}, the table at {}", known.offset, state.committed));
    }
    Ok((known, header.version))
}

/// Magic and version, header as JSON, held keys, filters, checksum of all that.
fn encode(table: String, version: i64, partition: u32, known: &KnownKeys) -> Result<Vec<u8>> {
    let header = Header {
        table,
        partition,
        offset: known.offset,
        version,
        watermarks: known.watermarks.clone(),
        held: known.held.len(),
        held_from: known.held_from,
        counts: known.keys.counts(),
    };
    let header = serde_json::to_vec(&header).expect("text and numbers");
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&header);
    known.held.iter().for_each(|key| bytes.extend_from_slice(&key.to_le_bytes()));
    known.keys.write_bits(&mut bytes)?;
    let checksum = xxh3_128(&bytes).to_le_bytes();
    bytes.extend_from_slice(&checksum);
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Result<(Header, KnownKeys), String> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else { return Err("it holds no keys".into()) };
    match rest.first_chunk().map(|two| u16::from_le_bytes(*two)) {
        Some(VERSION) => {}
        Some(other) => return Err(format!("it has version {other}, this program reads version {VERSION}")),
        None => return Err("it is cut off".into()),
    }
    let Some((body, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else {
        return Err("it is cut off".into());
    };
    if xxh3_128(body).to_le_bytes() != *checksum {
        return Err("its checksum is wrong: it is damaged or cut off".into());
    }
    let lacking = || "it lacks its header".to_owned();
    let length = body.get(8..PREAMBLE).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
    let length = length.filter(|length| *length as usize <= MAX_HEADER_BYTES).ok_or_else(lacking)?;
    let (header, rest) = body[PREAMBLE..].split_at_checked(length as usize).ok_or_else(lacking)?;
    let header: Header =
        serde_json::from_slice(header).map_err(|e| format!("its header is not readable: {e}"))?;
    let (held, bits) = (header.held.checked_mul(8).and_then(|bytes| rest.split_at_checked(bytes)))
        .ok_or_else(|| format!("it lacks {} keys", header.held))?;
    let known = KnownKeys {
        offset: header.offset,
        watermarks: header.watermarks.clone(),
        held: held.as_chunks().0.iter().map(|key| i64::from_le_bytes(*key)).collect(),
        held_from: header.held_from,
        keys: SealedKeys::from_bits(&header.counts, bits)?,
    };
    Ok((header, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> KnownKeys {
        let mut keys = SealedKeys::default();
        (0..100).for_each(|key| keys.insert(key));
        let watermarks = vec![("c".to_owned(), 7)];
        KnownKeys { offset: 9, watermarks, held: [3, -4].into_iter().collect(), held_from: 2, keys }
    }

    #[test]
    fn what_is_read_is_what_was_saved() {
        let bytes = encode("t".into(), 5, 1, &known()).expect("bytes");
        let (header, read) = decode(&bytes).expect("keys");
        assert_eq!((header.table.as_str(), header.version, header.partition), ("t", 5, 1));
        assert_eq!((read.offset, read.held_from), (9, 2));
        assert_eq!((read.watermarks, read.held), (known().watermarks, known().held));
        assert!((0..100).all(|key| read.keys.contains(key)) && !read.keys.contains(100));
    }

    #[test]
    fn a_damaged_or_foreign_file_says_what_is_wrong() {
        let bytes = encode("t".into(), 5, 1, &known()).expect("bytes");
        for cut in [0, 5, 7, 11, 40, bytes.len() - 1] {
            assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for place in [8, 20, 400, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            assert!(decode(&damaged).expect_err("damaged").contains("checksum"), "at {place}");
        }
        // A wrong length under a right checksum.
        let mut long = bytes[..bytes.len() - CHECKSUM].to_vec();
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let checksum = xxh3_128(&long).to_le_bytes();
        long.extend_from_slice(&checksum);
        assert!(decode(&long).expect_err("too long").contains("header"));
        let mut newer = bytes.clone();
        newer[6] += 1;
        assert!(decode(&newer).expect_err("newer").contains("version 2"));
    }
}
