//! Parts: rows of a windowed table before those of one key are merged.
//!
//! Each commit, or each log partition, adds its own row for a key. A query that sums by some of the
//! key's columns gets the same result from these rows, and saves grouping by all of them first.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr};

use super::full_rows::FullRows;
use super::overlay::unmerged_rows;
use crate::pipeline::rollup::{single_column, unaliased};
use crate::table::{Merge, TableSpec};
use crate::views::deferred::DeferredView;

/// Rows of a table before those of one key are merged.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Public columns.
    pub(super) rows: Arc<dyn TableProvider>,
    keys: BTreeSet<String>,
    sums: BTreeSet<String>,
    minima: BTreeSet<String>,
    maxima: BTreeSet<String>,
}

impl Parts {
    /// Of the full rows of a table.
    pub(super) fn of(spec: &Arc<TableSpec>, rows: FullRows) -> Self {
        let named = |kind: Merge| {
            let columns = spec.columns.iter().enumerate();
            columns
                .filter(|(place, _)| spec.merge(*place) == kind)
                .map(|(_, column)| column.name.clone())
                .collect()
        };
        let table = Arc::clone(spec);
        let rows = DeferredView::new(spec.public_schema(), move || {
            Ok(unmerged_rows(&table, rows.plan()?)?.into_unoptimized_plan())
        });
        Self {
            rows: Arc::new(rows),
            keys: named(Merge::Key),
            sums: named(Merge::Sum),
            minima: named(Merge::Min),
            maxima: named(Merge::Max),
        }
    }

    /// Whether the aggregate of rows that meet the conditions is the same before the merge.
    pub(super) fn can_answer(&self, aggregate: &Aggregate, conditions: &[&Expr]) -> bool {
        aggregate
            .group_expr
            .iter()
            .chain(conditions.iter().copied())
            .all(|expr| self.is_of_key(unaliased(expr)))
            && aggregate.aggr_expr.iter().all(|expr| self.can_compute(expr))
    }

    fn is_of_key(&self, expr: &Expr) -> bool {
        !expr.is_volatile() && expr.column_refs().iter().all(|column| self.keys.contains(&column.name))
    }

    fn can_compute(&self, expr: &Expr) -> bool {
        let Expr::AggregateFunction(AggregateFunction { params, .. }) = unaliased(expr) else { return false };
        let by_key = |column: &str| self.keys.contains(column);
        params.filter.as_ref().is_none_or(|filter| self.is_of_key(filter))
            && match single_column(expr) {
                Some(("sum", column)) => self.sums.contains(&column.name),
                Some(("min", column)) => self.minima.contains(&column.name) || by_key(&column.name),
                Some(("max", column)) => self.maxima.contains(&column.name) || by_key(&column.name),
                _ => false,
            }
    }
}
