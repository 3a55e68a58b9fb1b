//! Finds the aggregation of a plan that ends in one, so that rows can be grouped without
//! DataFusion's hash tables.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{CaseExpr, Column};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::error::Result;
use crate::exec::aggregate::{Function, Input, is_supported};

/// Where a column of the result comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Key(usize),
    Value(usize),
}

/// What a plan groups: an aggregation below projections and conditions (`HAVING`) at most.
pub(super) struct Grouping {
    /// In the order of the sorted key.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
    pub values: Vec<Value>,
    /// Columns of the plan's result, if it is whole.
    pub columns: Vec<Place>,
    /// Columns of the aggregation's result, and their schema.
    pub grouped: Vec<Place>,
    pub grouped_schema: SchemaRef,
    /// Rows to group, in several partitions.
    pub input: Arc<dyn ExecutionPlan>,
    /// Whether every group is in the result, with nothing computed from it.
    pub is_whole: bool,
    schema: SchemaRef,
}

/// One aggregated column.
pub(super) struct Value {
    pub function: Function,
    pub data_type: DataType,
    of: Arc<dyn PhysicalExpr>,
    /// Rows to take; `None` for all.
    filter: Option<Arc<dyn PhysicalExpr>>,
}

impl Grouping {
    /// `None` if the plan groups by anything but the key, or computes anything but plain sums,
    /// counts, minima and maxima of integers.
    pub fn of(plan: &Arc<dyn ExecutionPlan>, key: &[String]) -> Option<Self> {
        let (aggregate, places, is_whole) = below(plan)?;
        let count = aggregate.group_expr().expr().len();
        let schema = plan.schema();
        // Of each column of the key: its place in the result, and from there among the groups.
        let group_of =
            |name: &String| places.get(schema.index_of(name).ok()?).copied()?.filter(|at| *at < count);
        let order: Vec<usize> = key.iter().map(group_of).collect::<Option<_>>()?;
        if order.len() != count || (0..count).any(|group| !order.contains(&group)) {
            return None;
        }
        let rows = first_pass(aggregate)?;
        let groups = rows.group_expr();
        let functions = rows.aggr_expr().iter().zip(rows.filter_expr());
        let column = |at: usize| match at.checked_sub(count) {
            Some(value) => Place::Value(value),
            None => Place::Key(order.iter().position(|group| *group == at).expect("every group is a key")),
        };
        Some(Self {
            keys: order.iter().map(|group| Arc::clone(&groups.expr()[*group].0)).collect(),
            values: functions.map(|(of, filter)| Value::of(of, filter.clone())).collect::<Option<_>>()?,
            columns: places.iter().flatten().map(|at| column(*at)).collect(),
            grouped: (0..aggregate.schema().fields().len()).map(column).collect(),
            grouped_schema: aggregate.schema(),
            input: Arc::clone(rows.input()),
            is_whole: is_whole && places.iter().all(Option::is_some),
            schema: rows.input_schema(),
        })
    }

    pub fn partitions(&self) -> usize {
        self.input.output_partitioning().partition_count()
    }

    pub fn key_types(&self) -> Result<Vec<DataType>> {
        let types = self.keys.iter().map(|key| key.data_type(&self.schema));
        Ok(types.collect::<std::result::Result<_, _>>()?)
    }

    /// Keys and values of a batch of the input.
    pub fn columns_of(&self, batch: &RecordBatch) -> Result<(Vec<ArrayRef>, Vec<Input>)> {
        let keys = self.keys.iter().map(|key| evaluate(key, batch)).collect::<Result<_>>()?;
        let values = self.values.iter().map(|value| value.input(batch)).collect::<Result<_>>()?;
        Ok((keys, values))
    }
}

/// The aggregation below a plan; which of its columns each column of the plan is; and whether all
/// rows of it are in the plan.
fn below(plan: &Arc<dyn ExecutionPlan>) -> Option<(&AggregateExec, Vec<Option<usize>>, bool)> {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let all = (0..plan.schema().fields().len()).map(Some).collect();
        return Some((aggregate, all, true));
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let (aggregate, places, is_whole) = below(projection.input())?;
        let place = |expr: &Arc<dyn PhysicalExpr>| places[expr.downcast_ref::<Column>()?.index()];
        let places = projection.expr().iter().map(|projected| place(&projected.expr)).collect();
        return Some((aggregate, places, is_whole));
    }
    let filter = plan.downcast_ref::<FilterExec>()?;
    let (aggregate, places, _) = below(filter.input())?;
    let places = match filter.projection() {
        None => places,
        Some(projection) => projection.iter().map(|place| places[*place]).collect(),
    };
    Some((aggregate, places, false))
}

/// The aggregation that reads the rows: this one, or the one whose results it puts together.
fn first_pass(aggregate: &AggregateExec) -> Option<&AggregateExec> {
    let rows = match aggregate.mode() {
        AggregateMode::Single | AggregateMode::SinglePartitioned => aggregate,
        AggregateMode::Final => {
            let parts = aggregate.input().downcast_ref::<CoalescePartitionsExec>()?;
            let rows = parts.input().downcast_ref::<AggregateExec>()?;
            (*rows.mode() == AggregateMode::Partial).then_some(rows)?
        }
        _ => return None,
    };
    let plain = |aggregate: &AggregateExec| {
        let groups = aggregate.group_expr();
        !groups.has_grouping_set() && !groups.is_empty() && aggregate.limit_options().is_none()
    };
    (plain(aggregate) && plain(rows)).then_some(rows)
}

impl Value {
    fn of(function: &AggregateFunctionExpr, filter: Option<Arc<dyn PhysicalExpr>>) -> Option<Self> {
        let kind = match function.fun().name() {
            "sum" => Function::Sum,
            "count" => Function::Count,
            "min" => Function::Min,
            "max" => Function::Max,
            _ => return None,
        };
        let data_type = function.field().data_type().clone();
        let arguments = function.expressions();
        let [of] = arguments.as_slice() else { return None };
        if function.is_distinct() || !is_supported(kind, &data_type) {
            return None;
        }
        // CASE WHEN c THEN x END is x, of the rows in which c is true.
        let case = of
            .downcast_ref::<CaseExpr>()
            .filter(|case| filter.is_none() && case.expr().is_none() && case.else_expr().is_none());
        let (of, filter) = match case.map(CaseExpr::when_then_expr) {
            Some([(when, then)]) if then.is::<Column>() => (then, Some(Arc::clone(when))),
            _ => (of, filter),
        };
        Some(Self { function: kind, of: Arc::clone(of), filter, data_type })
    }

    fn input(&self, batch: &RecordBatch) -> Result<Input> {
        let Some(filter) = &self.filter else { return Ok(whole(&evaluate(&self.of, batch)?)) };
        let mask: BooleanArray = evaluate(filter, batch)?.as_boolean().clone();
        if !mask.has_true() {
            return Ok(Input::Nothing);
        }
        Ok(match whole(&evaluate(&self.of, batch)?) {
            Input::Values(values, _) => Input::Values(values, Some(mask)),
            Input::Nothing => Input::Nothing,
        })
    }
}

pub(super) fn whole(values: &ArrayRef) -> Input {
    match values.logical_null_count() == values.len() {
        true => Input::Nothing,
        false => Input::Values(Arc::clone(values), None),
    }
}

fn evaluate(expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<ArrayRef> {
    Ok(expr.evaluate(batch)?.into_array(batch.num_rows())?)
}
