//! Rollups: tables that sum another table's windows up to wider ones.

use std::collections::BTreeSet;

use datafusion::common::Column;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::tree_node::TreeNodeRecursion::{Continue, Stop};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// The column that holds a window's start.
pub(crate) const START: &str = "window_start";

/// A table that sums another table's windows up to wider ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollup {
    /// Name of the table.
    pub table: String,
    /// Width of its windows, ms.
    pub width_ms: i64,
    /// Columns that identify a row, without the window start.
    pub(crate) keys: BTreeSet<String>,
    /// Columns that are sums, and columns that are maxima, over the narrower windows.
    pub(crate) sums: BTreeSet<String>,
    pub(crate) maxima: BTreeSet<String>,
}

/// Output columns of a plan that are sums, and those that are maxima, of one column each.
pub(crate) fn sums_and_maxima(plan: &LogicalPlan) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut sums, mut maxima) = (BTreeSet::new(), BTreeSet::new());
    let walked = plan.apply(|node| {
        let LogicalPlan::Aggregate(aggregate) = node else { return Ok(Continue) };
        for (name, column) in aggregate.aggr_expr.iter().filter_map(single_column) {
            match name {
                "sum" => sums.insert(column.name.clone()),
                "max" => maxima.insert(column.name.clone()),
                _ => false,
            };
        }
        Ok(Stop)
    });
    walked.expect("nothing of it fails");
    (sums, maxima)
}

/// Function name and column of an aggregate over one plain column.
pub(crate) fn single_column(expr: &Expr) -> Option<(&str, &Column)> {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = unaliased(expr) else { return None };
    match params.args.as_slice() {
        [Expr::Column(column)] if !params.distinct && params.order_by.is_empty() => {
            Some((func.name(), column))
        }
        _ => None,
    }
}

pub(crate) fn unaliased(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}
