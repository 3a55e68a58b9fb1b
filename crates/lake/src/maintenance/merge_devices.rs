//! Merges rows of samples from several files, each sorted by device.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBufferBuilder, Int64Array, RecordBatch, TimestampMicrosecondArray,
    UInt32Array, new_null_array,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::{interleave, take_record_batch};
use arrow::datatypes::{DataType, Int64Type, SchemaRef, TimeUnit, TimestampMicrosecondType};

use crate::error::Result;
use crate::table::OFFSET;

/// Columns by which files are sorted, before their time.
const DEVICE: [&str; 4] = ["cluster", "node", "gpu_uuid", "mig_uuid"];

/// The rows of one file that are still to be merged.
pub(super) struct Input {
    rows: Box<dyn Iterator<Item = Result<RecordBatch>> + Send>,
    /// `None` at the end.
    batch: Option<RecordBatch>,
    /// The next row of the batch.
    at: usize,
}

impl Input {
    /// Rows read from a file at a time.
    pub const ROWS: usize = 4 * 1024;

    pub fn new(rows: impl Iterator<Item = Result<RecordBatch>> + Send + 'static) -> Result<Self> {
        let mut input = Self { rows: Box::new(rows), batch: None, at: 0 };
        input.advance()?;
        Ok(input)
    }

    fn advance(&mut self) -> Result<()> {
        self.at = 0;
        self.batch = None;
        for batch in self.rows.by_ref() {
            let batch = batch?;
            if batch.num_rows() > 0 {
                self.batch = Some(batch);
                break;
            }
        }
        Ok(())
    }

    /// The device of the next row.
    fn device(&self) -> Option<[&str; 4]> {
        Some(device(self.batch.as_ref()?, self.at))
    }

    /// Takes the next rows of a batch as long as they are of the device.
    fn take(&mut self, of: &[String; 4]) -> Result<Option<(RecordBatch, Range<usize>)>> {
        let Some(batch) = &self.batch else { return Ok(None) };
        let from = self.at;
        // Files are sorted, so the device's rows end where another one's begin.
        let (mut low, mut high) = (from, batch.num_rows());
        while low < high {
            let middle = low + (high - low) / 2;
            match device(batch, middle) == *of {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        if low == from {
            return Ok(None);
        }
        let taken = (batch.clone(), from..low);
        self.at = low;
        if low == taken.0.num_rows() {
            self.advance()?;
        }
        Ok(Some(taken))
    }
}

fn device(batch: &RecordBatch, row: usize) -> [&str; 4] {
    DEVICE.map(|name| {
        let column = batch.column_by_name(name).expect("a label of samples").as_string_view();
        if column.is_valid(row) { column.value(row) } else { "" }
    })
}

/// Iterator over the rows of several inputs, in order of device and time. All rows of a device are
/// in one batch.
pub(super) struct MergedRows {
    schema: SchemaRef,
    inputs: Vec<Input>,
    devices: usize,
    failed: bool,
}

/// Rows of a batch.
type Part = (RecordBatch, Range<usize>);

impl MergedRows {
    /// Rows of a batch, about.
    const ROWS: usize = 8 * 1024;

    pub fn new(schema: SchemaRef, inputs: Vec<Input>) -> Self {
        Self { schema, inputs, devices: 0, failed: false }
    }

    /// Devices seen so far.
    pub fn devices(&self) -> usize {
        self.devices
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let (mut parts, mut rows) = (Vec::new(), 0);
        while rows < Self::ROWS {
            let next = self.inputs.iter().filter_map(Input::device).min();
            let Some(next) = next.map(|device| device.map(str::to_owned)) else { break };
            let begin = parts.len();
            self.devices += 1;
            for input in &mut self.inputs {
                while let Some(part) = input.take(&next)? {
                    rows += part.1.len();
                    parts.push(part);
                }
            }
            self.inputs.retain(|input| input.batch.is_some());
            if !are_in_order(&parts[begin..]) {
                let merged = sorted_by_time(&self.schema, &parts[begin..])?;
                parts.truncate(begin);
                let all = 0..merged.num_rows();
                parts.push((merged, all));
            }
        }
        if parts.is_empty() {
            return Ok(None);
        }
        Ok(Some(gathered(&self.schema, &parts)?))
    }
}

impl Iterator for MergedRows {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.next_batch().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}

/// Time and offset of the rows of the parts.
fn order(parts: &[Part]) -> impl Iterator<Item = (i64, i64)> {
    parts.iter().flat_map(|(batch, rows)| {
        let column = |name| batch.column_by_name(name).expect("a column of samples");
        let times = column("event_time").as_primitive::<TimestampMicrosecondType>().values();
        let offsets = column(OFFSET).as_primitive::<Int64Type>().values();
        rows.clone().map(|row| (times[row], offsets[row]))
    })
}

fn are_in_order(parts: &[Part]) -> bool {
    order(parts).is_sorted()
}

fn sorted_by_time(schema: &SchemaRef, parts: &[Part]) -> Result<RecordBatch> {
    let mut rows: Vec<((i64, i64), u32)> = order(parts).zip(0..).collect();
    rows.sort_unstable();
    let rows = UInt32Array::from_iter_values(rows.into_iter().map(|(_, row)| row));
    Ok(take_record_batch(&gathered(schema, parts)?, &rows)?)
}

/// The rows of the parts in one batch.
fn gathered(schema: &SchemaRef, parts: &[Part]) -> Result<RecordBatch> {
    let columns =
        (0..schema.fields().len()).map(|place| column(place, schema.field(place).data_type(), parts));
    Ok(RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_>>()?)?)
}

fn column(place: usize, data_type: &DataType, parts: &[Part]) -> Result<ArrayRef> {
    let rows = parts.iter().map(|(_, rows)| rows.len()).sum();
    let arrays = || parts.iter().map(|(batch, rows)| (batch.column(place), rows.clone()));
    if arrays().all(|(array, _)| array.null_count() == array.len()) {
        return Ok(new_null_array(data_type, rows));
    }
    let values = |of: fn(&ArrayRef) -> &[i64]| -> ScalarBuffer<i64> {
        let mut values = Vec::with_capacity(rows);
        arrays().for_each(|(array, rows)| values.extend_from_slice(&of(array)[rows]));
        values.into()
    };
    Ok(match data_type {
        DataType::Int64 => Arc::new(Int64Array::new(
            values(|a| a.as_primitive::<Int64Type>().values()),
            nulls(arrays(), rows),
        )),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let values = values(|a| a.as_primitive::<TimestampMicrosecondType>().values());
            let array = TimestampMicrosecondArray::new(values, nulls(arrays(), rows));
            Arc::new(array.with_timezone_opt(zone.clone()))
        }
        _ => {
            let arrays: Vec<&dyn Array> =
                parts.iter().map(|(batch, _)| batch.column(place).as_ref()).collect();
            let rows = parts.iter().enumerate();
            let places: Vec<(usize, usize)> =
                rows.flat_map(|(part, (_, rows))| rows.clone().map(move |row| (part, row))).collect();
            interleave(&arrays, &places)?
        }
    })
}

