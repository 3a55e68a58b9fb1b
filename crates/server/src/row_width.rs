//! How large rows are, so that a single step does not make more of them than fits.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as EngineResult};
use datafusion::logical_expr::{Expr, LogicalPlan};

/// Rows that are too wide to be worked on as many at a time as they are; fewer may do.
#[derive(Debug, thiserror::Error)]
#[error("a row of {bytes} bytes")]
pub(crate) struct TooWide {
    pub(crate) bytes: usize,
}

/// Fails if a row of the batch has more than so many bytes.
pub(crate) fn check_rows(batch: &RecordBatch, most: usize) -> EngineResult<()> {
    // A row has no more than all of them together, which is quickly known.
    if batch.columns().iter().map(text_bytes).sum::<usize>() <= most {
        return Ok(());
    }
    let bytes = widest_row(batch);
    match bytes > most {
        true => Err(DataFusionError::External(Box::new(TooWide { bytes }))),
        false => Ok(()),
    }
}

/// Bytes of the widest row, or a little more: the widest values of all columns may stand in
/// different rows.
pub(crate) fn widest_row(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| row_bytes(column).into_iter().max().unwrap_or(0)).sum()
}

/// Bytes of each row of a column, text that others share included.
pub(crate) fn row_bytes(column: &ArrayRef) -> Vec<usize> {
    match column.data_type() {
        DataType::Utf8 => lengths(column.as_string::<i32>().offsets()),
        DataType::LargeUtf8 => lengths(column.as_string::<i64>().offsets()),
        DataType::Binary => lengths(column.as_binary::<i32>().offsets()),
        DataType::LargeBinary => lengths(column.as_binary::<i64>().offsets()),
        DataType::Utf8View => column.as_string_view().lengths().map(|n| n as usize + VIEW_BYTES).collect(),
        DataType::BinaryView => column.as_binary_view().lengths().map(|n| n as usize + VIEW_BYTES).collect(),
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            of_items(list.values(), list.offsets().iter().map(|at| *at as usize))
        }
        DataType::LargeList(_) => {
            let list = column.as_list::<i64>();
            of_items(list.values(), list.offsets().iter().map(|at| *at as usize))
        }
        DataType::Map(..) => {
            let map = column.as_map();
            let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
            of_items(&entries, map.offsets().iter().map(|at| *at as usize))
        }
        DataType::FixedSizeList(_, size) => {
            let list = column.as_fixed_size_list();
            of_items(list.values(), (0..=list.len()).map(|row| row * *size as usize))
        }
        DataType::Struct(_) => {
            let mut rows = vec![0; column.len()];
            for field in column.as_struct().columns() {
                rows.iter_mut().zip(row_bytes(field)).for_each(|(row, bytes)| *row += bytes);
            }
            rows
        }
        other => vec![fixed_bytes(other, column); column.len()],
    }
}

/// Bytes of the value in each row of a column: of a text its characters alone.
pub(crate) fn value_bytes(column: &ArrayRef) -> Vec<usize> {
    let of_each = match column.data_type() {
        DataType::Utf8 | DataType::Binary => size_of::<i32>(),
        DataType::LargeUtf8 | DataType::LargeBinary => size_of::<i64>(),
        DataType::Utf8View | DataType::BinaryView => VIEW_BYTES,
        _ => 0,
    };
    row_bytes(column).into_iter().map(|bytes| bytes - of_each).collect()
}

/// A view of text, without the text.
const VIEW_BYTES: usize = 16;

fn lengths<O: arrow::array::OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> Vec<usize> {
    offsets.lengths().map(|bytes| bytes + size_of::<O>()).collect()
}

/// Bytes of rows that are lists of items, by where each row's items begin.
fn of_items(items: &ArrayRef, starts: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut before = vec![0; items.len() + 1];
    for (row, bytes) in row_bytes(items).into_iter().enumerate() {
        before[row + 1] = before[row] + bytes;
    }
    let starts: Vec<usize> = starts.collect();
    starts.windows(2).map(|ends| before[ends[1]] - before[ends[0]] + size_of::<i64>()).collect()
}

/// Bytes of a value of a type whose values all take the same, or the share of one in the whole
/// column.
fn fixed_bytes(data_type: &DataType, column: &ArrayRef) -> usize {
    match data_type {
        DataType::Null | DataType::Boolean => 1,
        DataType::FixedSizeBinary(bytes) => *bytes as usize,
        other => match other.primitive_width() {
            Some(width) => width,
            None => column.get_array_memory_size() / column.len().max(1),
        },
    }
}

