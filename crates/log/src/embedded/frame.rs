//! The stored form of a batch: a key with its place, and a checksummed frame with its records.
//!
//! Key, 32 bytes, big-endian so that keys sort by offset: base offset u64, count u32, oldest event
//! time i64, newest event time i64, frame length u32. A scan over the keys alone answers "which
//! batch", "how old" and "how large".
//!
//! Frame: version u8, xxh3 of everything after it u64, codec u8, base offset u64, count u32, oldest
//! and newest event time i64, epoch u64, first sequence number u64, body length before compression
//! u32, source length u16, source, body; all little-endian.
//!
//! Body: one column after another, because equal things side by side compress well: schemas and
//! event times as varint differences, key lengths and payload lengths as varints, then all keys,
//! then all payloads.

use std::cell::RefCell;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Producer, Record, StoredRecord};

pub(super) const VERSION: u8 = 1;
const HEADER_BYTES: usize = 60;
const CHECKED_FROM: usize = 9;
const RAW: u8 = 0;
const ZSTD: u8 = 1;
const ZSTD_LEVEL: i32 = 1;
/// Below this a compression context costs more than the bytes it saves.
const COMPRESS_FROM_BYTES: usize = 512;

pub(super) const KEY_BYTES: usize = 32;

/// The fields of a batch's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchHeader {
    pub base: u64,
    pub count: u32,
    pub min_time_ms: i64,
    pub max_time_ms: i64,
    pub frame_bytes: u32,
}

impl BatchHeader {
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.count)
    }

    pub fn to_key(self) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        key[0..8].copy_from_slice(&self.base.to_be_bytes());
        key[8..12].copy_from_slice(&self.count.to_be_bytes());
        key[12..20].copy_from_slice(&self.min_time_ms.to_be_bytes());
        key[20..28].copy_from_slice(&self.max_time_ms.to_be_bytes());
        key[28..32].copy_from_slice(&self.frame_bytes.to_be_bytes());
        key
    }

    pub fn from_key(key: &[u8]) -> Option<Self> {
        let mut key = Reader(key);
        let header = Self {
            base: u64::from_be_bytes(key.array()?),
            count: u32::from_be_bytes(key.array()?),
            min_time_ms: i64::from_be_bytes(key.array()?),
            max_time_ms: i64::from_be_bytes(key.array()?),
            frame_bytes: u32::from_be_bytes(key.array()?),
        };
        (key.0.is_empty() && header.count > 0).then_some(header)
    }
}

/// A batch's records, encoded and compressed, before their offset is assigned.
pub(super) struct Body {
    count: u32,
    min_time_ms: i64,
    max_time_ms: i64,
    raw_bytes: u32,
    codec: u8,
    bytes: Vec<u8>,
}

impl Body {
    /// Encodes at least one record; the caller has checked the limits, so every length fits.
    pub fn encode(records: &[Record]) -> Self {
        let data_bytes: usize = records.iter().map(|r| r.key.len() + r.payload.len()).sum();
        let mut raw = Vec::with_capacity(data_bytes + records.len() * 8);
        let (mut schema, mut time_ms) = (0, 0);
        for record in records {
            put_signed(
                &mut raw,
                i64::from(record.schema) - i64::from(std::mem::replace(&mut schema, record.schema)),
            );
        }
        for record in records {
            let before = std::mem::replace(&mut time_ms, record.event_time_ms);
            put_signed(&mut raw, record.event_time_ms.wrapping_sub(before));
        }
        records.iter().for_each(|r| put_varint(&mut raw, r.key.len() as u64));
        records.iter().for_each(|r| put_varint(&mut raw, r.payload.len() as u64));
        records.iter().for_each(|r| raw.extend_from_slice(&r.key));
        records.iter().for_each(|r| raw.extend_from_slice(&r.payload));
        let times = || records.iter().map(|r| r.event_time_ms);
        let (raw_bytes, (codec, bytes)) = (raw.len() as u32, compress(raw));
        Self {
            count: records.len() as u32,
            min_time_ms: times().min().unwrap_or_default(),
            max_time_ms: times().max().unwrap_or_default(),
            raw_bytes,
            codec,
            bytes,
        }
    }

