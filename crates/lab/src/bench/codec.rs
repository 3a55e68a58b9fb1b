//! `tidegate bench codec`: compares encodings of events.
//!
//! Writes the same seeded rows as Protobuf, Avro and Arrow IPC messages, reads them back as flat
//! Arrow batches, and reports rows per core second and bytes per row. Decoding ends with Arrow,
//! where pipelines begin, so a format gains nothing by deferring work. The choice of formats rests
//! on these figures.

mod formats;
pub(super) mod gpu;
mod job;

use std::time::Duration;

use arrow::{array::RecordBatch, error::ArrowError};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use formats::Codec;

/// Runs over all rows; figures are medians.
const REPETITIONS: usize = 5;
/// Compression level of the log.
const ZSTD_LEVEL: i32 = 1;

/// Figures of one run, in the order of measurement.
#[derive(Debug, Clone, Serialize)]
pub struct CodecReport {
    pub seed: u64,
    pub repetitions: usize,
    pub figures: Vec<CodecFigure>,
}

/// One encoding of one topic. A row is one sample of one GPU with all metrics, or one job event.
#[derive(Debug, Clone, Serialize)]
pub struct CodecFigure {
    pub topic: &'static str,
    pub format: &'static str,
    pub compression: Compression,
    pub rows: usize,
    pub messages: usize,
    pub bytes_per_row: f64,
    /// Rows per second of CPU time, from the producer's memory to the compressed message, on one
    /// thread.
    pub encode_rows_per_core_s: f64,
    /// From the compressed message to a flat Arrow batch of some thousand rows.
    pub decode_rows_per_core_s: f64,
}

/// Unit of compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    None,
    /// Each message on its own, by its producer.
    ZstdPerMessage,
    /// All messages of a group together, as the log compresses a batch.
    ZstdPerBatch,
}

/// Measures all encodings on `scale` groups of rows: 8,000 GPU samples in 100 messages, and 1,000
/// job events.
///
/// # Errors
/// [`ArrowError`] if an encoding does not read back, which is a defect of the bench.
pub fn run(seed: u64, scale: usize) -> Result<CodecReport, ArrowError> {
    use Compression::{None, ZstdPerBatch, ZstdPerMessage};
    let mut figures = Vec::new();

    let groups: Vec<_> = (0..scale as u64).map(|group| gpu::generate(seed, group)).collect();
    for (format, codec) in &mut gpu::codecs()? {
        for compression in [None, ZstdPerMessage, ZstdPerBatch] {
            // Compressing single rows is pointless.
            if *format != gpu::AVRO_ROWS || compression != ZstdPerMessage {
                figures.push(measure("gpu-samples", format, codec.as_mut(), compression, &groups)?);
            }
        }
    }
    let groups: Vec<_> = (0..scale as u64).map(|group| job::generate(seed, group)).collect();
    for (format, codec) in &mut job::codecs()? {
        for compression in [None, ZstdPerBatch] {
            figures.push(measure("jobs", format, codec.as_mut(), compression, &groups)?);
        }
    }
    Ok(CodecReport { seed, repetitions: REPETITIONS, figures })
}

fn measure<T>(
    topic: &'static str,
    format: &'static str,
    codec: &mut dyn Codec<T>,
    compression: Compression,
    groups: &[Vec<T>],
) -> Result<CodecFigure, ArrowError> {
    let (mut encode_s, mut decode_s) = (Vec::new(), Vec::new());
    let (mut rows, mut messages, mut bytes) = (0, 0, 0);
    for _ in 0..REPETITIONS {
        let begin_s = thread_cpu_s()?;
        let mut encoded = Vec::new();
        for group in groups {
            let group_messages = codec.encode(group)?;
            encoded.push((group_messages.len(), pack(compression, group_messages)?));
        }
        let middle_s = thread_cpu_s()?;
        rows = 0;
        for (_, packed) in &encoded {
            rows += decode(codec, compression, packed)?.num_rows();
        }
        encode_s.push(middle_s - begin_s);
        decode_s.push(thread_cpu_s()? - middle_s);
        messages = encoded.iter().map(|(count, _)| count).sum();
        bytes = encoded.iter().flat_map(|(_, packed)| packed).map(Vec::len).sum();
    }
    Ok(CodecFigure {
        topic,
        format,
        compression,
        rows,
        messages,
        bytes_per_row: bytes as f64 / rows as f64,
        encode_rows_per_core_s: rows as f64 / median(encode_s),
        decode_rows_per_core_s: rows as f64 / median(decode_s),
    })
}

