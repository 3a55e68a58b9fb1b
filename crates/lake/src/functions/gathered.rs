//! `gathered(value)`: all values of a group as a sorted list.
//!
//! `array_agg()` keeps the order of the rows, which is not deterministic. This one sorts, so the
//! list is a function of the set of rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ListArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::array_agg::ArrayAgg;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

/// The aggregate function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Gathered {
    signature: Signature,
    unsorted: ArrayAgg,
}

impl Gathered {
    pub fn udaf() -> AggregateUDF {
        let signature = Signature::any(1, Volatility::Immutable);
        AggregateUDF::from(Self { signature, unsorted: ArrayAgg::default() })
    }
}

impl AggregateUDFImpl for Gathered {
    fn name(&self) -> &str {
        "gathered"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        Ok(DataType::List(Arc::new(Field::new_list_field(args[0].clone(), true))))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.unsorted.state_fields(args)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Sorting { unsorted: self.unsorted.accumulator(args)? }))
    }
}

/// Collects as `array_agg()` does, and sorts when the group is complete.
#[derive(Debug)]
struct Sorting {
    unsorted: Box<dyn Accumulator>,
}

impl Accumulator for Sorting {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.unsorted.update_batch(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.unsorted.merge_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.unsorted.state()
    }

    fn size(&self) -> usize {
        self.unsorted.size()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        match self.unsorted.evaluate()? {
            ScalarValue::List(list) => Ok(ScalarValue::List(Arc::new(sorted(&list)?))),
            other => Ok(other),
        }
    }
}

/// Sorts the values of a list of one group.
fn sorted(list: &ListArray) -> Result<ListArray> {
    if list.is_null(0) {
        return Ok(list.clone());
    }
    let values = list.value(0);
    let rows = RowConverter::new(vec![SortField::new(values.data_type().clone())])?
        .convert_columns(&[Arc::clone(&values)])?;
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_unstable_by(|a, b| rows.row(*a as usize).cmp(&rows.row(*b as usize)));
    let values = take(&values, &UInt32Array::from(order), None)?;
    let DataType::List(item) = list.data_type() else { unreachable!("a list") };
    let whole = arrow::buffer::OffsetBuffer::from_lengths([values.len()]);
    Ok(ListArray::try_new(Arc::clone(item), whole, values, None)?)
}
