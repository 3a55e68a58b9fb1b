//! The file of a snapshot: magic and version, header as JSON, state compressed, checksum.
//!
//! The checksum covers everything before it and is tested before anything is parsed. Lengths are
//! bounded before they are believed.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::{MAX_STATE_BYTES, Position};
use crate::fault::point;

const MAGIC: &[u8; 6] = b"TGSNAP";
/// Version of this container, after the magic. The layout of the state has a version of its own.
const CONTAINER: u16 = 1;
const MAX_HEADER_BYTES: usize = 4 << 20;
/// Magic, container version, length of the header.
const PREAMBLE: usize = 6 + 2 + 4;
const CHECKSUM: usize = 16;
/// A compressed state may be a little larger than the state.
const MAX_FILE_BYTES: usize =
    PREAMBLE + MAX_HEADER_BYTES + MAX_STATE_BYTES + (MAX_STATE_BYTES >> 6) + CHECKSUM;
/// zstd's fastest level; the state is written every few minutes.
const LEVEL: i32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub kind: String,
    pub subject: String,
    pub version: u32,
    pub saved_ms: i64,
    pub state_bytes: u64,
    pub positions: Vec<Position>,
}

/// Writes a snapshot as `aside`, syncs it, and renames it to `path`: under that name it is whole.
pub(super) fn write(path: &Path, aside: &Path, header: &Header, state: &[u8]) -> std::io::Result<()> {
    let refuse = |what: String| Error::new(ErrorKind::InvalidInput, what);
    if state.len() > MAX_STATE_BYTES {
        return Err(refuse(format!("a state of {} bytes, more than {MAX_STATE_BYTES}", state.len())));
    }
    let header = serde_json::to_vec(header)?;
    if header.len() > MAX_HEADER_BYTES {
        return Err(refuse(format!("positions of {} bytes, more than {MAX_HEADER_BYTES}", header.len())));
    }
    let mut bytes = Vec::with_capacity(PREAMBLE + header.len() + state.len() / 4);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&CONTAINER.to_le_bytes());
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&header);
    zstd::stream::copy_encode(state, &mut bytes, LEVEL)?;
    let checksum = xxh3_128(&bytes).to_le_bytes();
    bytes.extend_from_slice(&checksum);
    let written = (|| {
        let mut file = File::create(aside)?;
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        file.write_all(first)?;
        point("snapshot half written", aside);
        file.write_all(rest)?;
        point("snapshot written", aside);
        file.sync_all()?;
        point("snapshot synced", aside);
        fs::rename(aside, path)?;
        point("snapshot renamed", path);
        match path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    })();
    if written.is_err() && fs::remove_file(aside).is_err() {
        tracing::warn!(file = %aside.display(), "an unfinished snapshot is left; it is deleted in an hour");
    }
    written
}

/// Reads and checks a snapshot; the error says what is wrong with it.
pub(super) fn read(path: &Path) -> Result<(Header, Vec<u8>), String> {
    let bytes = read_bounded(path)?;
    let Some(rest) = bytes.strip_prefix(MAGIC) else { return Err("it is no snapshot".into()) };
    let container = rest.get(..2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    match container {
        Some(CONTAINER) => {}
        Some(newer) if newer > CONTAINER => {
            return Err(format!("its format is version {newer}, this program reads version {CONTAINER}"));
        }
        _ => return Err("it ends after its first bytes, or they are damaged".into()),
    }
    let Some((body, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else {
        return Err("it is cut off".into());
    };
    if xxh3_128(body).to_le_bytes() != *checksum {
        return Err("its checksum is wrong: it is damaged or cut off".into());
    }
    let lacking = || "it lacks its header".to_owned();
    let header_bytes = body.get(8..PREAMBLE).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
    let header_bytes = header_bytes.ok_or_else(lacking)? as usize;
    if header_bytes > MAX_HEADER_BYTES {
        return Err(format!("its header claims {header_bytes} bytes, more than {MAX_HEADER_BYTES}"));
    }
    let (header, state) = body[PREAMBLE..].split_at_checked(header_bytes).ok_or_else(lacking)?;
    let header: Header =
        serde_json::from_slice(header).map_err(|e| format!("its header is not readable: {e}"))?;
    let state = decompress(state, header.state_bytes)?;
    Ok((header, state))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, String> {
    let fail = |e: Error| format!("it cannot be read: {e}");
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if !meta.is_file() {
        return Err("it is no file".into());
    }
    if meta.len() > MAX_FILE_BYTES as u64 {
        return Err(format!("it has {} bytes, more than {MAX_FILE_BYTES}", meta.len()));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(fail)?;
    Ok(bytes)
}

fn decompress(compressed: &[u8], state_bytes: u64) -> Result<Vec<u8>, String> {
    if state_bytes > MAX_STATE_BYTES as u64 {
        return Err(format!("it claims a state of {state_bytes} bytes, more than {MAX_STATE_BYTES}"));
    }
    let broken = |e: Error| format!("its state cannot be decompressed: {e}");
    let mut state = Vec::new();
    // One byte more than claimed, so that a state that is too long is noticed and not read whole.
    let decoder = zstd::Decoder::new(compressed).map_err(broken)?;
    decoder.take(state_bytes + 1).read_to_end(&mut state).map_err(broken)?;
    match state.len() as u64 == state_bytes {
        true => Ok(state),
        false => Err(format!("its state is not the {state_bytes} bytes that it claims")),
    }
}
