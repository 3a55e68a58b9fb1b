//! The widest level that answers a question: minutes, hours and days of one thing are tables of
//! their own, and who asks for minutes by the day is answered from days.
//!
//! A pipeline says of which table it is the next level (`rolls_up = "ledger_1m"`). A query that
//! sums such a table up, by anything but single windows, is answered from the wider one. Times that
//! do not fall on borders of its windows cut pieces off at the ends, which are read from the
//! narrower one, so the answer is the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::common::tree_node::TreeNodeRecursion::{Continue, Stop};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::datasource::provider_as_source;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::{AggregateFunction, ScalarFunction};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Expr, LogicalPlan, LogicalPlanBuilder, Operator, TableScan, cast, lit, when,
};
use datafusion::prelude::SessionContext;

use crate::catalog::Catalog;
use crate::pipeline::Pipeline;
use crate::table::timestamp_type;

/// The column that a window is known by.
const START: &str = "window_start";

/// A table that holds another one's windows put together to wider ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    pub table: String,
    pub width_ms: i64,
    /// Columns that name a row, but for the window.
    keys: BTreeSet<String>,
    /// Columns that are sums of the narrower windows', and the greatest of theirs.
    sums: BTreeSet<String>,
    maxima: BTreeSet<String>,
}

impl Level {
    /// What a windowed pipeline is to the one that it rolls up; `plan` is that of its SQL.
    pub fn of(pipeline: &Pipeline, width_ms: i64, plan: &LogicalPlan) -> Self {
        let keys = pipeline.key.iter().filter(|key| *key != START).cloned().collect();
        let (sums, maxima) = (BTreeSet::new(), BTreeSet::new());
        let mut level = Self { table: pipeline.name.clone(), width_ms, keys, sums, maxima };
        let walked = plan.apply(|node| {
            let LogicalPlan::Aggregate(aggregate) = node else { return Ok(Continue) };
            for (name, column) in aggregate.aggr_expr.iter().filter_map(of_one_column) {
                match name {
                    "sum" => level.sums.insert(column.name.clone()),
                    "max" => level.maxima.insert(column.name.clone()),
                    _ => false,
                };
            }
            Ok(Stop)
        });
        walked.expect("nothing of it fails");
        level
    }
}

/// Name and column of an aggregate of one bare column.
fn of_one_column(expr: &Expr) -> Option<(&str, &Column)> {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = bare(expr) else { return None };
    match params.args.as_slice() {
        [Expr::Column(column)] if !params.distinct && params.order_by.is_empty() => {
            Some((func.name(), column))
        }
        _ => None,
    }
}

fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => bare(&alias.expr),
        other => other,
    }
}

/// The same question, answered from the widest levels that do.
pub fn from_widest(ctx: &SessionContext, catalog: &Catalog, plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewrite = |node: LogicalPlan| {
        let LogicalPlan::Aggregate(aggregate) = &node else { return Ok(Transformed::no(node)) };
        match wider(ctx, catalog, aggregate)? {
            Some(plan) => Ok(Transformed::yes(plan)),
            None => Ok(Transformed::no(node)),
        }
    };
    Ok(plan.transform_up_with_subqueries(rewrite)?.data)
}

/// The aggregate over a wider level; `None` if there is none that knows what is asked.
fn wider(ctx: &SessionContext, catalog: &Catalog, aggregate: &Aggregate) -> Result<Option<LogicalPlan>> {
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
    let levels = catalog.levels.get(scan.table_name.table()).map_or(&[][..], Vec::as_slice);
    let fitting = |level: &'_ &Level| {
        aggregate.group_expr.iter().all(|expr| level.can_group_by(expr))
            && aggregate.aggr_expr.iter().all(|expr| level.can_give(expr))
    };
    let levels = levels.iter().rev().filter(fitting);
    let levels: Vec<(&Level, Times)> =
        levels.filter_map(|level| Some((level, level.times_of(ctx, &conditions)?))).collect();
    if levels.is_empty() {
        return Ok(None);
    }
    let input = in_place_of(catalog, scan, name, &conditions, &levels)?;
    let (groups, values) = (aggregate.group_expr.clone(), aggregate.aggr_expr.clone());
    Ok(Some(LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(input), groups, values)?)))
}

/// What the aggregate is to be over: windows of the widest level that lie wholly in the times asked
/// for, of the next one those at the ends of them, and so on.
fn in_place_of(
    catalog: &Catalog,
    scan: &TableScan,
    name: &TableReference,
    conditions: &[&Expr],
    levels: &[(&Level, Times)],
) -> Result<LogicalPlan> {
    let (widest, _) = levels[0];
    let names = widest.keys.iter().chain(&widest.sums).chain(&widest.maxima).map(String::as_str);
    let columns: Vec<Expr> = std::iter::once(START)
        .chain(names)
        .map(|column| Expr::Column(Column::new(Some(name.clone()), column)))
        .collect();
    let mut all: Option<LogicalPlanBuilder> = None;
    // Where a wider level has it.
    let mut covered: Option<Expr> = None;
    let own = (Arc::clone(&scan.source), conditions.iter().map(|c| (*c).clone()).collect::<Vec<_>>());
    let wider = levels.iter().map(|(level, times)| {
        let of_keys = conditions.iter().filter(|c| level.knows_all(c)).map(|c| (*c).clone());
        let source = provider_as_source(Arc::clone(&catalog.tables[&level.table]));
        (
            (source, of_keys.chain(times.iter().cloned()).collect()),
            times.clone().into_iter().reduce(Expr::and),
        )
    });
    for ((source, mut conditions), times) in wider.chain([(own, None)]) {
        conditions.extend(covered.take().map(|covered| !covered));
        let mut rows = LogicalPlanBuilder::scan(name.clone(), source, None)?;
        if let Some(conditions) = conditions.into_iter().reduce(Expr::and) {
            rows = rows.filter(conditions)?;
        }
        let rows = rows.project(columns.clone())?;
        all = Some(match all {
            Some(all) => all.union(rows.build()?)?,
            None => rows,
        });
        covered = times;
        if covered.is_none() {
            break;
        }
    }
    all.expect("there is a level").alias(name.clone())?.build()
}

