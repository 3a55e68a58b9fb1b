//! Rows to bytes, piece by piece: nothing but a drawn table is held as a whole.

mod parquet;

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::cast;
use arrow::csv;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use arrow::json::writer::{ArrayWriter, JsonArray, LineDelimited, LineDelimitedWriter};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches;
use tidegate_text::{shown, shown_lines};

use self::parquet::ParquetEncoder;
use crate::error::QueryError;
use crate::format::Format;
use crate::plain_columns::without_views;
use crate::postgres::rows::PostgresEncoder;
use crate::query::Rows;
use crate::question::Encoding;
use crate::row_width;

/// Most rows of a drawn table: column widths need all of them in memory, and more are not readable.
pub const TABLE_ROWS: usize = 10_000;
/// A drawn table with more text than this is asked for in another format: every cell is as wide as
/// the widest of its column.
const TABLE_BYTES: usize = 32 << 20;
/// Rows are written so many bytes at a time, about, in a format of text.
const PIECE_BYTES: usize = 1 << 20;
/// Rows are written so many bytes at a time in formats of columns, where each piece has a head of
/// its own.
const ARROW_PIECE_BYTES: usize = 8 << 20;
/// The same for clients of Flight, some of which take no message above 4 MiB.
const FLIGHT_PIECE_BYTES: usize = 2 << 20;
/// A row with more is not written.
const ROW_BYTES: usize = 16 << 20;
/// RFC 3339 in UTC; fractions of a second only where there are any.
const TIME: &str = "%Y-%m-%dT%H:%M:%S%.fZ";

/// Rows of a query as bytes of a format.
pub struct Encoded {
    rows: Rows,
    /// What is left of the last batch.
    rest: Option<RecordBatch>,
    encoding: Encoding,
    encoder: Option<Encoder>,
    bytes: Bytes,
    rows_written: u64,
}

impl std::fmt::Debug for Encoded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoded")
            .field("encoding", &self.encoding)
            .field("rows_written", &self.rows_written)
            .finish_non_exhaustive()
    }
}

impl Encoded {
    /// Prepares the encoding of `rows`.
    ///
    /// # Errors
    /// A column's type cannot be written in this format.
    pub fn new(rows: Rows, format: Format) -> Result<Self, QueryError> {
        Self::of(rows, Encoding::Format(format))
    }

    /// The same for what only doors write.
    pub(crate) fn of(rows: Rows, encoding: Encoding) -> Result<Self, QueryError> {
        let bytes = Bytes::default();
        let encoder = Encoder::new(&encoding, rows.schema(), bytes.clone());
        let encoder = Some(encoder.map_err(|e| refused(&encoding, &e))?);
        Ok(Self { rows, rest: None, encoding, encoder, bytes, rows_written: 0 })
    }

