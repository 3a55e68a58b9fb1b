//! `quantiles(value, q, …)` and `mad(value)`: exact order statistics, several in one pass over the
//! rows.
//!
//! The values of a group are collected and sorted when the group is complete, so the result is a
//! function of the set of rows. A quantile between two values is interpolated linearly: type R-7 of
//! Hyndman and Fan 1996, "Sample Quantiles in Statistical Packages", which spreadsheets, NumPy and
//! `percentile_cont` use.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Float64Builder, ListArray, ListBuilder,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, TypeSignature,
    Volatility,
};
use datafusion::physical_expr::expressions::Literal;

use super::latest::SingleGroup;

/// The aggregate functions.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct OrderStatistic {
    name: &'static str,
    signature: Signature,
}

/// What is computed from the values of a group.
#[derive(Debug, Clone)]
enum Statistic {
    /// A list of quantiles at these ranks, 0 to 1.
    Quantiles(Vec<f64>),
    /// Median absolute deviation from the median.
    Mad,
}

const QUANTILES: &str = "quantiles";
const MAD: &str = "mad";
/// Ranks that one call may ask for.
const MAX_RANKS: usize = 16;

impl OrderStatistic {
    pub fn quantiles() -> AggregateUDF {
        let ranks =
            (2..=MAX_RANKS + 1).map(|arguments| TypeSignature::Exact(vec![DataType::Float64; arguments]));
        AggregateUDF::from(Self {
            name: QUANTILES,
            signature: Signature::one_of(ranks.collect(), Volatility::Immutable),
        })
    }

    pub fn mad() -> AggregateUDF {
        AggregateUDF::from(Self {
            name: MAD,
            signature: Signature::exact(vec![DataType::Float64], Volatility::Immutable),
        })
    }

    fn statistic(&self, args: &AccumulatorArgs<'_>) -> Result<Statistic> {
        if self.name == MAD {
            return Ok(Statistic::Mad);
        }
        let rank =
            |expr: &Arc<dyn datafusion::physical_expr::PhysicalExpr>| match expr.downcast_ref::<Literal>() {
                Some(literal) => match literal.value() {
                    ScalarValue::Float64(Some(rank)) if (0.0..=1.0).contains(rank) => Ok(*rank),
                    other => {
                        plan_err!(
                            "{QUANTILES}(): {other} is not a rank; ranks are numbers from 0 to 1, e.g. 0.99"
                        )
                    }
                },
                None => plan_err!(
                    "{QUANTILES}(): ranks must be literal numbers, e.g. {QUANTILES}(power_mw, 0.5, 0.99)"
                ),
            };
        args.exprs[1..].iter().map(rank).collect::<Result<_>>().map(Statistic::Quantiles)
    }
}

fn list_of_values() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Float64, true)))
}

impl AggregateUDFImpl for OrderStatistic {
    fn name(&self) -> &str {
        self.name
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _args: &[DataType]) -> Result<DataType> {
        Ok(if self.name == MAD { DataType::Float64 } else { list_of_values() })
    }
    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new(format!("{}[values]", args.name), list_of_values(), true))])
    }
    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let mut groups = ValuesByGroup { statistic: self.statistic(&args)?, values: Vec::new(), held: 0 };
        groups.values.resize_with(1, Vec::new);
        Ok(Box::new(SingleGroup { groups: Box::new(groups) }))
    }
    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }
    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(ValuesByGroup { statistic: self.statistic(&args)?, values: Vec::new(), held: 0 }))
    }
}

/// The values of each group, without NULL and NaN.
struct ValuesByGroup {
    statistic: Statistic,
    values: Vec<Vec<f64>>,
    /// Number of values in all groups.
    held: usize,
}

impl ValuesByGroup {
    fn take(&mut self, emit_to: EmitTo) -> Vec<Vec<f64>> {
        let taken = emit_to.take_needed(&mut self.values);
        self.held -= taken.iter().map(Vec::len).sum::<usize>();
        taken
    }

    fn extend(&mut self, group: usize, values: &[f64]) {
        let held = &mut self.values[group];
        let before = held.len();
        match values.iter().any(|value| value.is_nan()) {
            false => held.extend_from_slice(values),
            true => held.extend(values.iter().filter(|value| !value.is_nan())),
        }
        self.held += held.len() - before;
    }
}

