//! `gathered(value)`: all values of a group as a sorted list.
//!
//! `array_agg()` keeps the order of the rows, which is not deterministic. This one sorts, so the
//! list is a function of the set of rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, UInt32Array, new_empty_array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{concat, filter, take};
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::array_agg::ArrayAgg;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
};

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

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct && args.order_bys.is_empty() && !args.ignore_nulls
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let data_type = args.expr_fields[0].data_type().clone();
        Ok(Box::new(Groups { data_type, values: Vec::new(), groups: Vec::new(), count: 0 }))
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

/// All groups at once: values are collected as they come, and put in order of their groups and
/// sorted when the groups are complete.
#[derive(Debug)]
struct Groups {
    data_type: DataType,
    values: Vec<ArrayRef>,
    /// Group of each value.
    groups: Vec<usize>,
    /// Groups so far; some may have no value.
    count: usize,
}

impl Groups {
    fn push(&mut self, values: &ArrayRef, groups: impl Iterator<Item = usize>, count: usize) {
        self.values.push(Arc::clone(values));
        self.groups.extend(groups);
        self.count = count;
    }

    /// Removes the first groups. Returns their values, group by group in the order in which they
    /// came, and how many each has.
    fn take_first(&mut self, count: usize) -> Result<(ArrayRef, Vec<usize>)> {
        let mut lengths = vec![0; count];
        let (first, rest): (Vec<u32>, Vec<u32>) =
            (0..self.groups.len() as u32).partition(|value| self.groups[*value as usize] < count);
        first.iter().for_each(|value| lengths[self.groups[*value as usize]] += 1);
        let mut places: Vec<usize> = lengths
            .iter()
            .scan(0, |next, length| {
                *next += length;
                Some(*next - length)
            })
            .collect();
        let mut order = vec![0; first.len()];
        for value in first {
            let place = &mut places[self.groups[value as usize]];
            order[*place] = value;
            *place += 1;
        }
        let values: Vec<&dyn Array> = self.values.iter().map(AsRef::as_ref).collect();
        let values = match values.is_empty() {
            true => new_empty_array(&self.data_type),
            false => concat(&values)?,
        };
        let taken = take(&values, &UInt32Array::from(order), None)?;
        self.groups = rest.iter().map(|value| self.groups[*value as usize] - count).collect();
        self.values = match rest.is_empty() {
            true => Vec::new(),
            false => vec![take(&values, &UInt32Array::from(rest), None)?],
        };
        self.count -= count;
        Ok((taken, lengths))
    }

    /// The first groups as lists; NULL for a group without values.
    fn lists(&mut self, emit_to: EmitTo, is_sorted: bool) -> Result<ArrayRef> {
        let count = match emit_to {
            EmitTo::All => self.count,
            EmitTo::First(count) => count,
        };
        let (mut values, lengths) = self.take_first(count)?;
        if is_sorted {
            let (mut order, mut from) = (Vec::with_capacity(values.len()), 0);
            let converter = RowConverter::new(vec![SortField::new(self.data_type.clone())])?;
            for length in &lengths {
                order.extend(
                    sorted_order(&converter, &values.slice(from, *length))?
                        .into_iter()
                        .map(|at| at + from as u32),
                );
                from += length;
            }
            values = take(&values, &UInt32Array::from(order), None)?;
        }
        let nulls = NullBuffer::from_iter(lengths.iter().map(|length| *length > 0));
        let item = Arc::new(Field::new_list_field(self.data_type.clone(), true));
        let offsets = OffsetBuffer::from_lengths(lengths);
        let nulls = Some(nulls).filter(|nulls| nulls.null_count() > 0);
        Ok(Arc::new(ListArray::try_new(item, offsets, values, nulls)?))
    }
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let Some(chosen) = opt_filter else {
            self.push(&values[0], group_indices.iter().copied(), total_num_groups);
            return Ok(());
        };
        let groups = (group_indices.iter().zip(chosen)).filter(|(_, chosen)| *chosen == Some(true));
        self.push(&filter(&values[0], chosen)?, groups.map(|(group, _)| *group), total_num_groups);
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        self.lists(emit_to, true)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.lists(emit_to, false)?])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        let lists = values[0].as_list::<i32>();
        self.count = total_num_groups;
        for (list, group) in group_indices.iter().enumerate().filter(|(list, _)| lists.is_valid(*list)) {
            let values = lists.value(list);
            let length = values.len();
            self.push(&values, std::iter::repeat_n(*group, length), total_num_groups);
        }
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let rows: Vec<usize> = (0..values[0].len()).collect();
        let mut each =
            Self { data_type: self.data_type.clone(), values: Vec::new(), groups: Vec::new(), count: 0 };
        each.update_batch(values, &rows, opt_filter, rows.len())?;
        each.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        let values: usize = self.values.iter().map(|values| values.get_array_memory_size()).sum();
        values + self.groups.capacity() * size_of::<usize>()
    }
}

/// The places of the values, in order.
fn sorted_order(converter: &RowConverter, values: &ArrayRef) -> Result<Vec<u32>> {
    let rows = converter.convert_columns(&[Arc::clone(values)])?;
    let mut order: Vec<(&[u8], u32)> = rows.iter().map(|row| row.data()).zip(0..).collect();
    order.sort_unstable();
    Ok(order.into_iter().map(|(_, place)| place).collect())
}

/// Sorts the values of a list of one group.
fn sorted(list: &ListArray) -> Result<ListArray> {
    if list.is_null(0) {
        return Ok(list.clone());
    }
    let values = list.value(0);
    let converter = RowConverter::new(vec![SortField::new(values.data_type().clone())])?;
    let values = take(&values, &UInt32Array::from(sorted_order(&converter, &values)?), None)?;
    let DataType::List(item) = list.data_type() else { unreachable!("a list") };
    Ok(ListArray::try_new(Arc::clone(item), OffsetBuffer::from_lengths([values.len()]), values, None)?)
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;

    use crate::engine::{self, Limits};

    async fn result(sql: &str) -> String {
        let limits = Limits { threads: 1, ..Limits::default() };
        let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
        pretty_format_batches(&ctx.sql(sql).await.unwrap().collect().await.unwrap()).unwrap().to_string()
    }

    /// Values of a group are sorted, NULLs among them, whichever batch they come in. A group of
    /// which no value is chosen has no list.
    #[tokio::test]
    async fn all_groups_at_once_are_as_each_alone() {
        let rows = "(SELECT value % 3 AS g, named_struct('a', nullif(value * 7 % 11, 4), 'b', CAST(value AS TEXT)) AS s \
                     FROM generate_series(1, 20000))";
        let chosen = "gathered(s) FILTER (WHERE g < 2 AND s['a'] IS DISTINCT FROM 5) AS l";
        let each: Vec<String> = (0..3)
            .map(|g| format!("SELECT {g} AS g, {chosen} FROM (SELECT * FROM {rows} WHERE g = {g})"))
            .collect();
        let grouped = result(&format!("SELECT g, {chosen} FROM {rows} GROUP BY g ORDER BY g")).await;
        assert_eq!(grouped, result(&format!("{} ORDER BY g", each.join(" UNION ALL "))).await);
        assert_eq!(grouped.matches("{a: ").count(), 12_121, "rows of two groups without those of 5");
    }
}
