//! Runs the SQL of a partial aggregate without DataFusion's hash aggregation.
//!
//! DataFusion plans the SQL and evaluates its expressions. Only the grouping is our own
//! ([`Aggregator`]): rows arrive in runs of one key, and most of the hundred columns of a GPU's
//! minute are of metrics that were not collected.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use crate::error::Result;
use crate::exec::aggregate::{Aggregator, Function, Input, is_supported};
use crate::exec::grouping::{Grouping, Place, whole};
use crate::table::{Merge, TableSpec};

/// The plan's result, sorted by `key` with NULL first; `None` if the plan needs DataFusion.
pub(super) async fn aggregate(
    ctx: &SessionContext,
    plan: &Arc<dyn ExecutionPlan>,
    key: &[String],
) -> Result<Option<RecordBatch>> {
    let Some(grouping) = Grouping::of(plan, key).filter(|grouping| grouping.is_whole) else {
        return Ok(None);
    };
    let functions = grouping.values.iter().map(|value| (value.function, value.data_type.clone()));
    let mut groups = Aggregator::new(&grouping.key_types()?, functions)?;
    for partition in 0..grouping.partitions() {
        let mut rows = grouping.input.execute(partition, ctx.task_ctx())?;
        while let Some(batch) = rows.try_next().await? {
            let (keys, values) = grouping.columns_of(&batch)?;
            groups.push(&keys, &values)?;
        }
    }
    let (keys, values) = groups.finish()?;
    let column = |place: &Place| match place {
        Place::Key(at) => Arc::clone(&keys[*at]),
        Place::Value(at) => Arc::clone(&values[*at]),
    };
    let columns = grouping.columns.iter().map(column).collect();
    Ok(Some(RecordBatch::try_new(plan.schema(), columns)?))
}

/// Merges rows that have the same key into one. The result is sorted by key, NULL first, and has
/// the columns of `batches`, which share one schema. Returns `None` for types that only DataFusion
/// can merge.
pub(crate) fn merge(spec: &TableSpec, batches: &[RecordBatch]) -> Result<Option<RecordBatch>> {
    let Some(first) = batches.first() else { return Ok(None) };
    let schema = first.schema();
    let function = |place: usize| match spec.partials.get(place) {
        Some(Merge::Key) => None,
        Some(Merge::Sum) => Some(Function::Sum),
        Some(Merge::Min) => Some(Function::Min),
        // The only further column is the revision.
        Some(Merge::Max) | None => Some(Function::Max),
    };
    let keys: Vec<usize> =
        spec.key.iter().map(|name| schema.index_of(name)).collect::<std::result::Result<_, _>>()?;
    let values: Vec<(usize, Function)> =
        (0..schema.fields().len()).filter_map(|place| Some((place, function(place)?))).collect();
    let data_type = |place: usize| schema.field(place).data_type();
    if spec.partials.is_empty()
        || !values.iter().all(|(place, function)| is_supported(*function, data_type(*place)))
    {
        return Ok(None);
    }
    let key_types: Vec<_> = keys.iter().map(|place| data_type(*place).clone()).collect();
    let columns = values.iter().map(|(place, function)| (*function, data_type(*place).clone()));
    let mut groups = Aggregator::new(&key_types, columns)?;
    for batch in batches {
        let key: Vec<ArrayRef> = keys.iter().map(|place| Arc::clone(batch.column(*place))).collect();
        let inputs: Vec<Input> = values.iter().map(|(place, _)| whole(batch.column(*place))).collect();
        groups.push(&key, &inputs)?;
    }
    let (key_columns, value_columns) = groups.finish()?;
    let mut columns: Vec<ArrayRef> = batches[0].columns().to_vec();
    keys.into_iter().zip(key_columns).for_each(|(place, column)| columns[place] = column);
    values.into_iter().zip(value_columns).for_each(|((place, _), column)| columns[place] = column);
    Ok(Some(RecordBatch::try_new(schema, columns)?))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringViewArray, TimestampMicrosecondArray};
    use arrow::compute::concat_batches;
    use datafusion::datasource::MemTable;
    use datafusion::physical_plan::collect;
    use proptest::prelude::*;

    use super::*;
    use crate::batch::sort::sorted;
    use crate::engine::{self, Limits};

    /// Window, device, and two values.
    type Row = (i64, Option<u8>, Option<i64>, Option<i64>);

    fn batch(rows: &[Row]) -> RecordBatch {
        let times =
            TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| row.0)).with_timezone("UTC");
        let name = |device: u8| ["", "a", "GPU-with-a-name-of-many-bytes", "b"][usize::from(device)];
        let devices: StringViewArray = rows.iter().map(|row| row.1.map(name)).collect();
        let x: Int64Array = rows.iter().map(|row| row.2).collect();
        let y: Int64Array = rows.iter().map(|row| row.3).collect();
        let columns: [(&str, ArrayRef, bool); 4] = [
            ("at", Arc::new(times), true),
            ("device", Arc::new(devices), true),
            ("x", Arc::new(x), true),
            ("y", Arc::new(y), true),
        ];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    /// What our grouping and what DataFusion's makes of the rows.
    async fn both(sql: &str, batches: Vec<RecordBatch>) -> (Option<RecordBatch>, RecordBatch) {
        let limits = Limits { threads: 1, ..Limits::default() };
        let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
        let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
        ctx.register_table("t", Arc::new(table)).unwrap();
        let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let key = ["device".to_owned(), "at".to_owned()];
        let ours = aggregate(&ctx, &plan, &key).await.unwrap();
        let theirs = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
        let theirs = concat_batches(&plan.schema(), &theirs).unwrap();
        (ours, sorted(&theirs, &key).unwrap())
    }

    const VALUES: &str = "sum(x) AS total, sum(x + y) AS pair, min(y) AS least, max(x) AS most, max(at) AS newest, \
        count(*) AS row_count, count(y) AS known_count, sum(CASE WHEN x > 0 THEN y END) AS chosen, \
        sum(y) FILTER (WHERE x < 2) AS picked, sum(coalesce(x, y)) AS first_known_sum";

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Runs of equal keys, keys that come back, NULLs and overflows.
        #[test]
        fn rows_are_grouped_as_datafusion_groups_them(
            rows in prop::collection::vec(
                (
                    0_i64..2,
                    prop::option::of(0_u8..4),
                    prop::option::of(prop_oneof![-3_i64..3, Just(i64::MAX)]),
                    prop::option::of(-3_i64..3),
                    1_usize..5,
                ),
                1..20,
            ),
            cut in 0_usize..20,
        ) {
            let rows: Vec<Row> =
                rows.into_iter().flat_map(|(at, device, x, y, times)| vec![(at, device, x, y); times]).collect();
            let cut = cut.min(rows.len());
            let batches = vec![batch(&rows[..cut]), batch(&rows[cut..])];
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            for order in ["at, device", "device, at"] {
                let sql = format!("SELECT {order}, {VALUES} FROM t GROUP BY {order}");
                let (ours, theirs) = runtime.block_on(both(&sql, batches.clone()));
                prop_assert_eq!(ours.expect("a plain grouping"), theirs);
            }
        }
    }

    #[tokio::test]
    async fn other_plans_are_left_to_datafusion() {
        let rows = batch(&[(0, Some(1), Some(1), Some(2)), (0, Some(1), Some(3), None)]);
        for values in ["avg(x) AS n", "sum(x) + 1 AS n", "min(device) AS n"] {
            let sql = format!("SELECT at, device, {values} FROM t GROUP BY at, device");
            assert_eq!(both(&sql, vec![rows.clone()]).await.0, None, "{values}");
        }
    }
}