    /// Size as stored, without the header.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The key and the frame to store, now that the batch has its offset.
    pub fn seal(&self, base: u64, producer: &Producer, first_seq: u64) -> (BatchHeader, Vec<u8>) {
        let source = producer.source.as_bytes();
        let mut frame = Vec::with_capacity(HEADER_BYTES + source.len() + self.bytes.len());
        frame.push(VERSION);
        frame.extend_from_slice(&[0; CHECKED_FROM - 1]);
        frame.push(self.codec);
        frame.extend_from_slice(&base.to_le_bytes());
        frame.extend_from_slice(&self.count.to_le_bytes());
        frame.extend_from_slice(&self.min_time_ms.to_le_bytes());
        frame.extend_from_slice(&self.max_time_ms.to_le_bytes());
        frame.extend_from_slice(&producer.epoch.to_le_bytes());
        frame.extend_from_slice(&first_seq.to_le_bytes());
        frame.extend_from_slice(&self.raw_bytes.to_le_bytes());
        frame.extend_from_slice(&(source.len() as u16).to_le_bytes());
        frame.extend_from_slice(source);
        frame.extend_from_slice(&self.bytes);
        let checksum = xxh3_64(&frame[CHECKED_FROM..]);
        frame[1..CHECKED_FROM].copy_from_slice(&checksum.to_le_bytes());
        let header = BatchHeader {
            base,
            count: self.count,
            min_time_ms: self.min_time_ms,
            max_time_ms: self.max_time_ms,
            frame_bytes: frame.len() as u32,
        };
        (header, frame)
    }
}

/// A batch as it was appended.
pub(crate) struct StoredBatch {
    pub producer: Producer,
    pub first_seq: u64,
    pub records: Vec<StoredRecord>,
}

/// Why a frame cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadFrame {
    Newer(u8),
    Corrupt(&'static str),
}

/// Checks and decodes the frame stored under `header`. Keys and payloads share one allocation.
pub(super) fn decode(header: &BatchHeader, frame: &[u8]) -> Result<StoredBatch, BadFrame> {
    match frame.first() {
        Some(version) if *version > VERSION => return Err(BadFrame::Newer(*version)),
        Some(&VERSION) => {}
        _ => return Err(BadFrame::Corrupt("the batch has no known version")),
    }
    if frame.len() != header.frame_bytes as usize {
        return Err(BadFrame::Corrupt("the batch has another length than its key says"));
    }
    let mut reader = Reader(frame);
    let corrupt = BadFrame::Corrupt("the batch ends inside its header");
    let parsed = (|| {
        reader.array::<1>()?;
        let checksum = u64::from_le_bytes(reader.array()?);
        Some((checksum, xxh3_64(reader.0), parse(&mut reader)?))
    })();
    let (checksum, computed, parsed) = parsed.ok_or(corrupt)?;
    if checksum != computed {
        return Err(BadFrame::Corrupt("the batch's checksum does not match its content"));
    }
    if (parsed.base, parsed.count) != (header.base, header.count)
        || (parsed.min_time_ms, parsed.max_time_ms) != (header.min_time_ms, header.max_time_ms)
    {
        return Err(BadFrame::Corrupt("the batch is stored under another batch's key"));
    }
    let body = decompress(parsed.codec, reader.0, parsed.raw_bytes as usize)
        .ok_or(BadFrame::Corrupt("the batch does not decompress"))?;
    let records = decode_body(header, Bytes::from(body))
        .ok_or(BadFrame::Corrupt("the batch's columns do not add up"))?;
    Ok(StoredBatch { producer: parsed.producer, first_seq: parsed.first_seq, records })
}

struct FrameHeader {
    codec: u8,
    base: u64,
    count: u32,
    min_time_ms: i64,
    max_time_ms: i64,
    producer: Producer,
    first_seq: u64,
    raw_bytes: u32,
}

