//! Data files: encoding and statistics.

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Schema};
use chrono::{DateTime, SecondsFormat, Utc};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnPath;

use crate::raw::samples::metrics::COUNTERS;
use crate::table::{EVENT, KEY, Layout, OFFSET, REVISION, TableSpec};

/// Rows per row group: enough to compress well, few enough to prune.
const ROWS_PER_GROUP: usize = 256 * 1024;

/// What is known of the rows of a file before it is written.
#[derive(Debug, Clone, Default)]
pub struct FileRows {
    /// Columns without a value. They are not compressed: setting up a compressor costs more than
    /// hundreds of small files of them are worth.
    pub empty: Vec<String>,
    /// Samples: devices have so few rows each that most differences between neighbours are those
    /// from one device to the next.
    pub short_runs: bool,
}

impl FileRows {
    /// Of rows that are all there.
    pub(super) fn of(schema: &Schema, batches: &[RecordBatch]) -> Self {
        let is_empty =
            |place: usize| batches.iter().all(|batch| batch.column(place).null_count() == batch.num_rows());
        let fields = schema.fields().iter().enumerate();
        let empty = fields.filter(|(place, _)| is_empty(*place)).map(|(_, field)| field.name().clone());
        Self { empty: empty.collect(), short_runs: false }
    }
}

/// Writer properties of a table's files. Samples and partial aggregates have their own, see
/// [`sample_properties`].
///
/// Compression is zstd, but Snappy for windows: their files are small and many, and setting up zstd
/// costs more than it saves. Text is dictionary-encoded, except key columns, whose neighbours share
/// prefixes instead of repeating. Integers are delta-encoded, except hashes, which do not compress.
/// Only key text has statistics: they cost a comparison per value, and no query prunes by other
/// text.
pub(super) fn writer_properties(spec: &TableSpec, rows: &FileRows) -> WriterProperties {
    let compression = match spec.layout {
        Layout::Windowed if spec.partials.is_empty() => Compression::SNAPPY,
        _ => Compression::ZSTD(ZstdLevel::try_new(1).expect("level 1 is valid")),
    };
    let mut properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(ROWS_PER_GROUP));
    for name in &rows.empty {
        properties =
            properties.set_column_compression(ColumnPath::from(name.as_str()), Compression::UNCOMPRESSED);
    }
    if spec.layout == Layout::Samples || !spec.partials.is_empty() {
        return sample_properties(spec, rows, properties).build();
    }
    for field in spec.file_schema().fields() {
        let path = ColumnPath::from(field.name().as_str());
        let names_rows =
            spec.layout != Layout::Windowed && spec.key.iter().skip(1).any(|k| k == field.name());
        properties = match field.data_type() {
            DataType::Int64 | DataType::Int32 | DataType::Timestamp(..) => {
                let hash = matches!(field.name().as_str(), KEY | EVENT);
                let encoding = if hash { Encoding::PLAIN } else { Encoding::DELTA_BINARY_PACKED };
                properties
                    .set_column_dictionary_enabled(path.clone(), false)
                    .set_column_encoding(path, encoding)
            }
            DataType::Utf8View if names_rows => properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BYTE_ARRAY),
            _ => properties.set_column_statistics_enabled(path, EnabledStatistics::None),
        };
    }
    properties.build()
}

/// Rows of a device are adjacent, so text is a dictionary with long runs.
///
/// Most numbers are noise around a level that differs from device to device. Split into streams of
/// bytes, their upper bytes repeat and their lower ones do not: zstd does best with that, and a
/// step from one device to the next costs nothing. Only what counts up is smaller as differences,
/// as long as there are enough rows of a device: each step widens 256 differences.
///
/// Columns that queries select by have statistics: device, time, offset, and counts and codes that
/// are rarely other than zero. For other metrics statistics would cost a comparison per value and
/// prune nothing.
fn sample_properties(
    spec: &TableSpec,
    rows: &FileRows,
    mut properties: WriterPropertiesBuilder,
) -> WriterPropertiesBuilder {
    let samples = spec.layout == Layout::Samples;
    for field in spec.file_schema().fields() {
        let (name, path) = (field.name().as_str(), ColumnPath::from(field.name().as_str()));
        let counts_up = match samples {
            true => {
                matches!(name, OFFSET | "seq" | "epoch" | "event_time")
                    || (COUNTERS.contains(&name) && !rows.short_runs)
            }
            false => matches!(field.data_type(), DataType::Timestamp(..)) || name == REVISION,
        };
        let encoding = match name {
            // An event's hash repeats over a run of rows and jumps to the next one, so it keeps its
            // dictionary. A node's hash repeats for longer.
            EVENT => None,
            KEY => Some(Encoding::PLAIN),
            _ if *field.data_type() == DataType::Utf8View => None,
            _ if counts_up => Some(Encoding::DELTA_BINARY_PACKED),
            _ => Some(Encoding::BYTE_STREAM_SPLIT),
        };
        if let Some(encoding) = encoding {
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path.clone(), encoding);
        }
        let picked_by = match samples {
            true => {
                matches!(name, "node" | "gpu_uuid" | "event_time" | "xid_code" | OFFSET)
                    || name.ends_with("_count")
            }
            false => spec.key.iter().any(|key| key == name),
        };
        if !picked_by {
            properties = properties.set_column_statistics_enabled(path, EnabledStatistics::None);
        }
    }
    properties
}

/// Delta file statistics as JSON: row count, and minimum and maximum of integer and time columns,
/// taken from Parquet's own statistics.
pub(super) fn statistics(written: &ParquetMetaData, schema: &Schema) -> String {
    let (mut smallest, mut largest) = (serde_json::Map::new(), serde_json::Map::new());
    for (index, field) in schema.fields().iter().enumerate() {
        let ranges: Option<Vec<(i64, i64)>> = written
            .row_groups()
            .iter()
            .filter(|group| group.column(index).statistics().is_none_or(|s| !all_null(s, group.num_rows())))
            .map(|group| range(group.column(index).statistics()?))
            .collect();
        let Some(ranges) = ranges else { continue };
        let (low, high) = (ranges.iter().map(|r| r.0).min(), ranges.iter().map(|r| r.1).max());
        if let Some((low, high)) = low.zip(high) {
            smallest.insert(field.name().clone(), statistic(field.data_type(), low));
            largest.insert(field.name().clone(), statistic(field.data_type(), high));
        }
    }
    let rows = written.file_metadata().num_rows();
    serde_json::json!({ "numRecords": rows, "minValues": smallest, "maxValues": largest, "nullCount": {} })
        .to_string()
}

fn all_null(statistics: &Statistics, rows: i64) -> bool {
    statistics.null_count_opt() == Some(rows as u64)
}

fn range(statistics: &Statistics) -> Option<(i64, i64)> {
    match statistics {
        Statistics::Int64(s) => s.min_opt().copied().zip(s.max_opt().copied()),
        Statistics::Int32(s) => {
            s.min_opt().map(|low| i64::from(*low)).zip(s.max_opt().map(|high| i64::from(*high)))
        }
        _ => None,
    }
}

fn statistic(data_type: &DataType, value: i64) -> serde_json::Value {
    let time = || DateTime::<Utc>::from_timestamp_micros(value);
    match data_type {
        DataType::Timestamp(..) => time().map(|t| t.to_rfc3339_opts(SecondsFormat::Micros, true)).into(),
        _ => value.into(),
    }
}
