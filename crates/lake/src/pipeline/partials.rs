//! Recognises windowed pipelines that can be kept as partial aggregates.
//!
//! A window of sums need not be recomputed from all its rows when new ones arrive: the new rows are
//! aggregated on their own, and the partial aggregates are merged when the table is read. This
//! holds for sums, counts, minima and maxima. So each GPU sample is read once, on arrival, and
//! never again. [`partial_merges`] recognises such pipelines by their SQL; all others recompute
//! their dirty windows from all rows.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};

use crate::table::{Merge, TableSpec};

/// How each output column of the plan merges; `None` if the pipeline cannot be kept as partial
/// aggregates.
///
/// It can if the SQL groups the rows of one table by its key, and every other output column is a
/// plain `sum`, `count`, `min` or `max`. If the source is itself kept as partial aggregates, each
/// column must merge in the same way as the source column.
pub fn partial_merges(plan: &LogicalPlan, key: &[String], source: &TableSpec) -> Option<Vec<Merge>> {
    let LogicalPlan::Projection(projection) = plan else { return None };
    let LogicalPlan::Aggregate(aggregate) = projection.input.as_ref() else { return None };
    reads_row_by_row(&aggregate.input)?;
    if !source.partials.is_empty() && !merges_further(aggregate, source) {
        return None;
    }
    let groups = aggregate.group_expr.len();
    let part = |expr: &Expr| {
        let Expr::Column(column) = unaliased(expr) else { return None };
        let place = aggregate.schema.index_of_column(column).ok()?;
        match place.checked_sub(groups) {
            None => Some(Merge::Key),
            Some(place) => merge_of(&aggregate.aggr_expr[place]),
        }
    };
    let parts: Vec<Merge> = projection.expr.iter().map(part).collect::<Option<_>>()?;
    let names = projection.schema.fields().iter().map(|field| field.name());
    let keyed = names.zip(&parts).all(|(name, part)| key.contains(name) == (*part == Merge::Key));
    let all_groups = parts.iter().filter(|part| **part == Merge::Key).count() == groups;
    (keyed && all_groups && key.len() == groups).then_some(parts)
}

