//! Runs SQL that sums up windows by text without DataFusion's hash aggregation, as the ledger's
//! hours and days do.
//!
//! DataFusion plans the SQL, makes the rows and evaluates its expressions. Only the grouping is our
//! own ([`WindowSums`]): it hashes a text where it differs from the row before, and its result is
//! sorted.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::{ExecutionPlan, collect, replace_children_if_necessary};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use crate::error::Result;
use crate::exec::aggregate::Function;
use crate::exec::grouping::{Grouping, Place, Value};
use crate::exec::window_sums::{WindowSums, starts};

/// A plan that sums up windows by text.
pub(super) struct Summed<'a> {
    plan: &'a Arc<dyn ExecutionPlan>,
    grouping: Grouping,
}

impl<'a> Summed<'a> {
    /// `None` if only DataFusion can run the plan.
    pub fn of(plan: &'a Arc<dyn ExecutionPlan>, key: &[String]) -> Result<Option<Self>> {
        let Some(grouping) = Grouping::of(plan, key) else { return Ok(None) };
        let is_integer =
            |value: &Value| value.function != Function::Count && value.data_type == DataType::Int64;
        let is_simple = is_by_text(&grouping.key_types()?) && grouping.values.iter().all(is_integer);
        Ok(is_simple.then_some(Self { plan, grouping }))
    }

    /// The plan's result, sorted by key with NULL first. `None` if there is no memory for the
    /// groups: DataFusion can spill them to disk.
    pub async fn rows(&self, ctx: &SessionContext) -> Result<Option<RecordBatch>> {
        let Some(rows) = self.grouped(ctx).await? else { return Ok(None) };
        let schema = rows.schema();
        let rows = MemorySourceConfig::try_new_exec(&[vec![rows]], schema, None)?;
        let rest = in_place_of_aggregation(self.plan, rows)?;
        let rows = collect(Arc::clone(&rest), ctx.task_ctx()).await?;
        Ok(Some(concat_batches(&rest.schema(), &rows)?))
    }

    /// The aggregation's result.
    async fn grouped(&self, ctx: &SessionContext) -> Result<Option<RecordBatch>> {
        let grouping = &self.grouping;
        let claimed = MemoryConsumer::new("sums of windows").register(&ctx.runtime_env().memory_pool);
        let functions = grouping.values.iter().map(|value| value.function);
        let mut groups = WindowSums::new(grouping.keys.len() - 1, functions);
        for partition in 0..grouping.partitions() {
            let mut rows = grouping.input.execute(partition, ctx.task_ctx())?;
            while let Some(batch) = rows.try_next().await? {
                let (keys, values) = grouping.columns_of(&batch)?;
                let Some(starts) = starts(&keys[0]) else { return Ok(None) };
                let texts: Vec<_> = keys[1..].iter().map(|texts| texts.as_string_view()).collect();
                groups.push(starts, &texts, &values);
                if claimed.try_resize(groups.bytes()).is_err() {
                    return Ok(None);
                }
            }
        }
        let (windows, texts, values) = groups.finish()?;
        let column = |place: &Place| -> ArrayRef {
            Arc::clone(match place {
                Place::Key(0) => &windows,
                Place::Key(at) => &texts[at - 1],
                Place::Value(at) => &values[*at],
            })
        };
        let columns = grouping.grouped.iter().map(column).collect();
        Ok(Some(RecordBatch::try_new(Arc::clone(&grouping.grouped_schema), columns)?))
    }
}

/// Whether a key is the start of a window and texts.
fn is_by_text(types: &[DataType]) -> bool {
    let [DataType::Timestamp(TimeUnit::Microsecond, Some(_)), texts @ ..] = types else { return false };
    !texts.is_empty() && texts.iter().all(|text| *text == DataType::Utf8View)
}

/// The projections and conditions above the aggregation, over rows that are aggregated already.
/// They keep the order of the rows.
fn in_place_of_aggregation(
    plan: &Arc<dyn ExecutionPlan>,
    rows: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.is::<AggregateExec>() {
        return Ok(rows);
    }
    let [child] = plan.children()[..] else { unreachable!("projections and conditions have one input") };
    let rows = in_place_of_aggregation(child, rows)?;
    Ok(replace_children_if_necessary(Arc::clone(plan), vec![rows])?)
}
