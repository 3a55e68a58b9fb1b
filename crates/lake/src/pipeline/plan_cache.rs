//! Caches the optimized logical plan of a pipeline's SQL.
//!
//! Most flushes bring few rows, so planning their SQL is a large part of their cost. Only the rows
//! of the sources change between two runs, so the plan is optimized once, over empty tables. Each
//! run replaces the table scans with its own sources, pushes filters down into them, and does the
//! physical planning. Clones of a [`crate::pipeline::plan::Plan`] share the cache. So do restarts
//! of a lake in one process, and the deliveries of [`crate::testing::equivalence`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableScan};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{Optimizer, OptimizerContext};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;

use crate::engine::{self, Limits};
use crate::error::Result;
use crate::pipeline::coalesce;
use crate::pipeline::definition::Pipeline;

/// Plans kept per pipeline, one for each combination of source schemas. Schemas vary little: text
/// may be dictionary-encoded, and columns may be nullable or not.
const MAX_TEMPLATES: usize = 8;

/// Plans of one pipeline.
#[derive(Debug, Clone, Default)]
pub struct PlanCache(Arc<Mutex<Vec<Template>>>);

#[derive(Debug, Clone)]
struct Template {
    /// Schemas of the pipeline's sources, in order.
    schemas: Vec<SchemaRef>,
    plan: Arc<LogicalPlan>,
}

/// What a run puts in place of a table scan.
enum FilledSource {
    Table(Arc<dyn TableProvider>),
    /// An optimized view.
    View(LogicalPlan),
}

impl PlanCache {
    /// Runs the SQL over the pipeline's sources as registered in `ctx`.
    ///
    /// Returns the result's schema and rows.
    pub async fn run(
        &self,
        ctx: &SessionContext,
        pipeline: &Pipeline,
    ) -> Result<(SchemaRef, Vec<RecordBatch>)> {
        let (schema, execution) = self.execution(ctx, pipeline).await?;
        Ok((schema, collect(execution, ctx.task_ctx()).await?))
    }

    /// The physical plan of such a run, and the result's schema.
    pub async fn execution(
        &self,
        ctx: &SessionContext,
        pipeline: &Pipeline,
    ) -> Result<(SchemaRef, Arc<dyn ExecutionPlan>)> {
        let (mut schemas, mut sources) = (Vec::new(), BTreeMap::new());
        let state = ctx.state();
        for name in &pipeline.sources {
            let table = ctx.table_provider(name.as_str()).await?;
            schemas.push(table.schema());
            let view = table.get_logical_plan().map(|plan| state.optimize(&plan)).transpose()?;
            sources.insert(name.as_str(), view.map_or(FilledSource::Table(table), FilledSource::View));
        }
        let template = match self.find(&schemas) {
            Some(plan) => plan,
            None => self.add(ctx, pipeline, schemas).await?,
        };
        let filled = fill_scans(&template, &sources)?;
        let schema = Arc::new(filled.schema().as_arrow().clone());
        let once = OptimizerContext::new().with_max_passes(1);
        let pushed = Optimizer::with_rules(vec![Arc::new(PushDownFilter::new())]).optimize(
            filled,
            &once,
            |_, _| {},
        )?;
        Ok((schema, state.query_planner().create_physical_plan(&pushed, &state).await?))
    }

    fn find(&self, schemas: &[SchemaRef]) -> Option<Arc<LogicalPlan>> {
        let templates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        templates.iter().find(|find| find.schemas == schemas).map(|find| Arc::clone(&find.plan))
    }

    async fn add(
        &self,
        ctx: &SessionContext,
        pipeline: &Pipeline,
        schemas: Vec<SchemaRef>,
    ) -> Result<Arc<LogicalPlan>> {
        let empty = engine::session(&ctx.runtime_env(), Limits::default());
        for (name, schema) in pipeline.sources.iter().zip(&schemas) {
            let table = MemTable::try_new(Arc::clone(schema), vec![vec![]])?;
            empty.register_table(name.as_str(), Arc::new(table))?;
        }
        let state = empty.state();
        let plan = state.optimize(&state.create_logical_plan(&pipeline.sql).await?)?;
        let plan = Arc::new(coalesce::eager(plan)?);
        let mut templates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if templates.len() == MAX_TEMPLATES {
            templates.remove(0);
        }
        templates.push(Template { schemas, plan: Arc::clone(&plan) });
        Ok(plan)
    }
}

/// The template with its table scans replaced by the sources.
fn fill_scans(template: &LogicalPlan, sources: &BTreeMap<&str, FilledSource>) -> Result<LogicalPlan> {
    let filled = template.clone().transform_down_with_subqueries(|node| {
        let LogicalPlan::TableScan(scan) = &node else { return Ok(Transformed::no(node)) };
        let plan = match sources.get(scan.table_name.table()) {
            Some(FilledSource::Table(table)) => LogicalPlan::TableScan(TableScan {
                source: provider_as_source(Arc::clone(table)),
                ..scan.clone()
            }),
            Some(FilledSource::View(view)) => view_for_scan(scan, view.clone())?,
            None => return Ok(Transformed::no(node)),
        };
        Ok(Transformed::new(plan, true, TreeNodeRecursion::Jump))
    })?;
    Ok(filled.data)
}

