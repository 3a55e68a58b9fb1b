//! Windows that are computed in parts.
//!
//! A window that is a sum over its rows need not be computed from all of them whenever one more
//! comes: the rows that came since the last commit give a part of it, and parts add up, as do sums,
//! counts, least and greatest values over parts. So a day of samples is read once, when it comes
//! in, and never again. Which pipelines are of this kind is told from their SQL, see [`parts_of`];
//! all others are computed anew from all rows of the windows in question.

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::dataframe::DataFrame;
use datafusion::functions_aggregate::expr_fn::{max, min, sum};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};
use datafusion::prelude::ident;

use crate::batch::concat;
use crate::error::Result;
use crate::exec::{self, Limits};
use crate::sorted::sorted;
use crate::table::{Part, REVISION, TableSpec};

/// For each output column of the plan, how its parts go together; `None` if they do not.
///
/// They do if the SQL groups the rows of one table by its key, and everything else it gives out is
/// a bare `sum`, `count`, `min` or `max`. If the table is kept in parts itself, then only of
/// columns that go together in the same way.
pub fn parts_of(plan: &LogicalPlan, key: &[String], source: &TableSpec) -> Option<Vec<Part>> {
    let LogicalPlan::Projection(projection) = plan else { return None };
    let LogicalPlan::Aggregate(aggregate) = projection.input.as_ref() else { return None };
    row_by_row(&aggregate.input)?;
    if !source.parts.is_empty() && !fits(aggregate, source) {
        return None;
    }
    let groups = aggregate.group_expr.len();
    let part = |expr: &Expr| {
        let Expr::Column(column) = bare(expr) else { return None };
        let place = aggregate.schema.index_of_column(column).ok()?;
        match place.checked_sub(groups) {
            None => Some(Part::Key),
            Some(place) => part_of(&aggregate.aggr_expr[place]),
        }
    };
    let parts: Vec<Part> = projection.expr.iter().map(part).collect::<Option<_>>()?;
    let names = projection.schema.fields().iter().map(|field| field.name());
    let keyed = names.zip(&parts).all(|(name, part)| key.contains(name) == (*part == Part::Key));
    let all_groups = parts.iter().filter(|part| **part == Part::Key).count() == groups;
    (keyed && all_groups && key.len() == groups).then_some(parts)
}