/// Compresses messages, or frames them as a log's batch (length before each) and compresses that.
fn pack(compression: Compression, messages: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, ArrowError> {
    match compression {
        Compression::None => Ok(messages),
        Compression::ZstdPerMessage => messages.iter().map(|message| compress(message)).collect(),
        Compression::ZstdPerBatch => {
            let mut batch = Vec::with_capacity(messages.iter().map(|message| message.len() + 4).sum());
            for message in messages {
                batch.extend_from_slice(&(message.len() as u32).to_le_bytes());
                batch.extend_from_slice(&message);
            }
            Ok(vec![compress(&batch)?])
        }
    }
}

fn decode<T>(
    codec: &mut dyn Codec<T>,
    compression: Compression,
    packed: &[Vec<u8>],
) -> Result<RecordBatch, ArrowError> {
    let unpacked: Vec<Vec<u8>>;
    let messages = match compression {
        Compression::None => packed.iter().map(Vec::as_slice).collect(),
        Compression::ZstdPerMessage => {
            unpacked = packed.iter().map(|message| decompress(message)).collect::<Result<_, _>>()?;
            unpacked.iter().map(Vec::as_slice).collect()
        }
        Compression::ZstdPerBatch => {
            unpacked = packed.iter().map(|batch| decompress(batch)).collect::<Result<_, _>>()?;
            unpacked.iter().flat_map(|batch| framed(batch)).collect::<Vec<_>>()
        }
    };
    codec.decode(&messages)
}

/// The messages of a batch that [`pack`] framed.
fn framed(mut batch: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = batch.split_first_chunk()?;
        let (message, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        batch = rest;
        Some(message)
    })
}

/// Puts the size into the frame header, so that [`decompress`] allocates once.
fn compress(bytes: &[u8]) -> Result<Vec<u8>, ArrowError> {
    Ok(zstd::bulk::compress(bytes, ZSTD_LEVEL)?)
}

fn decompress(bytes: &[u8]) -> Result<Vec<u8>, ArrowError> {
    let size = zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten();
    let size = size.ok_or_else(|| ArrowError::ParseError("zstd frame without its size".into()))?;
    Ok(zstd::bulk::decompress(bytes, size as usize)?)
}

/// CPU time of this thread. On many kernels `getrusage` has only the resolution of a scheduler
/// tick, some milliseconds.
fn thread_cpu_s() -> Result<f64, ArrowError> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_err(std::io::Error::from)?;
    Ok(Duration::from(time).as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use arrow::compute::cast;
    use arrow::datatypes::DataType;

    use super::formats::NamedCodecs;
    use super::*;

    /// Label columns as plain strings: formats differ in how they hold repeated labels.
    fn plain(batch: &RecordBatch) -> Vec<arrow::array::ArrayRef> {
        let plain = |column: &arrow::array::ArrayRef| match column.data_type() {
            DataType::Dictionary(..) => cast(column, &DataType::Utf8).unwrap(),
            _ => column.clone(),
        };
        batch.columns().iter().map(plain).collect()
    }

    fn every_codec_reads_back<T>(codecs: NamedCodecs<T>, items: &[T], expected: &RecordBatch) {
        for (format, mut codec) in codecs {
            for compression in [Compression::None, Compression::ZstdPerMessage, Compression::ZstdPerBatch] {
                let packed = pack(compression, codec.encode(items).unwrap()).unwrap();
                let actual = decode(codec.as_mut(), compression, &packed).unwrap();
                assert_eq!(plain(&actual), plain(expected), "{format} {compression:?}");
            }
        }
    }

    #[test]
    fn gpu_samples_read_back() {
        let items = gpu::generate(7, 0);
        let expected = gpu::flat(&items, gpu::Labels::Plain).unwrap();
        assert_eq!(expected.num_rows(), 8_000);
        every_codec_reads_back(gpu::codecs().unwrap(), &items, &expected);
    }

    #[test]
    fn jobs_read_back() {
        let items = job::generate(7, 0);
        let expected = job::flat(&items).unwrap();
        assert_eq!(expected.num_rows(), 1_000);
        every_codec_reads_back(job::codecs().unwrap(), &items, &expected);
    }

    #[test]
    fn rows_depend_on_the_seed_alone() {
        assert_eq!(job::generate(7, 3), job::generate(7, 3));
        assert_ne!(job::generate(7, 3), job::generate(8, 3));
        assert_ne!(job::generate(7, 3), job::generate(7, 4));
        let gpu = |seed, group| gpu::flat(&gpu::generate(seed, group), gpu::Labels::Plain).unwrap();
        assert_eq!(gpu(7, 1), gpu(7, 1));
        assert_ne!(gpu(7, 1), gpu(8, 1));
    }

    #[test]
    fn figures_are_of_all_rows() {
        let groups = [job::generate(7, 0), job::generate(7, 1)];
        let mut protobuf = job::codecs().unwrap().swap_remove(0).1;
        let mut figure =
            |compression| measure("jobs", "protobuf", protobuf.as_mut(), compression, &groups).unwrap();
        let (raw, packed) = (figure(Compression::None), figure(Compression::ZstdPerBatch));
        assert_eq!((raw.rows, raw.messages), (2_000, 2_000));
        let bytes: usize = groups.iter().flatten().map(prost::Message::encoded_len).sum();
        assert_eq!(raw.bytes_per_row, bytes as f64 / 2_000.0);
        assert!(packed.bytes_per_row < raw.bytes_per_row / 2.0, "jobs repeat themselves");
        assert!(raw.encode_rows_per_core_s > 1.0 && raw.decode_rows_per_core_s > 1.0);
    }
}
