//! On-disk frame of a spooled record: length u32, xxh3 of the body u64, then the body: seq u64,
//! schema u32, event time i64, key length u32, key, payload. All integers are little-endian.

use bytes::Bytes;
use tidegate_log::Record;
use xxhash_rust::xxh3::xxh3_64;

/// Length and checksum.
const HEAD_BYTES: usize = 12;
/// Fixed part of the body, before the key.
const FIXED_BYTES: usize = 24;
/// Longest valid body; a larger length means damage.
const MAX_BODY_BYTES: usize = FIXED_BYTES + tidegate_log::MAX_RECORD_BYTES;

/// Appends the frame of a record to `out`.
pub(super) fn encode(seq: u64, record: &Record, out: &mut Vec<u8>) {
    let begin = out.len();
    let body_bytes = FIXED_BYTES + record.key.len() + record.payload.len();
    out.extend_from_slice(&(body_bytes as u32).to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&record.schema.to_le_bytes());
    out.extend_from_slice(&record.event_time_ms.to_le_bytes());
    out.extend_from_slice(&(record.key.len() as u32).to_le_bytes());
    out.extend_from_slice(&record.key);
    out.extend_from_slice(&record.payload);
    let check = xxh3_64(&out[begin + HEAD_BYTES..]);
    out[begin + 4..begin + HEAD_BYTES].copy_from_slice(&check.to_le_bytes());
}

/// What a file holds at an offset.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    Record {
        seq: u64,
        record: Record,
        bytes: usize,
    },
    /// End of the file.
    End,
    /// No whole frame, and no frame behind it: a write that was cut off.
    Torn,
    /// A frame whose checksum fails, followed by a whole frame.
    Damaged {
        bytes: usize,
    },
}

/// Reads what `file` holds at offset `at`.
pub(super) fn read_at(file: &Bytes, at: usize) -> Found {
    if at >= file.len() {
        return Found::End;
    }
    match parse(file, at) {
        Some(Parsed { seq, record, bytes, whole: true }) => Found::Record { seq, record, bytes },
        Some(Parsed { bytes, .. }) if parse(file, at + bytes).is_some_and(|next| next.whole) => {
            Found::Damaged { bytes }
        }
        _ => Found::Torn,
    }
}

struct Parsed {
    seq: u64,
    record: Record,
    bytes: usize,
    whole: bool,
}

/// The frame at an offset, if its length is plausible.
fn parse(file: &Bytes, at: usize) -> Option<Parsed> {
    let head = file.get(at..at + HEAD_BYTES)?;
    let (length, check) = (u32::from_le_bytes(array(head, 0)?) as usize, u64::from_le_bytes(array(head, 4)?));
    if !(FIXED_BYTES..=MAX_BODY_BYTES).contains(&length) {
        return None;
    }
    let begin = at + HEAD_BYTES;
    let body = file.get(begin..begin + length)?;
    let key_bytes = u32::from_le_bytes(array(body, 20)?) as usize;
    let whole = xxh3_64(body) == check && FIXED_BYTES + key_bytes <= length;
    let key_end = begin + FIXED_BYTES + key_bytes.min(length - FIXED_BYTES);
    let record = Record {
        key: file.slice(begin + FIXED_BYTES..key_end),
        schema: u32::from_le_bytes(array(body, 8)?),
        event_time_ms: i64::from_le_bytes(array(body, 12)?),
        payload: file.slice(key_end..begin + length),
    };
    Some(Parsed { seq: u64::from_le_bytes(array(body, 0)?), record, bytes: HEAD_BYTES + length, whole })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &'static str) -> Record {
        Record { key: "k".into(), schema: 7, event_time_ms: -5, payload: text.into() }
    }

    fn file() -> Vec<u8> {
        let mut file = Vec::new();
        encode(41, &record("first"), &mut file);
        encode(42, &record("second"), &mut file);
        file
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let file = Bytes::from(file());
        let Found::Record { seq, record: first, bytes } = read_at(&file, 0) else { panic!() };
        assert_eq!((seq, first), (41, record("first")));
        let Found::Record { seq, record: second, bytes: more } = read_at(&file, bytes) else { panic!() };
        assert_eq!((seq, second), (42, record("second")));
        assert_eq!(read_at(&file, bytes + more), Found::End);
    }

    #[test]
    fn a_torn_end_is_told_from_a_flipped_bit() {
        let whole = file();
        let Found::Record { bytes, .. } = read_at(&Bytes::from(whole.clone()), 0) else { panic!() };
        for cut in bytes + 1..whole.len() {
            assert_eq!(read_at(&Bytes::from(whole[..cut].to_vec()), bytes), Found::Torn, "{cut}");
        }
        for byte in 4..bytes {
            let mut flipped = whole.clone();
            flipped[byte] ^= 1;
            assert_eq!(read_at(&Bytes::from(flipped), 0), Found::Damaged { bytes }, "{byte}");
        }
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert_eq!(read_at(&Bytes::from(flipped), bytes), Found::Torn);
    }
}