fn parse(reader: &mut Reader<'_>) -> Option<FrameHeader> {
    let codec = reader.array::<1>()?[0];
    let base = u64::from_le_bytes(reader.array()?);
    let count = u32::from_le_bytes(reader.array()?);
    let min_time_ms = i64::from_le_bytes(reader.array()?);
    let max_time_ms = i64::from_le_bytes(reader.array()?);
    let epoch = u64::from_le_bytes(reader.array()?);
    let first_seq = u64::from_le_bytes(reader.array()?);
    let raw_bytes = u32::from_le_bytes(reader.array()?);
    let source_bytes = u16::from_le_bytes(reader.array()?);
    let source = String::from_utf8(reader.take(source_bytes.into())?.to_vec()).ok()?;
    let producer = Producer { source, epoch };
    Some(FrameHeader { codec, base, count, min_time_ms, max_time_ms, producer, first_seq, raw_bytes })
}

fn decode_body(header: &BatchHeader, body: Bytes) -> Option<Vec<StoredRecord>> {
    let count = header.count as usize;
    let mut reader = Reader(&body);
    let mut schema = 0_i64;
    let schemas: Vec<u32> = (0..count)
        .map(|_| {
            schema = schema.checked_add(reader.signed()?)?;
            u32::try_from(schema).ok()
        })
        .collect::<Option<_>>()?;
    let mut time_ms = 0_i64;
    let times_ms: Vec<i64> = (0..count)
        .map(|_| {
            time_ms = time_ms.wrapping_add(reader.signed()?);
            Some(time_ms)
        })
        .collect::<Option<_>>()?;
    let mut lengths =
        || (0..count).map(|_| usize::try_from(reader.varint()?).ok()).collect::<Option<Vec<_>>>();
    let (key_bytes, payload_bytes) = (lengths()?, lengths()?);
    let all_keys: usize = key_bytes.iter().sum();
    let mut key_at = body.len() - reader.0.len();
    let mut payload_at = key_at + all_keys;
    if payload_at + payload_bytes.iter().sum::<usize>() != body.len() {
        return None;
    }
    let mut records = Vec::with_capacity(count);
    for i in 0..count {
        let key = body.slice(key_at..key_at + key_bytes[i]);
        let payload = body.slice(payload_at..payload_at + payload_bytes[i]);
        key_at += key_bytes[i];
        payload_at += payload_bytes[i];
        let record = Record { key, schema: schemas[i], event_time_ms: times_ms[i], payload };
        records.push(StoredRecord { offset: header.base + i as u64, record });
    }
    Some(records)
}

thread_local! {
    /// Contexts are large to set up; every appending and reading thread keeps its own.
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> =
        RefCell::new(zstd::bulk::Compressor::new(ZSTD_LEVEL).ok());
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> =
        RefCell::new(zstd::bulk::Decompressor::new().ok());
}

/// Compresses where that saves bytes. If the compressor fails, the frame stays uncompressed.
fn compress(raw: Vec<u8>) -> (u8, Vec<u8>) {
    if raw.len() < COMPRESS_FROM_BYTES {
        return (RAW, raw);
    }
    match COMPRESSOR.with_borrow_mut(|c| c.as_mut()?.compress(&raw).ok()) {
        Some(packed) if packed.len() < raw.len() => (ZSTD, packed),
        _ => (RAW, raw),
    }
}

fn decompress(codec: u8, body: &[u8], raw_bytes: usize) -> Option<Vec<u8>> {
    match codec {
        RAW if body.len() == raw_bytes => Some(body.to_vec()),
        ZSTD => {
            let raw = DECOMPRESSOR.with_borrow_mut(|d| d.as_mut()?.decompress(body, raw_bytes).ok())?;
            (raw.len() == raw_bytes).then_some(raw)
        }
        _ => None,
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Zigzag: small differences of either sign become small numbers.
fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// A cursor over bytes; every method returns `None` when they end too early.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(head)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
mod tests;
