//! Rollup rewrite: answers a query over minutes from hourly and daily tables.
//!
//! A pipeline names the table it rolls up (`rolls_up = "ledger_1m"`). A query that sums such a
//! table up, by anything but single windows, is rewritten onto the widest rollup. Where its time
//! range does not fall on boundaries of wider windows, the pieces at the ends are read from the
//! narrower table, so the result is the same. Of each table it reads the rows before they are
//! merged ([`Parts`]), if that is the same too.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::datasource::provider_as_source;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::{AggregateFunction, ScalarFunction};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Expr, LogicalPlan, LogicalPlanBuilder, Operator, TableScan, cast, lit, when,
};
use datafusion::prelude::SessionContext;

use super::named::{table_of, write_out};
use super::parts::Parts;
use crate::catalog::Catalog;
use crate::pipeline::rollup::{Rollup, START, single_column, unaliased};
use crate::table::timestamp_type;

/// Rewrites every aggregate of a plan onto the widest rollups that can answer it, then puts the
/// plans of views in place of their names. Tables must have been registered by
/// [`Catalog::register_named`].
pub fn rewrite_onto_rollups(
    ctx: &SessionContext,
    catalog: &Catalog,
    plan: LogicalPlan,
) -> Result<LogicalPlan> {
    let rewrite = |node: LogicalPlan| {
        let LogicalPlan::Aggregate(aggregate) = &node else { return Ok(Transformed::no(node)) };
        match rewrite_aggregate(ctx, catalog, aggregate)? {
            Some(plan) => Ok(Transformed::yes(plan)),
            None => Ok(Transformed::no(node)),
        }
    };
    write_out(plan.transform_up_with_subqueries(rewrite)?.data)
}

/// The aggregate over rollups, or over unmerged rows of its own table; `None` if it has to read the
/// table as it is.
fn rewrite_aggregate(
    ctx: &SessionContext,
    catalog: &Catalog,
    aggregate: &Aggregate,
) -> Result<Option<LogicalPlan>> {
    let (conditions, scan, name) = match aggregate.input.as_ref() {
        LogicalPlan::Filter(filter) => {
            let Some((scan, name)) = scanned(&filter.input) else { return Ok(None) };
            (split_conjunction(&filter.predicate), scan, name)
        }
        input => {
            let Some((scan, name)) = scanned(input) else { return Ok(None) };
            (Vec::new(), scan, name)
        }
    };
    // The optimizer turns a correlated subquery into a join by pulling its conditions up. It cannot
    // pull them out of a union.
    let exprs = conditions.iter().copied().chain(&aggregate.group_expr).chain(&aggregate.aggr_expr);
    if exprs.into_iter().any(Expr::contains_outer) {
        return Ok(None);
    }
    let table = scan.table_name.table();
    let parts = |table: &str, conditions: &[&Expr]| {
        let parts = catalog.parts.get(table).filter(|parts| parts.can_answer(aggregate, conditions));
        parts.map(|parts: &Parts| Arc::clone(&parts.rows))
    };
    let fitting = |rollup: &'_ &Rollup| {
        aggregate.group_expr.iter().all(|expr| rollup.can_group_by(expr))
            && aggregate.aggr_expr.iter().all(|expr| rollup.can_compute(expr))
    };
    let rollups = catalog.rollups.get(table).map_or(&[][..], Vec::as_slice).iter().rev().filter(fitting);
    let rollups: Vec<(&Rollup, TimeFilter)> =
        rollups.filter_map(|rollup| Some((rollup, rollup.time_filter(ctx, &conditions)?))).collect();
    let own = parts(table, &conditions);
    let input = match rollups.first() {
        Some((widest, _)) => {
            let wider = rollups.iter().map(|(rollup, times)| {
                let of_keys = conditions.iter().copied().filter(|c| rollup.has_columns(c));
                let rows =
                    parts(&rollup.table, &[]).unwrap_or_else(|| Arc::clone(&catalog.tables[&rollup.table]));
                Piece {
                    rows,
                    conditions: of_keys.chain(times).cloned().collect(),
                    covers: Some(times.clone()),
                }
            });
            let rest = Piece {
                rows: own.map_or_else(|| table_of(scan), Ok)?,
                conditions: conditions.iter().map(|c| (*c).clone()).collect(),
                covers: None,
            };
            union_of(name, widest, wider.chain([rest]))?
        }
        None => {
            let Some(rows) = own else { return Ok(None) };
            let rows = LogicalPlanBuilder::scan(name.clone(), provider_as_source(rows), None)?;
            match conditions.into_iter().cloned().reduce(Expr::and) {
                Some(conditions) => rows.filter(conditions)?.build()?,
                None => rows.build()?,
            }
        }
    };
    let (groups, values) = (aggregate.group_expr.clone(), aggregate.aggr_expr.clone());
    Ok(Some(LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), groups, values)?)))
}

