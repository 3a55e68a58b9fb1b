//! `latest(value, time)`: the value with the greatest time, whatever the order of the rows.
//!
//! Of equal times the greater value wins, so the result is a function of the set of rows.
//! `last_value` cannot promise that, and it is what makes streaming and backfill agree.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, Int64Builder, StringViewBuilder,
    TimestampMicrosecondArray, new_empty_array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, TimestampMicrosecondType};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
};

use crate::table::timestamp_type;

/// The aggregate function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Latest {
    signature: Signature,
}

impl Latest {
    pub fn udaf() -> AggregateUDF {
        let variants = [DataType::Utf8View, DataType::Utf8, DataType::Int64]
            .map(|value| datafusion::logical_expr::TypeSignature::Exact(vec![value, timestamp_type()]));
        AggregateUDF::from(Self { signature: Signature::one_of(variants.to_vec(), Volatility::Immutable) })
    }
}

impl AggregateUDFImpl for Latest {
    fn name(&self) -> &str {
        "latest"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        Ok(if args[0] == DataType::Int64 { DataType::Int64 } else { DataType::Utf8View })
    }
    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![
            Arc::new(Field::new(
                format!("{}[value]", args.name),
                args.return_field.data_type().clone(),
                true,
            )),
            Arc::new(Field::new(format!("{}[time]", args.name), timestamp_type(), true)),
        ])
    }
    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let value_type = args.return_field.data_type();
        let mut groups = groups(value_type)?;
        let nothing = [new_empty_array(value_type), new_empty_array(&timestamp_type())];
        groups.update_batch(&nothing, &[], None, 1)?;
        Ok(Box::new(SingleGroup { groups }))
    }
    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }
    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(groups(args.return_field.data_type())?)
    }
}

fn groups(value_type: &DataType) -> Result<Box<dyn GroupsAccumulator + Sync>> {
    match value_type {
        DataType::Int64 => Ok(Box::new(LatestByGroup::<i64>::default())),
        DataType::Utf8View => Ok(Box::new(LatestByGroup::<Box<str>>::default())),
        other => exec_err!("latest() of {other} is not supported; cast it to text or BIGINT"),
    }
}

/// A type of value that the aggregate supports.
trait Value: Ord + Send + Sync + Sized + 'static {
    type Column: Clone;
    type Ref<'a>: Copy;
    fn column(array: &ArrayRef) -> Result<Self::Column>;
    fn get(column: &Self::Column, row: usize) -> Option<Self::Ref<'_>>;
    fn compare(held: &Self, new: Self::Ref<'_>) -> Ordering;
    fn hold(new: Self::Ref<'_>) -> Self;
    fn heap_size(&self) -> usize;
    fn finish<'a>(values: impl Iterator<Item = Option<&'a Self>>) -> ArrayRef;
}

impl Value for i64 {
    type Column = Int64Array;
    type Ref<'a> = i64;
    fn column(array: &ArrayRef) -> Result<Self::Column> {
        Ok(array.as_primitive::<Int64Type>().clone())
    }
    fn get(column: &Self::Column, row: usize) -> Option<i64> {
        column.is_valid(row).then(|| column.value(row))
    }
    fn compare(held: &Self, new: i64) -> Ordering {
        held.cmp(&new)
    }
    fn hold(new: i64) -> Self {
        new
    }
    fn heap_size(&self) -> usize {
        0
    }
    fn finish<'a>(values: impl Iterator<Item = Option<&'a Self>>) -> ArrayRef {
        let mut builder = Int64Builder::new();
        values.for_each(|v| builder.append_option(v.copied()));
        Arc::new(builder.finish())
    }
}