/// Whether the plan takes rows of one table one by one.
fn row_by_row(plan: &LogicalPlan) -> Option<()> {
    let mut simple = true;
    let walked = plan.apply_with_subqueries(|node| {
        simple &= match node {
            LogicalPlan::TableScan(_) | LogicalPlan::SubqueryAlias(_) => true,
            LogicalPlan::Filter(_) | LogicalPlan::Projection(_) => {
                node.expressions().iter().all(|expr| !holds(expr, |e| matches!(e, Expr::WindowFunction(_))))
            }
            _ => false,
        };
        Ok(if simple { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    (walked.is_ok() && simple).then_some(())
}

fn holds(expr: &Expr, what: fn(&Expr) -> bool) -> bool {
    expr.exists(|e| Ok(what(e))).unwrap_or(true)
}

fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => bare(&alias.expr),
        other => other,
    }
}

fn part_of(expr: &Expr) -> Option<Part> {
    let f = aggregated(expr)?;
    match f.func.name() {
        "sum" | "count" => Some(Part::Sum),
        "min" => Some(Part::Min),
        "max" => Some(Part::Max),
        _ => None,
    }
}

fn aggregated(expr: &Expr) -> Option<&AggregateFunction> {
    match bare(expr) {
        Expr::AggregateFunction(f) if !f.params.distinct => Some(f),
        _ => None,
    }
}

/// Whether the aggregates of parts are parts of the aggregates: sums of sums, least of least,
/// greatest of greatest values, by what names a row, and of all rows.
fn fits(aggregate: &Aggregate, source: &TableSpec) -> bool {
    let part = |name: &str| {
        let place = source.columns.iter().position(|c| c.name == name);
        // What is no column of the table is the wider window's start.
        place.map_or(Part::Key, |place| source.parts[place])
    };
    let bare_scan =
        matches!(aggregate.input.as_ref(), LogicalPlan::TableScan(scan) if scan.filters.is_empty());
    let by_key = aggregate
        .group_expr
        .iter()
        .all(|expr| expr.column_refs().iter().all(|column| part(&column.name) == Part::Key));
    let same = aggregate.aggr_expr.iter().all(|expr| match aggregated(expr) {
        Some(f) if f.params.filter.is_none() => match f.params.args.as_slice() {
            [Expr::Column(column)] => match f.func.name() {
                "sum" => part(&column.name) == Part::Sum,
                "min" => part(&column.name) == Part::Min,
                "max" => part(&column.name) == Part::Max,
                _ => false,
            },
            _ => false,
        },
        _ => false,
    });
    bare_scan && by_key && same
}

/// Rows of a windowed table with those of one key put together; its public columns. Where the table
/// is not kept in parts, its rows are of several log partitions and add up.
pub fn together(spec: &TableSpec, rows: DataFrame) -> Result<DataFrame> {
    let rows = grouped(spec, rows, Vec::new())?;
    // Every select compares every column with every other, so it is left out where they stand in
    // order.
    let names = rows.schema().fields().iter().map(|field| field.name());
    if names.eq(spec.columns.iter().map(|c| &c.name)) {
        return Ok(rows);
    }
    Ok(rows.select(spec.columns.iter().map(|c| ident(&c.name)).collect::<Vec<_>>())?)
}

/// As [`together`], of rows as they stand in files, for a file: sorted by the key.
pub async fn in_one_file(spec: &TableSpec, rows: Vec<RecordBatch>) -> Result<RecordBatch> {
    let limits = Limits { threads: 1, ..Limits::default() };
    let ctx = exec::session(&exec::runtime(limits)?, limits);
    let latest = max(ident(REVISION)).alias(REVISION);
    let rows = grouped(spec, ctx.read_batches(rows)?, vec![latest])?.collect().await?;
    Ok(sorted(&concat(&spec.file_schema(), &rows)?, &spec.key)?)
}

fn grouped(spec: &TableSpec, rows: DataFrame, mut values: Vec<Expr>) -> Result<DataFrame> {
    let part = |place: usize, name: &str| match spec.parts.get(place) {
        Some(part) => *part,
        None if spec.key.iter().any(|key| key == name) => Part::Key,
        None => Part::Sum,
    };
    let mut keys = Vec::new();
    for (place, column) in spec.columns.iter().enumerate() {
        let value = ident(&column.name);
        match part(place, &column.name) {
            Part::Key => keys.push(value),
            Part::Sum => values.push(sum(value).alias(&column.name)),
            Part::Min => values.push(min(value).alias(&column.name)),
            Part::Max => values.push(max(value).alias(&column.name)),
        }
    }
    Ok(rows.aggregate(keys, values)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::DataType;
    use datafusion::datasource::MemTable;

    use super::*;
    use crate::table::{Column, Layout, timestamp_type};

    fn table(parts: Vec<Part>) -> TableSpec {
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
            parts,
        }
    }

    async fn told(sql: &str, source: &TableSpec) -> Option<Vec<Part>> {
        let limits = Limits::default();
        let ctx = exec::session(&exec::runtime(limits).unwrap(), limits);
        let rows = MemTable::try_new(source.public_schema(), vec![vec![]]).unwrap();
        ctx.register_table("t", Arc::new(rows)).unwrap();
        let plan = ctx.state().create_logical_plan(sql).await.unwrap();
        parts_of(&plan, &["window_start".into(), "a".into()], source)
    }

    #[tokio::test]
    async fn only_what_adds_up_is_kept_in_parts() {
        use Part::{Key, Max, Min, Sum};
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
            assert_eq!(told(&sql, &rows).await, expected, "{values}");
        }
        for sql in [
            "SELECT window_start, a, sum(n) AS x FROM t GROUP BY window_start, a, high",
            "SELECT window_start, a, sum(n) AS x FROM t GROUP BY window_start, a HAVING sum(n) > 1",
            "SELECT window_start, a, sum(n) AS x FROM (SELECT window_start, a, lag(n) OVER (PARTITION BY window_start) AS n FROM t) GROUP BY window_start, a",
            "SELECT t.window_start, t.a, sum(t.n) AS x FROM t JOIN t u ON t.a = u.a GROUP BY t.window_start, t.a",
            "SELECT DISTINCT window_start, a FROM t",
        ] {
            assert_eq!(told(sql, &rows).await, None, "{sql}");
        }
    }

    #[tokio::test]
    async fn parts_of_parts_go_together_in_the_same_way() {
        use Part::{Key, Max, Sum};
        let parts = table(vec![Key, Key, Sum, Max]);
        let fits = |values: &'static str| {
            let sql = format!("SELECT window_start, a, {values} FROM t GROUP BY window_start, a");
            let parts = parts.clone();
            async move { told(&sql, &parts).await }
        };
        assert_eq!(fits("sum(n) AS n, max(high) AS high").await, Some(vec![Key, Key, Sum, Max]));
        for values in [
            "count(*) AS c",
            "max(n) AS n",
            "sum(high) AS x",
            "sum(n + 1) AS n",
            "sum(n) FILTER (WHERE a = 'x') AS n",
        ] {
            assert_eq!(fits(values).await, None, "{values}");
        }
        let filtered = "SELECT window_start, a, sum(n) AS n FROM t WHERE n > 3 GROUP BY window_start, a";
        assert_eq!(told(filtered, &parts).await, None, "a part may be less than the whole");
    }
}
