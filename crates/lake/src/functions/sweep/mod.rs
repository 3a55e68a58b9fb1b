//! Sweep-line aggregates: functions that pass once through the times of a group in order. A join
//! would have to pair every row with every other.
//!
//! The rows of a group are collected and sorted when the group is complete, so the result is a
//! function of the set of rows. It is a list of structs, which `unnest` turns into rows.

mod least_in_force;
mod placed;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StructArray, new_empty_array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

/// Computes the result columns from the columns of all rows of a group.
type Body = fn(&[ArrayRef]) -> Result<Vec<ArrayRef>>;

/// One sweep-line aggregate.
#[derive(Debug, Clone)]
pub struct SweepAggregate {
    name: &'static str,
    arguments: Vec<DataType>,
    signature: Signature,
    result: Fields,
    body: Body,
}

impl SweepAggregate {
    /// All sweep-line aggregates.
    pub fn udafs() -> [AggregateUDF; 2] {
        [least_in_force::function(), placed::function()].map(AggregateUDF::from)
    }

    fn new(name: &'static str, arguments: Vec<DataType>, result: Vec<Field>, body: Body) -> Self {
        let signature = Signature::exact(arguments.clone(), Volatility::Immutable);
        Self { name, arguments, signature, result: result.into(), body }
    }
}

impl PartialEq for SweepAggregate {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
impl Eq for SweepAggregate {}
impl std::hash::Hash for SweepAggregate {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl AggregateUDFImpl for SweepAggregate {
    fn name(&self) -> &str {
        self.name
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _args: &[DataType]) -> Result<DataType> {
        Ok(list_of(DataType::Struct(self.result.clone())))
    }
    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |(n, argument): (usize, &DataType)| {
            Arc::new(Field::new(format!("{}[{n}]", args.name), list_of(argument.clone()), true))
        };
        Ok(self.arguments.iter().enumerate().map(field).collect())
    }
    fn accumulator(&self, _args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(GroupRows { rows: vec![Vec::new(); self.arguments.len()], of: self.clone() }))
    }
}

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item, true)))
}

fn one_list(values: ArrayRef) -> Result<ScalarValue> {
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let lengths = OffsetBuffer::from_lengths([values.len()]);
    Ok(ScalarValue::List(Arc::new(ListArray::try_new(field, lengths, values, None)?)))
}

/// Rows of a group so far: pieces of each column.
#[derive(Debug)]
struct GroupRows {
    of: SweepAggregate,
    rows: Vec<Vec<ArrayRef>>,
}

impl GroupRows {
    fn columns(&self) -> Result<Vec<ArrayRef>> {
        let whole = |(pieces, data_type): (&Vec<ArrayRef>, &DataType)| {
            if pieces.is_empty() {
                return Ok(new_empty_array(data_type));
            }
            Ok(concat(&pieces.iter().map(AsRef::as_ref).collect::<Vec<_>>())?)
        };
        self.rows.iter().zip(&self.of.arguments).map(whole).collect()
    }
}

impl Accumulator for GroupRows {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for (pieces, column) in self.rows.iter_mut().zip(values) {
            pieces.push(Arc::clone(column));
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for (pieces, lists) in self.rows.iter_mut().zip(states) {
            pieces.extend(lists.as_list::<i32>().iter().flatten());
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.columns()?.into_iter().map(one_list).collect()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let result = (self.of.body)(&self.columns()?)?;
        one_list(Arc::new(StructArray::try_new(self.of.result.clone(), result, None)?))
    }

    fn size(&self) -> usize {
        size_of_val(self)
            + self.rows.iter().flatten().map(|piece| piece.get_array_memory_size()).sum::<usize>()
    }
}
