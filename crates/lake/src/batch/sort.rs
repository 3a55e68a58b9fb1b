//! Sorts the rows of windows by their key.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{SortOptions, take_record_batch};
use arrow::datatypes::{DataType, Int64Type, TimeUnit, TimestampMicrosecondType};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};

/// Returns the rows in ascending order of the columns, NULL first.
///
/// Integers and times are packed into one number per row, which is far cheaper to compare than
/// column after column. A window's key consists of them where its text is dictionary-encoded
/// ([`crate::exec::dictionary`]). Any other key is sorted by bytes in row format.
pub fn sorted(batch: &RecordBatch, columns: &[String]) -> Result<RecordBatch, ArrowError> {
    let columns: Vec<&ArrayRef> = columns
        .iter()
        .map(|name| batch.column(batch.schema_ref().index_of(name).expect("checked: keys are selected")))
        .collect();
    let order = match packed(&columns, batch.num_rows()) {
        Some(mut rows) => {
            rows.sort_unstable();
            let number = (1 << bits(batch.num_rows() as u64)) - 1;
            UInt32Array::from_iter_values(rows.into_iter().map(|row| (row & number) as u32))
        }
        None => {
            let options = SortOptions { descending: false, nulls_first: true };
            let field = |values: &&ArrayRef| SortField::new_with_options(values.data_type().clone(), options);
            let converter = RowConverter::new(columns.iter().map(field).collect())?;
            let columns: Vec<ArrayRef> = columns.into_iter().cloned().collect();
            let rows = converter.convert_columns(&columns)?;
            // Often the input is sorted already.
            if (1..rows.num_rows()).all(|row| rows.row(row - 1) <= rows.row(row)) {
                return Ok(batch.clone());
            }
            let mut order: Vec<(&[u8], u32)> = rows.iter().map(|row| row.data()).zip(0..).collect();
            order.sort_unstable();
            UInt32Array::from_iter_values(order.into_iter().map(|(_, row)| row))
        }
    };
    take_record_batch(batch, &order)
}

/// One number per row that sorts as the columns do and ends in the row number. `None` if a column
/// holds anything but integers and times, or if 64 bits are not enough.
fn packed(columns: &[&ArrayRef], rows: usize) -> Option<Vec<u64>> {
    let mut keys = vec![0_u64; rows];
    let mut free_bits = u64::BITS.checked_sub(bits(rows as u64))?;
    for column in columns {
        let values: &[i64] = match column.data_type() {
            DataType::Int64 => column.as_primitive::<Int64Type>().values(),
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                column.as_primitive::<TimestampMicrosecondType>().values()
            }
            _ => return None,
        };
        let known = || (0..rows).filter(|row| column.is_valid(*row)).map(|row| values[row]);
        let low = known().min().unwrap_or(0);
        // Window starts are all multiples of the window's width.
        let step = known().fold(0, |step, value| gcd(value.abs_diff(low), step)).max(1);
        // 0 is NULL.
        let range = (known().max().unwrap_or(0).abs_diff(low) / step).checked_add(1)?;
        free_bits = free_bits.checked_sub(bits(range))?;
        for (row, key) in keys.iter_mut().enumerate() {
            let digit = if column.is_valid(row) { values[row].abs_diff(low) / step + 1 } else { 0 };
            *key = (*key << bits(range)) | digit;
        }
    }
    keys.iter_mut().zip(0..).for_each(|(key, row)| *key = (*key << bits(rows as u64)) | row);
    Some(keys)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Bits needed for the numbers up to `largest`.
fn bits(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringViewArray};
    use proptest::prelude::*;

    use super::*;

    fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(
            ["a", "b", "c"].into_iter().zip(columns).map(|(n, c)| (n, c, true)),
        )
        .unwrap()
    }

    type Key = (Option<i64>, Option<i64>, Option<i64>);

    proptest! {
        /// The order is the same packed or column by column, also for keys too wide to pack.
        #[test]
        fn packing_orders_as_columns_do(
            rows in prop::collection::vec(
                (
                    prop::option::of(prop_oneof![-3_i64..3, any::<i64>()]),
                    prop::option::of(-2_i64..2),
                    prop::option::of(prop_oneof![0_i64..2, Just(i64::MIN), Just(i64::MAX)]),
                ),
                0..60,
            )
        ) {
            let numbers = |get: fn(&Key) -> Option<i64>| {
                Arc::new(rows.iter().map(get).collect::<Int64Array>()) as ArrayRef
            };
            let batch = batch(vec![numbers(|r| r.0), numbers(|r| r.1), numbers(|r| r.2)]);
            let mut expected = rows.clone();
            expected.sort_unstable();
            let sorted = sorted(&batch, &["a".into(), "b".into(), "c".into()]).unwrap();
            let found: Vec<_> = (0..sorted.num_rows())
                .map(|row| {
                    let at = |c: usize| {
                        let column = sorted.column(c).as_primitive::<Int64Type>();
                        column.is_valid(row).then(|| column.value(row))
                    };
                    (at(0), at(1), at(2))
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn text_is_sorted_by_columns() {
        let text: ArrayRef = Arc::new(StringViewArray::from(vec![Some("b"), Some("a"), None]));
        let number: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let sorted = sorted(&batch(vec![text, number]), &["a".into(), "b".into()]).unwrap();
        assert_eq!(sorted.column(1).as_primitive::<Int64Type>().values(), &[3, 2, 1]);
    }
}