/// What one table gives to an aggregate.
struct Piece {
    rows: Arc<dyn TableProvider>,
    conditions: Vec<Expr>,
    /// Conditions on the time that is read here alone; `None` for all that is left.
    covers: Option<TimeFilter>,
}

/// The input of the aggregate: windows of the widest rollup that lie wholly in the time range, of
/// the next narrower one those at its ends, and so on.
fn union_of(
    name: &TableReference,
    widest: &Rollup,
    pieces: impl Iterator<Item = Piece>,
) -> Result<LogicalPlan> {
    let names = widest.keys.iter().chain(&widest.sums).chain(&widest.maxima).map(String::as_str);
    let columns: Vec<Expr> = std::iter::once(START)
        .chain(names)
        .map(|column| Expr::Column(Column::new(Some(name.clone()), column)))
        .collect();
    let mut all: Option<LogicalPlanBuilder> = None;
    // The time range that a wider rollup covers.
    let mut covered: Option<Expr> = None;
    for Piece { rows, mut conditions, covers } in pieces {
        conditions.extend(covered.take().map(|covered| !covered));
        let mut rows = LogicalPlanBuilder::scan(name.clone(), provider_as_source(rows), None)?;
        if let Some(conditions) = conditions.into_iter().reduce(Expr::and) {
            rows = rows.filter(conditions)?;
        }
        let rows = rows.project(columns.clone())?;
        all = Some(match all {
            Some(all) => all.union(rows.build()?)?,
            None => rows,
        });
        covered = covers.and_then(|times| times.into_iter().reduce(Expr::and));
        if covered.is_none() {
            break;
        }
    }
    all.expect("there is a rollup").alias(name.clone())?.build()
}

/// A table scan, and the qualifier of its columns.
fn scanned(plan: &LogicalPlan) -> Option<(&TableScan, &TableReference)> {
    match plan {
        LogicalPlan::TableScan(scan) => Some((scan, &scan.table_name)),
        LogicalPlan::SubqueryAlias(alias) => match alias.input.as_ref() {
            LogicalPlan::TableScan(scan) => Some((scan, &alias.alias)),
            _ => None,
        },
        _ => None,
    }
}

/// Conditions for windows of a rollup to lie wholly in the time range.
type TimeFilter = Vec<Expr>;

impl Rollup {
    fn has_columns(&self, expr: &Expr) -> bool {
        !expr.is_volatile() && expr.column_refs().iter().all(|column| self.keys.contains(&column.name))
    }

    fn can_group_by(&self, expr: &Expr) -> bool {
        let expr = unaliased(expr);
        self.has_columns(expr) || self.is_coarse_time(expr)
    }

    /// `date_trunc('hour', window_start)` or coarser.
    fn is_coarse_time(&self, expr: &Expr) -> bool {
        let Expr::ScalarFunction(ScalarFunction { func, args }) = expr else { return false };
        let [Expr::Literal(unit, _), Expr::Column(column)] = args.as_slice() else { return false };
        let unit = unit.try_as_str().flatten().unwrap_or_default().to_lowercase();
        let unit_ms = match unit.as_str() {
            "hour" => 3_600_000,
            "day" | "week" | "month" | "quarter" | "year" => 86_400_000,
            _ => 0,
        };
        func.name() == "date_trunc" && column.name == START && unit_ms >= self.width_ms
    }

    fn can_compute(&self, expr: &Expr) -> bool {
        let Expr::AggregateFunction(AggregateFunction { params, .. }) = unaliased(expr) else { return false };
        let of_known = params.filter.as_ref().is_none_or(|filter| self.has_columns(filter));
        of_known
            && match single_column(expr) {
                Some(("sum", column)) => self.sums.contains(&column.name),
                Some(("max", column)) => self.maxima.contains(&column.name),
                _ => false,
            }
    }