/// Bytes of a column, text that others share included.
pub(crate) fn text_bytes(column: &ArrayRef) -> usize {
    match column.data_type() {
        DataType::Utf8View | DataType::BinaryView | DataType::List(_) | DataType::LargeList(_) => {
            row_bytes(column).into_iter().sum()
        }
        _ => bytes(column),
    }
}

/// Bytes that a copy of a column would take: of text views only the views.
pub(crate) fn bytes(column: &ArrayRef) -> usize {
    match column.data_type() {
        DataType::Utf8 => all(column.as_string::<i32>().offsets()),
        DataType::LargeUtf8 => all(column.as_string::<i64>().offsets()),
        DataType::Binary => all(column.as_binary::<i32>().offsets()),
        DataType::LargeBinary => all(column.as_binary::<i64>().offsets()),
        DataType::Utf8View | DataType::BinaryView => column.len() * VIEW_BYTES,
        DataType::Struct(_) => column.as_struct().columns().iter().map(bytes).sum(),
        DataType::List(_) | DataType::LargeList(_) | DataType::Map(..) | DataType::FixedSizeList(..) => {
            row_bytes(column).into_iter().sum()
        }
        other => fixed_bytes(other, column) * column.len(),
    }
}

fn all<O: arrow::array::OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> usize {
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    last - first + offsets.len() * size_of::<O>()
}

/// Bytes of a batch where each value stands with its name, as in JSON.
pub(crate) fn written_bytes(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter().zip(batch.schema_ref().fields());
    columns.map(|(column, field)| text_bytes(column) + names_bytes(column, field.name())).sum()
}

/// Bytes that the names take in a column, which is called so, and in the values of it.
fn names_bytes(column: &ArrayRef, name: &str) -> usize {
    let own = column.len() * name.len();
    own + match column.data_type() {
        DataType::Struct(fields) => {
            let inner = column.as_struct().columns().iter().zip(fields);
            inner.map(|(column, field)| names_bytes(column, field.name())).sum()
        }
        DataType::List(_) => {
            let (list, offsets) = (column.as_list::<i32>(), column.as_list::<i32>().value_offsets());
            let (first, last) = (offsets[0] as usize, offsets[list.len()] as usize);
            names_bytes(&list.values().slice(first, last - first), "")
        }
        DataType::LargeList(_) => {
            let (list, offsets) = (column.as_list::<i64>(), column.as_list::<i64>().value_offsets());
            let (first, last) = (offsets[0] as usize, offsets[list.len()] as usize);
            names_bytes(&list.values().slice(first, last - first), "")
        }
        DataType::FixedSizeList(..) => names_bytes(column.as_fixed_size_list().values(), ""),
        DataType::Map(..) => text_bytes(column),
        _ => 0,
    }
}

/// Bytes of a table that is drawn: every cell is as wide as the widest of its column.
pub(crate) fn drawn_bytes(batches: &[RecordBatch]) -> usize {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let columns = batches.first().map_or(0, RecordBatch::num_columns);
    let widest = |column: usize| {
        let name = batches[0].schema_ref().field(column).name().len();
        let values = batches.iter().flat_map(|batch| row_bytes(batch.column(column)));
        values.max().unwrap_or(0).max(name)
    };
    (0..columns).map(widest).sum::<usize>().saturating_mul(rows + 1)
}

/// Rows that are worked on at a time, where nothing speaks against it.
pub(crate) const BATCH_ROWS: usize = 8192;

/// So many rows at a time that a step of the plan makes no more than `step_bytes` of its columns
/// and of the texts it names.
pub(crate) fn batch_rows(plan: &LogicalPlan, step_bytes: usize) -> EngineResult<usize> {
    let mut widest = 1;
    plan.apply_with_subqueries(|node| {
        if matches!(node, LogicalPlan::Values(_)) {
            return Ok(TreeNodeRecursion::Continue);
        }
        let mut bytes = node.schema().fields().len() * VIEW_BYTES;
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                if let Expr::Literal(value, _) = part {
                    bytes += value.size();
                }
                // What a column is looked up in is not repeated for each row.
                Ok(match part {
                    Expr::InList(_) => TreeNodeRecursion::Jump,
                    _ => TreeNodeRecursion::Continue,
                })
            })
        })?;
        widest = widest.max(bytes);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok((step_bytes / widest).clamp(1, BATCH_ROWS))
}
