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

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringViewArray, TimestampMicrosecondArray};
    use datafusion::datasource::MemTable;
    use proptest::prelude::*;

    use super::*;
    use crate::batch::sort::sorted;
    use crate::engine::{self, Limits};

    /// Window, team, job, and a value.
    type Row = (i64, Option<u8>, Option<u8>, Option<i64>);

    fn table(rows: &[Row]) -> Arc<MemTable> {
        let times = TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| row.0));
        let name = |text: u8| ["", "b", "a-text-of-more-than-12-bytes", "a"][usize::from(text)];
        let teams: StringViewArray = rows.iter().map(|row| row.1.map(name)).collect();
        let jobs: StringViewArray = rows.iter().map(|row| row.2.map(name)).collect();
        let values: Int64Array = rows.iter().map(|row| row.3).collect();
        let columns: [(&str, ArrayRef, bool); 4] = [
            ("at", Arc::new(times.with_timezone("UTC")), true),
            ("team", Arc::new(teams), true),
            ("job", Arc::new(jobs), true),
            ("x", Arc::new(values), true),
        ];
        let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]]).unwrap())
    }

    /// What our grouping and what DataFusion's makes of the rows, with so much memory.
    async fn both(sql: &str, parts: [&[Row]; 2], bytes: usize) -> (Option<RecordBatch>, RecordBatch) {
        let limits = Limits { threads: 1, memory_bytes: bytes };
        let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
        ctx.register_table("t", table(parts[0])).unwrap();
        ctx.register_table("u", table(parts[1])).unwrap();
        let key = ["at", "team", "job"].map(str::to_owned);
        let plan = || async { ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap() };
        let ours = plan().await;
        let ours = match Summed::of(&ours, &key).unwrap() {
            Some(summed) => summed.rows(&ctx).await.unwrap(),
            None => None,
        };
        let theirs = plan().await;
        let rows = collect(Arc::clone(&theirs), ctx.task_ctx()).await.unwrap();
        (ours, sorted(&concat_batches(&theirs.schema(), &rows).unwrap(), &key).unwrap())
    }

    const ALL: &str = "(SELECT at, team, job, x FROM t UNION ALL SELECT at, team, NULL, -x FROM u)";

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Runs of one text, texts that come back, NULLs, and groups that the condition drops.
        #[test]
        fn rows_are_summed_as_datafusion_sums_them(
            rows in prop::collection::vec(
                (0_i64..3, prop::option::of(0_u8..4), prop::option::of(0_u8..4), prop::option::of(-2_i64..3)),
                0..40,
            ),
            cut in 0_usize..40,
        ) {
            let (t, u) = rows.split_at(cut.min(rows.len()));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            for sql in [
                format!("SELECT at, team, job, sum(x) AS s FROM {ALL} GROUP BY at, team, job HAVING sum(x) <> 0"),
                "SELECT sum(x) AS s, job, max(x) FILTER (WHERE x < 2) AS m, at, team FROM t GROUP BY at, job, team".into(),
                "SELECT at, team, job, min(x) + 1 AS n FROM t GROUP BY at, team, job".into(),
            ] {
                let (ours, theirs) = runtime.block_on(both(&sql, [t, u], 64 << 20));
                prop_assert_eq!(ours.expect("a sum by text"), theirs, "{}", sql);
            }
        }
    }

    #[tokio::test]
    async fn other_plans_and_sums_without_memory_are_left_to_datafusion() {
        let rows: Vec<Row> = (0..20_000).map(|at| (at, Some(1), Some(2), Some(3))).collect();
        for values in ["count(x) AS n", "avg(x) AS n", "max(at) AS n"] {
            let sql = format!("SELECT at, team, job, {values} FROM t GROUP BY at, team, job");
            assert_eq!(both(&sql, [&rows[..9], &[]], 64 << 20).await.0, None, "{values}");
        }
        let sql = "SELECT at, team, job, sum(x) AS x FROM t GROUP BY at, team, job";
        assert!(both(sql, [&rows, &[]], 64 << 20).await.0.is_some());
        let limits = Limits { threads: 1, memory_bytes: 100_000 };
        let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
        ctx.register_table("t", table(&rows)).unwrap();
        let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let key = ["at", "team", "job"].map(str::to_owned);
        let summed = Summed::of(&plan, &key).unwrap().expect("a sum by text");
        assert_eq!(summed.rows(&ctx).await.unwrap(), None);
    }
}
