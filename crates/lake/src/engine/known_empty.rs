//! Tables without rows, told to the optimizer before it begins.
//!
//! Most sites have no prices, no reservations, or no pods, and views join them all. A table that is
//! known to be empty takes its joins, unions and sums with it, so they are not planned.

use std::sync::Arc;

use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::Result;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{EmptyRelation, LogicalPlan, TableScan};
use datafusion::optimizer::optimizer::{ApplyOrder, Optimizer};
use datafusion::optimizer::propagate_empty_relation::PropagateEmptyRelation;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// The engine's rules, after those of this module. Only for plans that are made anew for each
/// query: a table that is empty now may have rows for the next one.
pub(crate) fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules: Vec<Arc<dyn OptimizerRule + Send + Sync>> =
        vec![Arc::new(KnownEmpty), Arc::new(PropagateEmptyRelation::new())];
    rules.extend(Optimizer::new().rules);
    rules
}

/// Replaces scans of tables whose provider says that they have no rows.
#[derive(Debug)]
struct KnownEmpty;

impl OptimizerRule for KnownEmpty {
    fn name(&self) -> &str {
        "known_empty"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::TableScan(scan) if is_empty(&scan) => {
                let schema = scan.projected_schema;
                Ok(Transformed::yes(LogicalPlan::EmptyRelation(EmptyRelation {
                    produce_one_row: false,
                    schema,
                })))
            }
            plan => Ok(Transformed::no(plan)),
        }
    }
}

fn is_empty(scan: &TableScan) -> bool {
    let statistics = source_as_provider(&scan.source).ok().and_then(|table| table.statistics());
    statistics.is_some_and(|statistics| statistics.num_rows == Precision::Exact(0))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
    use async_trait::async_trait;
    use datafusion::catalog::{Session, TableProvider};
    use datafusion::common::Statistics;
    use datafusion::common::project_schema;
    use datafusion::logical_expr::{Expr, TableType};
    use datafusion::physical_plan::ExecutionPlan;
    use datafusion::physical_plan::empty::EmptyExec;

    use super::*;
    use crate::engine::{Limits, query_session, runtime, session};

    /// A table that says it has no rows.
    #[derive(Debug)]
    struct NoPrices(SchemaRef);

    #[async_trait]
    impl TableProvider for NoPrices {
        fn schema(&self) -> SchemaRef {
            Arc::clone(&self.0)
        }
        fn table_type(&self) -> TableType {
            TableType::Base
        }
        fn statistics(&self) -> Option<Statistics> {
            Some(Statistics { num_rows: Precision::Exact(0), ..Statistics::new_unknown(&self.0) })
        }
        async fn scan(
            &self,
            _: &dyn Session,
            projection: Option<&Vec<usize>>,
            _: &[Expr],
            _: Option<usize>,
        ) -> Result<Arc<dyn ExecutionPlan>> {
            Ok(Arc::new(EmptyExec::new(project_schema(&self.0, projection)?)))
        }
    }

    /// The answer as text, and the number of operators that it was planned with.
    async fn answer(own: bool, sql: &str) -> (String, usize) {
        let limits = Limits::default();
        let runtime = runtime(limits).unwrap();
        let ctx = if own { query_session(&runtime, limits) } else { session(&runtime, limits) };
        let field = |name: &str, data_type| Field::new(name, data_type, true);
        let prices = Schema::new(vec![field("pool", DataType::Int64), field("price", DataType::Int32)]);
        ctx.register_table("prices", Arc::new(NoPrices(Arc::new(prices)))).unwrap();
        let column = |values: &[i64]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let jobs = [("pool", column(&[1, 2, 2])), ("ms", column(&[10, 20, 30]))];
        ctx.register_batch("jobs", RecordBatch::try_from_iter(jobs).unwrap()).unwrap();
        let rows = ctx.sql(sql).await.unwrap();
        let plan = rows.clone().create_physical_plan().await.unwrap();
        let operators = datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string();
        let batches = rows.collect().await.unwrap();
        (arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string(), operators.lines().count())
    }

    #[tokio::test]
    async fn answers_are_those_of_the_engine_with_smaller_plans() {
        for sql in [
            "SELECT j.pool, sum(ms) AS ms FROM jobs j GROUP BY j.pool UNION ALL \
             SELECT j.pool, sum(ms * price) FROM jobs j JOIN prices p ON p.pool = j.pool GROUP BY j.pool ORDER BY 1",
            "SELECT j.pool, ms, price FROM jobs j LEFT JOIN prices p ON p.pool = j.pool ORDER BY 1, 2",
            "SELECT pool, price FROM prices UNION ALL SELECT pool, ms FROM jobs ORDER BY 1, 2",
            "SELECT pool, ms FROM jobs WHERE pool NOT IN (SELECT pool FROM prices) ORDER BY 1, 2",
            "SELECT pool, ms FROM jobs j WHERE NOT EXISTS (SELECT 1 FROM prices p WHERE p.pool = j.pool) ORDER BY 1, 2",
            "SELECT count(*) AS n, max(price) AS price FROM prices",
            "SELECT pool, (SELECT max(price) FROM prices) AS price FROM jobs ORDER BY 1",
        ] {
            let ((own, small), (engine, large)) = (answer(true, sql).await, answer(false, sql).await);
            assert_eq!(own, engine, "{sql}");
            assert!(small <= large, "{sql}: {small} operators, {large} of the engine");
        }
        let join =
            "SELECT pool FROM jobs UNION ALL SELECT j.pool FROM jobs j JOIN prices p ON p.pool = j.pool";
        let ((_, small), (_, large)) = (answer(true, join).await, answer(false, join).await);
        assert!(small < large, "{small} operators, {large} of the engine");
    }
}