    /// The next piece, never empty; `None` after the last one. After an error nothing more comes.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, QueryError> {
        while let Some(mut encoder) = self.encoder.take() {
            let next = self.next_rows().await?;
            let failed = |e: ArrowError| refused(&self.encoding, &e);
            match next {
                Some(batch) => {
                    self.rows_written += batch.num_rows() as u64;
                    match encoder.write(&batch).map_err(failed)? {
                        More::Wanted => self.encoder = Some(encoder),
                        More::Pointless => encoder.finish(true).map_err(failed)?,
                    }
                }
                None => encoder.finish(false).map_err(failed)?,
            }
            let piece = self.bytes.take();
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// So many of the next rows as are written at a time.
    async fn next_rows(&mut self) -> Result<Option<RecordBatch>, QueryError> {
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None => match self.rows.next().await? {
                Some(batch) => batch,
                None => return Ok(None),
            },
        };
        let rows = match self.encoding {
            Encoding::Format(Format::Table) => batch.num_rows(),
            Encoding::Format(Format::Arrow | Format::Parquet) => rows_within(&batch, ARROW_PIECE_BYTES)?,
            Encoding::Flight => rows_within(&batch, FLIGHT_PIECE_BYTES)?,
            Encoding::Format(Format::Json | Format::Jsonl | Format::Csv) | Encoding::Postgres { .. } => {
                rows_within(&batch, PIECE_BYTES)?
            }
        };
        if rows < batch.num_rows() {
            self.rest = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        Ok(Some(batch.slice(0, rows)))
    }

    /// The result of the work, if it is done within the query's time limit.
    pub(crate) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, QueryError> {
        self.rows.in_time(work).await
    }

    /// Rows taken from the query so far.
    pub fn rows_written(&self) -> u64 {
        self.rows_written
    }
}

/// So many of the first rows of a batch that they are no more than `most` bytes; one row at least.
fn rows_within(batch: &RecordBatch, most: usize) -> Result<usize, QueryError> {
    let mut rows = batch.num_rows();
    while rows > 1 && row_width::written_bytes(&batch.slice(0, rows)) > most {
        rows /= 2;
    }
    match rows > 1 || row_width::written_bytes(&batch.slice(0, rows)) <= ROW_BYTES {
        true => Ok(rows),
        false => Err(QueryError::RowTooLarge { most: ROW_BYTES }),
    }
}

fn refused(encoding: &Encoding, error: &ArrowError) -> QueryError {
    QueryError::Encode { format: encoding.name().into(), message: error.to_string() }
}

/// The buffer between encoders and [`Encoded`].
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether an encoder accepts further rows.
enum More {
    Wanted,
    Pointless,
}

enum Encoder {
    Table { batches: Vec<RecordBatch>, rows: usize, out: Bytes },
    Json(ArrayWriter<Bytes>),
    Jsonl(LineDelimitedWriter<Bytes>),
    Csv(Box<csv::Writer<Bytes>>),
    Arrow { schema: SchemaRef, writer: StreamWriter<Bytes> },
    Parquet(Box<ParquetEncoder>),
    Postgres(PostgresEncoder<Bytes>),
}

impl Encoder {
    fn new(encoding: &Encoding, schema: &SchemaRef, out: Bytes) -> Result<Self, ArrowError> {
        let format = match encoding {
            Encoding::Format(format) => *format,
            Encoding::Flight => Format::Arrow,
            Encoding::Postgres { formats } => {
                return PostgresEncoder::new(schema, formats, out).map(Self::Postgres);
            }
        };
        let json = || {
            arrow::json::WriterBuilder::new().with_explicit_nulls(true).with_timestamp_tz_format(TIME.into())
        };
        Ok(match format {
            // The empty batch brings the column names to a result without rows.
            Format::Table => {
                Self::Table { batches: vec![RecordBatch::new_empty(Arc::clone(schema))], rows: 0, out }
            }
            Format::Json => Self::Json(json().build::<_, JsonArray>(out)),
            Format::Jsonl => Self::Jsonl(json().build::<_, LineDelimited>(out)),
            Format::Csv => {
                let mut writer = csv::WriterBuilder::new().with_timestamp_tz_format(TIME.into()).build(out);
                // The header comes with the first batch, and a result without rows has a header
                // too.
                writer.write(&RecordBatch::new_empty(Arc::clone(schema)))?;
                Self::Csv(Box::new(writer))
            }
            Format::Arrow => {
                let schema = without_views(schema);
                Self::Arrow { writer: StreamWriter::try_new(out, &schema)?, schema }
            }
            Format::Parquet => Self::Parquet(Box::new(ParquetEncoder::new(without_views(schema), out)?)),
        })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<More, ArrowError> {
        match self {
            Self::Table { batches, rows, .. } => {
                let room = TABLE_ROWS - *rows;
                batches.push(batch.slice(0, room.min(batch.num_rows())));
                *rows += batch.num_rows();
                // One row past the last one drawn shows that there are more.
                return Ok(if *rows > TABLE_ROWS { More::Pointless } else { More::Wanted });
            }
            Self::Json(writer) => writer.write(batch)?,
            Self::Jsonl(writer) => writer.write(batch)?,
            Self::Csv(writer) => writer.write(batch)?,
            Self::Arrow { schema, writer } => writer.write(&plain(batch, schema)?)?,
            Self::Parquet(encoder) => encoder.write(batch)?,
            Self::Postgres(encoder) => encoder.write(batch)?,
        }
        Ok(More::Wanted)
    }

    /// Writes the end. `cut`: rows were left out.
    fn finish(self, cut: bool) -> Result<(), ArrowError> {
        match self {
            Self::Table { batches, mut out, .. } => {
                let options = FormatOptions::default().with_null("NULL").with_timestamp_tz_format(Some(TIME));
                if row_width::drawn_bytes(&batches) > TABLE_BYTES {
                    return Err(ArrowError::InvalidArgumentError(format!(
                        "drawn, it takes more than {} MiB: cells are as wide as the widest of their column",
                        TABLE_BYTES >> 20
                    )));
                }
                let table = pretty_format_batches(&readable(&batches, &options)?)?;
                writeln!(out, "{table}")?;
                if cut {
                    writeln!(
                        out,
                        "the first {TABLE_ROWS} rows; there are more: use LIMIT, or csv, jsonl or arrow"
                    )?;
                }
                Ok(())
            }
            Self::Json(mut writer) => writer.finish(),
            Self::Jsonl(mut writer) => writer.finish(),
            Self::Csv(_) | Self::Postgres(_) => Ok(()),
            Self::Arrow { mut writer, .. } => writer.finish(),
            Self::Parquet(encoder) => encoder.finish(),
        }
    }
}

/// The cells as text, with control characters escaped: what is drawn goes to a terminal. A line
/// break would draw a cell as several rows, so only plans keep theirs.
fn readable(batches: &[RecordBatch], options: &FormatOptions) -> Result<Vec<RecordBatch>, ArrowError> {
    let is_plan =
        |schema: &Schema| schema.fields().iter().map(|f| f.name().as_str()).eq(["plan_type", "plan"]);
    let escape = |text: &str, plan: bool| match plan {
        true => shown_lines(text).into_owned(),
        false => shown(text).into_owned(),
    };
    let drawn = batches.iter().map(|batch| {
        let plan = is_plan(batch.schema_ref());
        let names = batch.schema_ref().fields().iter().map(|field| shown(field.name()).into_owned());
        let columns = batch.columns().iter().map(|column| {
            let cells = ArrayFormatter::try_new(column.as_ref(), options)?;
            let text = (0..column.len()).map(|row| Ok(escape(&cells.value(row).try_to_string()?, plan)));
            Ok(Arc::new(StringArray::from(text.collect::<Result<Vec<_>, ArrowError>>()?)) as ArrayRef)
        });
        let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
        let fields: Vec<Field> = names.map(|name| Field::new(name, DataType::Utf8, false)).collect();
        RecordBatch::try_new_with_options(
            Arc::new(Schema::new(fields)),
            columns,
            &RecordBatchOptions::new().with_row_count(Some(batch.num_rows())),
        )
    });
    drawn.collect()
}

/// The rows with the types of the schema.
fn plain(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| cast(column, field.data_type()));
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns.collect::<Result<_, _>>()?, &rows)
}