impl GroupsAccumulator for ValuesByGroup {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        self.values.resize_with(total, Vec::new);
        let values = values[0].as_primitive::<Float64Type>();
        if filter.is_none() && values.null_count() == 0 {
            // Rows of one group often follow each other.
            let mut values = &values.values()[..];
            for run in groups.chunk_by(|a, b| a == b) {
                let (these, rest) = values.split_at(run.len());
                self.extend(run[0], these);
                values = rest;
            }
            return Ok(());
        }
        let counts = |row: usize| filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
        for (row, (&group, value)) in groups.iter().zip(values).enumerate() {
            if let Some(value) = value.filter(|value| !value.is_nan() && counts(row)) {
                self.values[group].push(value);
                self.held += 1;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let mut groups = self.take(emit_to);
        Ok(match &self.statistic {
            Statistic::Mad => Arc::new(groups.iter_mut().map(|values| mad(values)).collect::<Float64Array>()),
            Statistic::Quantiles(ranks) => {
                let mut lists = ListBuilder::new(Float64Builder::new());
                for values in &mut groups {
                    match quantiles(values, ranks) {
                        Some(found) => lists.append_value(found.into_iter().map(Some)),
                        None => lists.append_null(),
                    }
                }
                Arc::new(lists.finish())
            }
        })
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let groups = self.take(emit_to);
        let lengths = OffsetBuffer::from_lengths(groups.iter().map(Vec::len));
        let mut values = Vec::with_capacity(groups.iter().map(Vec::len).sum());
        groups.into_iter().for_each(|group| values.extend(group));
        let values = Float64Array::from(values);
        let field = Arc::new(Field::new_list_field(DataType::Float64, true));
        Ok(vec![Arc::new(ListArray::try_new(field, lengths, Arc::new(values), None)?)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.values.resize_with(total, Vec::new);
        let lists = states[0].as_list::<i32>();
        for (&group, list) in groups.iter().zip(lists.iter()) {
            let Some(list) = list else { continue };
            let values = list.as_primitive::<Float64Type>().values();
            self.values[group].extend_from_slice(values);
            self.held += values.len();
        }
        Ok(())
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let mut alone = Self { statistic: self.statistic.clone(), values: Vec::new(), held: 0 };
        let rows = values[0].len();
        alone.update_batch(values, &(0..rows).collect::<Vec<_>>(), filter, rows)?;
        alone.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        // Vectors grow by doubling, so about a quarter of their capacity is unused.
        self.values.capacity() * size_of::<Vec<f64>>() + self.held * size_of::<f64>() * 4 / 3
    }
}

/// Values at these ranks, 0 to 1; `None` if there are no values. Partly sorts them.
fn quantiles(values: &mut [f64], ranks: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() {
        return None;
    }
    let mut ascending: Vec<usize> = (0..ranks.len()).collect();
    ascending.sort_by(|a, b| ranks[*a].total_cmp(&ranks[*b]));
    let mut found = vec![0.0; ranks.len()];
    // Values below one rank need not be searched again for the next.
    let mut done = 0;
    for place in ascending {
        let at = ranks[place] * (values.len() - 1) as f64;
        let below = at.floor() as usize;
        let (_, low, rest) = values[done..].select_nth_unstable_by(below - done, f64::total_cmp);
        let low = *low;
        let high = rest.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
        found[place] = if at > below as f64 { low + (high - low) * (at - below as f64) } else { low };
        done = below;
    }
    Some(found)
}

/// Median absolute deviation; `None` if there are no values.
fn mad(values: &mut [f64]) -> Option<f64> {
    let median = quantiles(values, &[0.5])?[0];
    values.iter_mut().for_each(|value| *value = (*value - median).abs());
    quantiles(values, &[0.5]).map(|found| found[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::prelude::SessionContext;

    #[test]
    fn quantiles_lie_between_values_in_proportion() {
        // R: quantile(c(15, 20, 35, 40, 50), c(.4, .05, 1), type = 7) is 29, 16, 50.
        let mut values = [50.0, 15.0, 40.0, 20.0, 35.0];
        let found = quantiles(&mut values, &[0.4, 0.05, 1.0]).unwrap();
        found
            .iter()
            .zip([29.0, 16.0, 50.0])
            .for_each(|(found, right)| assert!((found - right).abs() < 1e-12));
        assert_eq!(quantiles(&mut [], &[0.5]), None);
        assert_eq!(quantiles(&mut [7.0], &[0.0, 0.5, 1.0]), Some(vec![7.0; 3]));
        // R: mad(c(1, 1, 2, 2, 4, 6, 9), constant = 1) is 1.
        assert_eq!(mad(&mut [1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), Some(1.0));
    }

    #[tokio::test]
    async fn sql_computes_them_by_group_and_over_everything_with_integers_and_nulls() {
        let ctx = SessionContext::new();
        crate::functions::register(&ctx);
        let sql = |sql: &'static str| {
            let ctx = &ctx;
            async move {
                let batches = ctx.sql(sql).await?.collect().await?;
                Ok::<_, datafusion::error::DataFusionError>(
                    arrow::util::pretty::pretty_format_batches(&batches)?.to_string(),
                )
            }
        };
        let rows = "(VALUES ('a', 1), ('a', 2), ('a', NULL), ('a', 4), ('b', 10), ('c', NULL)) AS t(k, v)";
        let by_group = format!(
            "SELECT k, quantiles(v, 0.5, 1) AS q, quantiles(v, 0.25)[1] AS low, mad(v) AS mad FROM {rows} GROUP BY k ORDER BY k"
        );
        let by_group = sql(Box::leak(by_group.into_boxed_str())).await.unwrap();
        for row in [
            "| a | [2.0, 4.0]   | 1.5  | 1.0 |",
            "| b | [10.0, 10.0] | 10.0 | 0.0 |",
            "| c |              |      |     |",
        ] {
            assert!(by_group.contains(row), "{row} is not in\n{by_group}");
        }
        let all =
            format!("SELECT quantiles(v, 0.5)[1] AS median, mad(v) FILTER (WHERE v < 4) AS mad FROM {rows}");
        let all = sql(Box::leak(all.into_boxed_str())).await.unwrap();
        assert!(all.contains("| 3.0    | 0.5 |"), "{all}");
        for (wrong, says) in [
            ("SELECT quantiles(1, 2)", "ranks are numbers from 0 to 1"),
            ("SELECT quantiles(v, v) FROM (VALUES (0.5)) AS t(v)", "must be literal numbers"),
        ] {
            let error = sql(wrong).await.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