/// A view with the columns, filters and limit of a table scan.
fn view_for_scan(scan: &TableScan, view: LogicalPlan) -> datafusion::error::Result<LogicalPlan> {
    let mut rows = LogicalPlanBuilder::from(view).alias(scan.table_name.clone())?;
    for filter in &scan.filters {
        rows = rows.filter(filter.clone())?;
    }
    if scan.projection.is_some() {
        rows = rows.project(scan.projected_schema.iter().map(|field| Expr::Column(Column::from(field))))?;
    }
    if scan.fetch.is_some() {
        rows = rows.limit(0, scan.fetch)?;
    }
    rows.build()
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array, StringViewArray};
    use arrow::datatypes::Int64Type;
    use datafusion::physical_plan::displayable;

    use super::*;
    use crate::engine::{runtime, session};

    const SUMS: &str = "\
--! name = \"sums\"
--! doc = \"Sums.\"
--! sources = [\"numbers\", \"names\"]
--! [columns]
--! name = \"Name.\"
--! total = \"Sum.\"
SELECT name, sum(number) AS total FROM numbers JOIN names USING (id)
WHERE number > 0 AND numbers.id IN (SELECT id FROM numbers GROUP BY id HAVING count(*) < 3) GROUP BY name";

    fn numbers(rows: &[(i64, i64)]) -> RecordBatch {
        let column = |of: fn(&(i64, i64)) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(of)));
        RecordBatch::try_from_iter([("id", column(|row| row.0) as _), ("number", column(|row| row.1) as _)])
            .unwrap()
    }

    async fn total(cache: &PlanCache, rows: &[(i64, i64)]) -> i64 {
        let limits = Limits::default();
        let ctx = session(&runtime(limits).unwrap(), limits);
        let ids = Arc::new(Int64Array::from_iter_values([1, 2]));
        let names = Arc::new(StringViewArray::from_iter_values(["a", "b"]));
        let names = RecordBatch::try_from_iter([("id", ids as _), ("name", names as _)]).unwrap();
        ctx.register_batch("names", names).unwrap();
        ctx.register_batch("all_rows", numbers(rows)).unwrap();
        // Windows see their source in this way: as a view with bounds that differ from run to run.
        let view = format!("SELECT id, number FROM all_rows WHERE number < {}", rows.len() * 100);
        ctx.register_table("numbers", ctx.sql(&view).await.unwrap().into_view()).unwrap();
        let (schema, found) = cache.run(&ctx, &Pipeline::parse("sums.sql", SUMS).unwrap()).await.unwrap();
        assert_eq!(schema.field(1).name(), "total");
        found.iter().flat_map(|batch| batch.column(1).as_primitive::<Int64Type>().values().to_vec()).sum()
    }

    fn templates(cache: &PlanCache) -> usize {
        cache.0.lock().unwrap().len()
    }

    #[tokio::test]
    async fn runs_share_a_plan_and_not_their_rows() {
        let cache = PlanCache::default();
        assert_eq!(total(&cache, &[(1, 10), (2, -5), (2, 20)]).await, 30);
        // Three rows of one id are too many, 900 exceeds the bound, and id 3 has no name.
        assert_eq!(total(&cache, &[(1, 1), (1, 2), (1, 3), (2, 900), (3, 5), (2, 7)]).await, 7);
        assert_eq!(total(&cache, &[]).await, 0);
        // A clone shares the plan.
        assert_eq!(total(&cache.clone(), &[(1, 1)]).await, 1);
        assert_eq!(templates(&cache), 1);
    }

    #[tokio::test]
    async fn filters_reach_the_rows_of_a_source() {
        let limits = Limits::default();
        let ctx = session(&runtime(limits).unwrap(), limits);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.parquet");
        let rows = ctx.read_batch(numbers(&[(1, 10), (2, 20)])).unwrap();
        rows.write_parquet(file.to_str().unwrap(), Default::default(), None).await.unwrap();
        ctx.register_parquet("numbers", file.to_str().unwrap(), Default::default()).await.unwrap();
        let text = SUMS.split_once("SELECT").unwrap().0.replace(", \"names\"", "")
            + "SELECT CAST(id AS VARCHAR) AS name, number AS total FROM numbers WHERE number > 15";
        let pipeline = Pipeline::parse("large.sql", &text).unwrap();
        let cache = PlanCache::default();
        let (_, found) = cache.run(&ctx, &pipeline).await.unwrap();
        assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
        let execution = cache.execution(&ctx, &pipeline).await.unwrap().1;
        let shown = displayable(execution.as_ref()).indent(false).to_string();
        assert!(shown.contains("predicate=number@1 > 15"), "{shown}");
    }

    #[tokio::test]
    async fn other_columns_get_a_plan_of_their_own_and_few_plans_are_kept() {
        let limits = Limits::default();
        let text = SUMS.split_once("SELECT").unwrap().0.replace(", \"names\"", "")
            + "SELECT '' AS name, count(*) AS total FROM numbers";
        let pipeline = Pipeline::parse("count.sql", &text).unwrap();
        let cache = PlanCache::default();
        for width in 1..=MAX_TEMPLATES + 3 {
            let ctx = session(&runtime(limits).unwrap(), limits);
            let column = Arc::new(Int64Array::from_iter_values([1]));
            let columns = (0..width).map(|at| (format!("c{at}"), Arc::clone(&column) as _));
            ctx.register_batch("numbers", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
            cache.run(&ctx, &pipeline).await.unwrap();
        }
        assert_eq!(templates(&cache), MAX_TEMPLATES);
    }
}