impl Value for Box<str> {
    type Column = arrow::array::StringViewArray;
    type Ref<'a> = &'a str;
    fn column(array: &ArrayRef) -> Result<Self::Column> {
        Ok(cast(array, &DataType::Utf8View)?.as_string_view().clone())
    }
    fn get(column: &Self::Column, row: usize) -> Option<&str> {
        column.is_valid(row).then(|| column.value(row))
    }
    fn compare(held: &Self, new: &str) -> Ordering {
        held.as_ref().cmp(new)
    }
    fn hold(new: &str) -> Self {
        new.into()
    }
    fn heap_size(&self) -> usize {
        self.len()
    }
    fn finish<'a>(values: impl Iterator<Item = Option<&'a Self>>) -> ArrayRef {
        let mut builder = StringViewBuilder::new();
        values.for_each(|v| builder.append_option(v));
        Arc::new(builder.finish())
    }
}

/// Per group, the time and value that win so far.
struct LatestByGroup<V> {
    best: Vec<Option<(i64, V)>>,
    heap_bytes: usize,
}

impl<V> Default for LatestByGroup<V> {
    fn default() -> Self {
        Self { best: Vec::new(), heap_bytes: 0 }
    }
}

impl<V: Value> LatestByGroup<V> {
    fn offer(&mut self, group: usize, time: i64, value: V::Ref<'_>) {
        let slot = &mut self.best[group];
        let better = slot.as_ref().is_none_or(|(at, held)| match at.cmp(&time) {
            Ordering::Less => true,
            Ordering::Equal => V::compare(held, value).is_lt(),
            Ordering::Greater => false,
        });
        if !better {
            return;
        }
        // Most rows repeat the current value. Then only the time changes, and nothing is allocated.
        match slot {
            Some((at, held)) if V::compare(held, value).is_eq() => *at = time,
            _ => {
                let new = V::hold(value);
                self.heap_bytes += new.heap_size();
                self.heap_bytes -= slot.replace((time, new)).map_or(0, |(_, old)| old.heap_size());
            }
        }
    }
}

impl<V: Value> GroupsAccumulator for LatestByGroup<V> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        self.best.resize_with(total, || None);
        let column = V::column(&values[0])?;
        let times = values[1].as_primitive::<TimestampMicrosecondType>();
        for (row, &group) in groups.iter().enumerate() {
            if filter.is_some_and(|f| !(f.is_valid(row) && f.value(row))) || times.is_null(row) {
                continue;
            }
            if let Some(value) = V::get(&column, row) {
                self.offer(group, times.value(row), value);
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        Ok(self.state(emit_to)?.swap_remove(0))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let emitted = emit_to.take_needed(&mut self.best);
        let values = V::finish(emitted.iter().map(|slot| slot.as_ref().map(|(_, value)| value)));
        let times: TimestampMicrosecondArray =
            emitted.iter().map(|slot| slot.as_ref().map(|(at, _)| *at)).collect();
        self.heap_bytes -= emitted.iter().flatten().map(|(_, v)| v.heap_size()).sum::<usize>();
        Ok(vec![values, Arc::new(times.with_timezone("UTC"))])
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.update_batch(values, groups, None, total)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let mut alone = Self::default();
        let rows = values[0].len();
        alone.update_batch(values, &(0..rows).collect::<Vec<_>>(), filter, rows)?;
        alone.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        self.best.capacity() * size_of::<Option<(i64, V)>>() + self.heap_bytes
    }
}

/// An aggregate without GROUP BY: a single group.
pub(crate) struct SingleGroup {
    pub(crate) groups: Box<dyn GroupsAccumulator + Sync>,
}

impl std::fmt::Debug for SingleGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("one group")
    }
}

impl Accumulator for SingleGroup {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.groups.update_batch(values, &vec![0; values[0].len()], None, 1)
    }
    fn evaluate(&mut self) -> Result<ScalarValue> {
        ScalarValue::try_from_array(&self.groups.evaluate(EmitTo::All)?, 0)
    }
    fn size(&self) -> usize {
        self.groups.size()
    }
    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.groups.state(EmitTo::All)?.iter().map(|a| ScalarValue::try_from_array(a, 0)).collect()
    }
    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.groups.merge_batch(states, &vec![0; states[0].len()], 1)
    }
}
