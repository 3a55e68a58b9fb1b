//! `split_step()`: the time of a training step, split into parts that add up.
//!
//! Reported parts may overlap or exceed the step. Each takes at most what the parts before it left:
//! first restore; then, of a step that was done before, everything else is redone; then checkpoint,
//! data stall, and communication that computing does not hide. What no part takes is productive.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StructArray};
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, cast::as_int64_array};

/// The parts, in the order in which they take their time.
const PARTS: [&str; 6] =
    ["restore_us", "redone_us", "checkpoint_us", "data_stall_us", "communication_stall_us", "productive_us"];

fn fields() -> Fields {
    PARTS.iter().map(|name| Field::new(*name, DataType::Int64, true)).collect()
}

/// Type of the result: a struct of all parts.
pub(super) fn parts_type() -> DataType {
    DataType::Struct(fields())
}

/// What a step reports, µs; `None` for what it does not report.
struct Reported {
    used: i64,
    is_redone: bool,
    restore: Option<i64>,
    checkpoint: Option<i64>,
    data_wait: Option<i64>,
    communication: Option<i64>,
    compute: Option<i64>,
}

fn split(step: &Reported) -> [Option<i64>; 6] {
    let or_zero = |part: Option<i64>| part.unwrap_or(0);
    let restore = step.restore.map(|us| us.min(step.used));
    let after_restore = step.used.saturating_sub(or_zero(restore));
    let (redone, fresh) = if step.is_redone { (after_restore, 0) } else { (0, after_restore) };
    let checkpoint = step.checkpoint.map(|us| us.min(fresh));
    let left = fresh.saturating_sub(or_zero(checkpoint));
    let data_stall = step.data_wait.map(|us| us.min(left));
    let left = left.saturating_sub(or_zero(data_stall));
    let exposed = left.saturating_sub(or_zero(step.compute).min(left));
    let communication_stall = step.communication.map(|us| us.min(exposed));
    let productive = left.saturating_sub(or_zero(communication_stall));
    [restore, Some(redone), checkpoint, data_stall, communication_stall, Some(productive)]
}

/// All parts are NULL where the length of the step is not known.
pub(super) fn split_step(args: &[ArrayRef]) -> Result<ArrayRef> {
    let columns = args.iter().map(|arg| as_int64_array(arg)).collect::<Result<Vec<_>>>()?;
    let mut parts: [Vec<Option<i64>>; 6] = std::array::from_fn(|_| Vec::with_capacity(columns[0].len()));
    for row in 0..columns[0].len() {
        let value = |place: usize| columns[place].is_valid(row).then(|| columns[place].value(row));
        let of_row = value(0).map_or([None; 6], |used| {
            split(&Reported {
                used,
                is_redone: value(1) == Some(1),
                restore: value(2),
                checkpoint: value(3),
                data_wait: value(4),
                communication: value(5),
                compute: value(6),
            })
        });
        for (column, part) in parts.iter_mut().zip(of_row) {
            column.push(part);
        }
    }
    let arrays = parts.map(|part| Arc::new(Int64Array::from(part)) as ArrayRef);
    Ok(Arc::new(StructArray::try_new(fields(), arrays.to_vec(), None)?))
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;

    use super::*;

    /// The parts of one step; arguments as in SQL.
    fn parts(args: [Option<i64>; 7]) -> [Option<i64>; 6] {
        let args = args.map(|value| Arc::new(Int64Array::from(vec![value])) as ArrayRef);
        let out = split_step(&args).unwrap();
        let out = out.as_struct();
        std::array::from_fn(|place| {
            let part = out.column(place).as_primitive::<Int64Type>();
            part.is_valid(0).then(|| part.value(0))
        })
    }

    #[test]
    fn parts_take_what_earlier_ones_left() {
        // 100 µs: 10 restore, 20 checkpoint, 30 data; of the 40 left computing covers 25, so at
        // most 15 of communication show.
        assert_eq!(
            parts([Some(100), Some(0), Some(10), Some(20), Some(30), Some(40), Some(25)]),
            [Some(10), Some(0), Some(20), Some(30), Some(15), Some(25)]
        );
        // Reported parts exceed the step: the first ones win.
        assert_eq!(
            parts([Some(50), Some(0), Some(30), Some(40), Some(9), Some(9), Some(9)]),
            [Some(30), Some(0), Some(20), Some(0), Some(0), Some(0)]
        );
    }

    #[test]
    fn a_redone_step_is_redone_but_for_its_restore() {
        assert_eq!(
            parts([Some(100), Some(1), Some(10), Some(20), None, None, None]),
            [Some(10), Some(90), Some(0), None, None, Some(0)]
        );
    }

    #[test]
    fn what_is_not_reported_is_null_and_counts_as_productive() {
        assert_eq!(
            parts([Some(100), Some(0), None, None, None, None, None]),
            [None, Some(0), None, None, None, Some(100)]
        );
        assert_eq!(parts([None, Some(0), Some(1), Some(1), Some(1), Some(1), Some(1)]), [None; 6]);
    }
}