/// A scan, and the name that its columns go by.
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

/// Conditions on times: which windows of the wider level lie in them wholly.
type Times = Vec<Expr>;

impl Level {
    fn knows_all(&self, expr: &Expr) -> bool {
        !expr.is_volatile() && expr.column_refs().iter().all(|column| self.keys.contains(&column.name))
    }

    fn can_group_by(&self, expr: &Expr) -> bool {
        let expr = bare(expr);
        self.knows_all(expr) || self.is_coarse_time(expr)
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

    fn can_give(&self, expr: &Expr) -> bool {
        let Expr::AggregateFunction(AggregateFunction { params, .. }) = bare(expr) else { return false };
        let of_known = params.filter.as_ref().is_none_or(|filter| self.knows_all(filter));
        of_known
            && match of_one_column(expr) {
                Some(("sum", column)) => self.sums.contains(&column.name),
                Some(("max", column)) => self.maxima.contains(&column.name),
                _ => false,
            }
    }

    /// For each condition on time the one that holds of windows wholly in it; `None` if there is a
    /// condition that cannot be told of wider windows.
    fn times_of(&self, ctx: &SessionContext, conditions: &[&Expr]) -> Option<Times> {
        let mut times = Vec::new();
        for condition in conditions.iter().filter(|condition| !self.knows_all(condition)) {
            match condition {
                Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                    let (time, op, border) = match (left.as_ref(), right.as_ref()) {
                        (Expr::Column(_), border) => (left, *op, border),
                        (border, Expr::Column(_)) => (right, op.swap()?, border),
                        _ => return None,
                    };
                    times.push(self.wholly(ctx, time, op, border)?);
                }
                Expr::Between(between) if !between.negated => {
                    times.push(self.wholly(ctx, &between.expr, Operator::GtEq, &between.low)?);
                    times.push(self.wholly(ctx, &between.expr, Operator::LtEq, &between.high)?);
                }
                _ => return None,
            }
        }
        Some(times)
    }

    fn wholly(&self, ctx: &SessionContext, time: &Expr, op: Operator, border: &Expr) -> Option<Expr> {
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
            // The last window may reach beyond the border: it is of the pieces.
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
    use crate::exec::{Limits, runtime, session};
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

    /// Six hours of minutes, each of 1 ms a team, and hours that claim a thousand times that: the
    /// answer tells what was read.
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
        let level = Level {
            table: "t_1h".into(),
            width_ms: 3_600_000,
            keys: names(&["team"]),
            sums: names(&["ms"]),
            maxima: names(&[]),
        };
        let mut catalog = Catalog::default();
        catalog.tables.insert("t_1m".into(), rows(&minutes));
        catalog.tables.insert("t_1h".into(), rows(&hours));
        catalog.levels.insert("t_1m".into(), vec![level]);
        catalog
    }

    async fn sum(sql: &str) -> i64 {
        let limits = Limits::default();
        let ctx = session(&runtime(limits).unwrap(), limits);
        let catalog = catalog();
        catalog.register(&ctx).unwrap();
        let plan = ctx.state().create_logical_plan(sql).await.unwrap();
        let plan = from_widest(&ctx, &catalog, plan).unwrap();
        let rows = ctx.execute_logical_plan(plan).await.unwrap().collect().await.unwrap();
        let last = |batch: &RecordBatch| batch.columns().last().unwrap().as_primitive::<Int64Type>().clone();
        rows.iter().map(|batch| last(batch).iter().flatten().sum::<i64>()).sum()
    }

    #[tokio::test]
    async fn whole_hours_are_read_as_such() {
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
        // 30 minutes, three hours, 20 minutes; of two teams.
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
        // All of it is long ago.
        assert_eq!(
            sum("SELECT sum(ms) FROM t_1m WHERE window_start < now() - INTERVAL '7 days'").await,
            720_000
        );
        assert_eq!(sum("SELECT sum(ms) FROM t_1m WHERE window_start >= now() - INTERVAL '7 days'").await, 0);
    }

    #[tokio::test]
    async fn what_hours_do_not_know_is_read_from_minutes() {
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
    fn shipped_levels_go_up_from_minutes() {
        let plan = crate::plan::Plan::compile(crate::shipped::shipped());
        let plan = tokio::runtime::Runtime::new().unwrap().block_on(plan.boxed()).unwrap();
        let tables = |of: &str| plan.levels()[of].iter().map(|level| level.table.clone()).collect::<Vec<_>>();
        assert_eq!(tables("ledger_1m"), ["ledger_1h", "ledger_1d"]);
        assert_eq!(tables("gpu_1m"), ["gpu_1h"]);
        let gpu = &plan.levels()["gpu_1m"][0];
        assert!(
            gpu.sums.contains("active_us") && gpu.maxima.contains("framebuffer_used_max_bytes"),
            "{gpu:?}"
        );
        assert_eq!(plan.levels()["ledger_1h"][0].sums.iter().collect::<Vec<_>>(), ["cost_micros", "gpu_ms"]);
    }
}
