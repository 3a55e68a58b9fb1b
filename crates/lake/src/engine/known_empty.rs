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