    /// Turns each condition on time into one for wider windows that lie wholly inside; `None` if
    /// there is a condition for which that is not possible.
    fn time_filter(&self, ctx: &SessionContext, conditions: &[&Expr]) -> Option<TimeFilter> {
        let mut times = Vec::new();
        for condition in conditions.iter().filter(|condition| !self.has_columns(condition)) {
            match condition {
                Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                    let (time, op, border) = match (left.as_ref(), right.as_ref()) {
                        (Expr::Column(_), border) => (left, *op, border),
                        (border, Expr::Column(_)) => (right, op.swap()?, border),
                        _ => return None,
                    };
                    times.push(self.whole_windows(ctx, time, op, border)?);
                }
                Expr::Between(between) if !between.negated => {
                    times.push(self.whole_windows(ctx, &between.expr, Operator::GtEq, &between.low)?);
                    times.push(self.whole_windows(ctx, &between.expr, Operator::LtEq, &between.high)?);
                }
                _ => return None,
            }
        }
        Some(times)
    }

    fn whole_windows(&self, ctx: &SessionContext, time: &Expr, op: Operator, border: &Expr) -> Option<Expr> {
        let Expr::Column(column) = time else { return None };
        if column.name != START || !border.column_refs().is_empty() || border.is_volatile() {
            return None;
        }
        let call = |name: &str, args| Some(ctx.udf(name).ok()?.call(args));
        let border = cast(border.clone(), timestamp_type());
        let begun = call("window_of", vec![border.clone(), lit(self.width_ms)])?;
        let next = call("plus_ms", vec![begun.clone(), lit(self.width_ms)])?;
        match op {
            Operator::GtEq => {
                let first = when(begun.clone().eq(border), begun).otherwise(next).ok()?;
                Some(time.clone().gt_eq(first))
            }
            Operator::Gt => Some(time.clone().gt_eq(next)),
            // The last window may reach beyond the bound, so it is left to the narrower table.
            Operator::Lt | Operator::LtEq => Some(time.clone().lt(begun)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringViewArray, TimestampMicrosecondArray};
    use arrow::datatypes::Int64Type;
    use datafusion::datasource::MemTable;
    use futures::FutureExt;

    use super::*;
    use crate::engine::{Limits, runtime, session};
    use crate::window::{MICROS_PER_HOUR, floor_to};

    const MINUTE: i64 = 60_000_000;

    fn rows(of: &[(i64, &str, i64)]) -> Arc<MemTable> {
        let starts =
            TimestampMicrosecondArray::from_iter_values(of.iter().map(|row| row.0)).with_timezone("UTC");
        let teams = StringViewArray::from_iter_values(of.iter().map(|row| row.1));
        let values = Int64Array::from_iter_values(of.iter().map(|row| row.2));
        let batch = RecordBatch::try_from_iter([
            (START, Arc::new(starts) as Arc<dyn Array>),
            ("team", Arc::new(teams)),
            ("ms", Arc::new(values)),
        ])
        .unwrap();
        Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap())
    }

    /// Six hours of minutes with 1 ms per team, and hours that claim a thousand times that: the
    /// result shows which table was read.
    fn catalog() -> Catalog {
        let minutes: Vec<(i64, &str, i64)> =
            (0..360).flat_map(|minute| [(minute * MINUTE, "a", 1), (minute * MINUTE, "b", 1)]).collect();
        let mut hours: BTreeMap<(i64, &str), i64> = BTreeMap::new();
        minutes.iter().for_each(|(start, team, ms)| {
            *hours.entry((floor_to(*start, MICROS_PER_HOUR), team)).or_default() += ms * 1_000;
        });
        let hours: Vec<(i64, &str, i64)> =
            hours.into_iter().map(|((start, team), ms)| (start, team, ms)).collect();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let rollup = Rollup {
            table: "t_1h".into(),
            width_ms: 3_600_000,
            keys: names(&["team"]),
            sums: names(&["ms"]),
            maxima: names(&[]),
        };
        let mut catalog = Catalog::default();
        catalog.tables.insert("t_1m".into(), rows(&minutes));
        catalog.tables.insert("t_1h".into(), rows(&hours));
        catalog.rollups.insert("t_1m".into(), vec![rollup]);
        catalog
    }

    async fn sum(sql: &str) -> i64 {
        let limits = Limits::default();
        let ctx = session(&runtime(limits).unwrap(), limits);
        let catalog = catalog();
        catalog.register_named(&ctx).unwrap();
        let plan = ctx.state().create_logical_plan(sql).await.unwrap();
        let plan = rewrite_onto_rollups(&ctx, &catalog, plan).unwrap();
        let rows = ctx.execute_logical_plan(plan).await.unwrap().collect().await.unwrap();
        let last = |batch: &RecordBatch| batch.columns().last().unwrap().as_primitive::<Int64Type>().clone();
        rows.iter().map(|batch| last(batch).iter().flatten().sum::<i64>()).sum()
    }

    #[tokio::test]
    async fn whole_hours_are_read_from_the_rollup() {
        for sql in [
            "SELECT sum(ms) FROM t_1m",
            "SELECT team, sum(ms) FROM t_1m GROUP BY team",
            "SELECT x.team, sum(x.ms) AS s FROM t_1m AS x GROUP BY x.team HAVING sum(x.ms) > 0 ORDER BY s",
            "SELECT date_trunc('hour', window_start), sum(ms) FROM t_1m GROUP BY 1",
            "SELECT date_trunc('day', window_start), coalesce(team, ''), sum(ms) FROM t_1m GROUP BY 1, 2",
            "SELECT team, ms FROM (SELECT team, sum(ms) AS ms FROM t_1m GROUP BY team)",
        ] {
            assert_eq!(sum(sql).await, 720_000, "{sql}");
        }
        assert_eq!(sum("SELECT sum(ms) FROM t_1m WHERE team = 'a'").await, 360_000);
        assert_eq!(sum("SELECT sum(ms) FILTER (WHERE team = 'a') FROM t_1m").await, 360_000);
    }

    #[tokio::test]
    async fn pieces_of_hours_are_read_from_minutes() {
        // 30 minutes, three hours, 20 minutes; two teams.
        let between = |from: &str, to: &str| {
            format!("SELECT sum(ms) FROM t_1m WHERE window_start {from} AND window_start {to}")
        };
        let cases = [
            (">= '1970-01-01T00:30:00Z'", "< '1970-01-01T04:20:00Z'", 2 * (30 + 3 * 60_000 + 20)),
            (">= '1970-01-01T01:00:00Z'", "< '1970-01-01T04:00:00Z'", 2 * 3 * 60_000),
            ("> '1970-01-01T01:00:00Z'", "<= '1970-01-01T04:00:00Z'", 2 * (59 + 2 * 60_000 + 1)),
            (">= '1970-01-01T01:00:00.000001Z'", "< '1970-01-01T03:00:00Z'", 2 * (59 + 60_000)),
            (">= '1970-01-01T01:10:00Z'", "< '1970-01-01T01:20:00Z'", 2 * 10),
            (">= '1970-01-01T02:10:00Z'", "< '1970-01-01T01:20:00Z'", 0),
        ];
        for (from, to, expected) in cases {
            assert_eq!(sum(&between(from, to)).await, expected, "{from} {to}");
        }
        let between = "SELECT sum(ms) FROM t_1m WHERE window_start BETWEEN '1970-01-01T01:00:00Z' AND '1970-01-01T02:00:00Z'";
        assert_eq!(sum(between).await, 2 * (60_000 + 1));
        let reversed = "SELECT sum(ms) FROM t_1m WHERE TIMESTAMP '1970-01-01T05:00:00Z' <= window_start";
        assert_eq!(sum(reversed).await, 2 * 60_000);
        // All rows are long past.
        assert_eq!(
            sum("SELECT sum(ms) FROM t_1m WHERE window_start < now() - INTERVAL '7 days'").await,
            720_000
        );
        assert_eq!(sum("SELECT sum(ms) FROM t_1m WHERE window_start >= now() - INTERVAL '7 days'").await, 0);
    }

    #[tokio::test]
    async fn what_the_rollup_lacks_is_read_from_minutes() {
        for (sql, expected) in [
            ("SELECT count(*) FROM t_1m", 720),
            ("SELECT window_start, sum(ms) FROM t_1m GROUP BY window_start", 720),
            ("SELECT date_trunc('minute', window_start), sum(ms) FROM t_1m GROUP BY 1", 720),
            ("SELECT sum(ms) FROM t_1m WHERE ms = 1", 720),
            ("SELECT sum(ms) FROM t_1m WHERE window_start = '1970-01-01T01:00:00Z'", 2),
            ("SELECT sum(ms) FROM t_1m WHERE date_part('minute', window_start) < 30", 360),
            ("SELECT max(ms) FROM t_1m", 1),
            ("SELECT sum(ms + 1) FROM t_1m", 1_440),
            ("SELECT sum(ms) FROM t_1h", 720_000),
            ("SELECT ms FROM t_1m", 720),
        ] {
            assert_eq!(sum(sql).await, expected, "{sql}");
        }
    }

    #[test]
    fn shipped_rollups_go_up_from_minutes() {
        let plan = crate::pipeline::plan::Plan::compile(crate::pipeline::shipped());
        let plan = tokio::runtime::Runtime::new().unwrap().block_on(plan.boxed()).unwrap();
        let tables =
            |of: &str| plan.rollups()[of].iter().map(|rollup| rollup.table.clone()).collect::<Vec<_>>();
        assert_eq!(tables("ledger_1m"), ["ledger_1h", "ledger_1d"]);
        assert_eq!(tables("gpu_1m"), ["gpu_1h"]);
        let gpu = &plan.rollups()["gpu_1m"][0];
        assert!(
            gpu.sums.contains("active_us") && gpu.maxima.contains("framebuffer_used_max_bytes"),
            "{gpu:?}"
        );
        assert_eq!(plan.rollups()["ledger_1h"][0].sums.iter().collect::<Vec<_>>(), ["cost_micros", "gpu_ms"]);
    }
}