/// Whether the plan reads the rows of one table one by one.
fn reads_row_by_row(plan: &LogicalPlan) -> Option<()> {
    let mut simple = true;
    let walked = plan.apply_with_subqueries(|node| {
        simple &= match node {
            LogicalPlan::TableScan(_) | LogicalPlan::SubqueryAlias(_) => true,
            LogicalPlan::Filter(_) | LogicalPlan::Projection(_) => node
                .expressions()
                .iter()
                .all(|expr| !contains(expr, |e| matches!(e, Expr::WindowFunction(_)))),
            _ => false,
        };
        Ok(if simple { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    (walked.is_ok() && simple).then_some(())
}

fn contains(expr: &Expr, matches: fn(&Expr) -> bool) -> bool {
    expr.exists(|e| Ok(matches(e))).unwrap_or(true)
}

fn unaliased(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}

fn merge_of(expr: &Expr) -> Option<Merge> {
    let f = aggregated(expr)?;
    match f.func.name() {
        "sum" | "count" => Some(Merge::Sum),
        "min" => Some(Merge::Min),
        "max" => Some(Merge::Max),
        _ => None,
    }
}

fn aggregated(expr: &Expr) -> Option<&AggregateFunction> {
    match unaliased(expr) {
        Expr::AggregateFunction(f) if !f.params.distinct => Some(f),
        _ => None,
    }
}

/// Whether aggregating partial aggregates gives partial aggregates: sums of sums, minima of minima,
/// maxima of maxima, grouped by key columns, over all rows.
fn merges_further(aggregate: &Aggregate, source: &TableSpec) -> bool {
    let part = |name: &str| {
        let place = source.columns.iter().position(|c| c.name == name);
        // A name that is no column of the table is the wider window's start.
        place.map_or(Merge::Key, |place| source.partials[place])
    };
    let bare_scan =
        matches!(aggregate.input.as_ref(), LogicalPlan::TableScan(scan) if scan.filters.is_empty());
    let by_key = aggregate
        .group_expr
        .iter()
        .all(|expr| expr.column_refs().iter().all(|column| part(&column.name) == Merge::Key));
    let same = aggregate.aggr_expr.iter().all(|expr| match aggregated(expr) {
        Some(f) if f.params.filter.is_none() => match f.params.args.as_slice() {
            [Expr::Column(column)] => match f.func.name() {
                "sum" => part(&column.name) == Merge::Sum,
                "min" => part(&column.name) == Merge::Min,
                "max" => part(&column.name) == Merge::Max,
                _ => false,
            },
            _ => false,
        },
        _ => false,
    });
    bare_scan && by_key && same
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::DataType;
    use datafusion::datasource::MemTable;

    use super::*;
    use crate::engine::{self, Limits};
    use crate::table::{Column, Layout, timestamp_type};

    fn table(parts: Vec<Merge>) -> TableSpec {
        let column = |name: &str, data_type| Column { name: name.into(), data_type, doc: String::new() };
        TableSpec {
            name: "t".into(),
            version: 1,
            doc: String::new(),
            layout: Layout::Windowed,
            columns: vec![
                column("window_start", timestamp_type()),
                column("a", DataType::Utf8View),
                column("n", DataType::Int64),
                column("high", DataType::Int64),
            ],
            key: vec!["window_start".into(), "a".into()],
            partials: parts,
        }
    }

    async fn merges(sql: &str, source: &TableSpec) -> Option<Vec<Merge>> {
        let limits = Limits::default();
        let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
        let rows = MemTable::try_new(source.public_schema(), vec![vec![]]).unwrap();
        ctx.register_table("t", Arc::new(rows)).unwrap();
        let plan = ctx.state().create_logical_plan(sql).await.unwrap();
        partial_merges(&plan, &["window_start".into(), "a".into()], source)
    }

    #[tokio::test]
    async fn only_mergeable_aggregates_are_kept_as_partials() {
        use Merge::{Key, Max, Min, Sum};
        let rows = table(Vec::new());
        for (values, expected) in [
            (
                "sum(n) AS x, max(n) AS y, min(n) AS z, count(*) AS c",
                Some(vec![Key, Key, Sum, Max, Min, Sum]),
            ),
            ("sum(n * high) FILTER (WHERE high > 3) AS x", Some(vec![Key, Key, Sum])),
            ("count(DISTINCT n) AS x", None),
            ("coalesce(sum(n), 0) AS x", None),
            ("sum(n) / count(n) AS x", None),
            ("latest(n, window_start) AS x", None),
        ] {
            let sql = format!("SELECT window_start, a, {values} FROM t WHERE n > 0 GROUP BY window_start, a");
            assert_eq!(merges(&sql, &rows).await, expected, "{values}");
        }
        for sql in [
            "SELECT window_start, a, sum(n) AS x FROM t GROUP BY window_start, a, high",
            "SELECT window_start, a, sum(n) AS x FROM t GROUP BY window_start, a HAVING sum(n) > 1",
            "SELECT window_start, a, sum(n) AS x FROM (SELECT window_start, a, lag(n) OVER (PARTITION BY window_start) AS n FROM t) GROUP BY window_start, a",
            "SELECT t.window_start, t.a, sum(t.n) AS x FROM t JOIN t u ON t.a = u.a GROUP BY t.window_start, t.a",
            "SELECT DISTINCT window_start, a FROM t",
        ] {
            assert_eq!(merges(sql, &rows).await, None, "{sql}");
        }
    }

    #[tokio::test]
    async fn partials_of_partials_merge_in_the_same_way() {
        use Merge::{Key, Max, Sum};
        let parts = table(vec![Key, Key, Sum, Max]);
        let merges_further = |values: &'static str| {
            let sql = format!("SELECT window_start, a, {values} FROM t GROUP BY window_start, a");
            let parts = parts.clone();
            async move { merges(&sql, &parts).await }
        };
        assert_eq!(merges_further("sum(n) AS n, max(high) AS high").await, Some(vec![Key, Key, Sum, Max]));
        for values in [
            "count(*) AS c",
            "max(n) AS n",
            "sum(high) AS x",
            "sum(n + 1) AS n",
            "sum(n) FILTER (WHERE a = 'x') AS n",
        ] {
            assert_eq!(merges_further(values).await, None, "{values}");
        }
        let filtered = "SELECT window_start, a, sum(n) AS n FROM t WHERE n > 3 GROUP BY window_start, a";
        assert_eq!(merges(filtered, &parts).await, None, "a part may be less than the whole");
    }
}