fn nulls<'a>(arrays: impl Iterator<Item = (&'a ArrayRef, Range<usize>)>, rows: usize) -> Option<NullBuffer> {
    let mut known = BooleanBufferBuilder::new(rows);
    for (array, rows) in arrays {
        match array.nulls() {
            Some(nulls) => known.append_buffer(&nulls.inner().slice(rows.start, rows.len())),
            None => known.append_n(rows.len(), true),
        }
    }
    Some(NullBuffer::new(known.finish())).filter(|nulls| nulls.null_count() > 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::raw::samples::metrics;

    /// Device, time, offset, and a value.
    type Row = (u8, i64, i64, Option<i64>);

    fn batch(rows: &[Row]) -> RecordBatch {
        let schema = metrics::table().spec.file_schema();
        let numbers = |of: fn(&Row) -> Option<i64>| -> ArrayRef {
            Arc::new(rows.iter().map(of).collect::<Int64Array>())
        };
        let texts = |of: fn(u8) -> Option<&'static str>| -> ArrayRef {
            Arc::new(rows.iter().map(|row| of(row.0)).collect::<arrow::array::StringViewArray>())
        };
        let columns = schema.fields().iter().map(|field| match field.name().as_str() {
            "cluster" => texts(|_| Some("c")),
            "node" => texts(|device| Some(["n1", "n1", "n2", "n2"][usize::from(device)])),
            "gpu_uuid" => texts(|device| Some(["a", "b", "a", "a"][usize::from(device)])),
            "mig_uuid" => texts(|device| [None, None, None, Some("m")][usize::from(device)]),
            "event_time" => {
                let times = TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| row.1));
                Arc::new(times.with_timezone("UTC"))
            }
            "power_mw" => numbers(|row| row.3),
            OFFSET => numbers(|row| Some(row.2)),
            _ => new_null_array(field.data_type(), rows.len()),
        });
        RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap()
    }

    proptest! {
        /// Files that overlap in devices and in time, read in batches of any size.
        #[test]
        fn merged_rows_are_all_rows_sorted(
            files in prop::collection::vec(
                (prop::collection::vec((0_u8..4, 0_i64..30, 0_i64..4, prop::option::of(0_i64..9)), 0..40), 1_usize..9),
                0..5,
            )
        ) {
            let mut expected: Vec<Row> = Vec::new();
            let mut inputs = Vec::new();
            for (mut rows, size) in files {
                rows.sort_unstable();
                expected.extend(&rows);
                let batches: Vec<RecordBatch> = rows.chunks(size).map(batch).collect();
                inputs.push(Input::new(batches.into_iter().map(Ok)).unwrap());
            }
            expected.sort_unstable_by_key(|row| (row.0, row.1, row.2));
            let schema = metrics::table().spec.file_schema();
            let merged: Vec<RecordBatch> = MergedRows::new(schema, inputs).collect::<Result<_>>().unwrap();
            let place = |row: &Row| (row.0, row.1, row.2);
            let mut found: Vec<Row> = Vec::new();
            for rows in &merged {
                let column = |name| rows.column_by_name(name).unwrap();
                let power = column("power_mw").as_primitive::<Int64Type>();
                for (row, (time, offset)) in order(&[(rows.clone(), 0..rows.num_rows())]).enumerate() {
                    let device = match device(rows, row) {
                        [_, "n1", uuid, _] => u8::from(uuid == "b"),
                        [.., mig] => 2 + u8::from(!mig.is_empty()),
                    };
                    found.push((device, time, offset, power.is_valid(row).then(|| power.value(row))));
                }
            }
            prop_assert!(found.is_sorted_by_key(place));
            // Rows of one device, time and offset may come in any order.
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
