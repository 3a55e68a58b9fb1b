//! Pipeline checker: refuses SQL whose result could depend on anything but its input rows, and
//! suggests what to write instead.

use std::collections::BTreeSet;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, Join, LogicalPlan, Operator, Volatility};
use datafusion::prelude::SessionContext;

use crate::error::{LakeError, Result};
use crate::pipeline::definition::{Pipeline, Shape};

/// Plans the SQL over `ctx`, which holds the pipeline's sources, and checks every rule. Returns the
/// logical plan.
pub async fn check(ctx: &SessionContext, pipeline: &Pipeline) -> Result<LogicalPlan> {
    let refuse = |message: String| LakeError::Pipeline {
        file: format!("{}:{}", pipeline.file, pipeline.sql_line),
        message,
    };
    let plan =
        ctx.state().create_logical_plan(&pipeline.sql).await.map_err(|e| refuse(e.strip_backtrace()))?;
    let read_only =
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    read_only
        .verify_plan(&plan)
        .map_err(|_| refuse("a pipeline is one SELECT; it changes nothing".into()))?;
    if pipeline.shape != Shape::View {
        check_nodes(&plan, pipeline).map_err(refuse)?;
        check_output(&plan, pipeline).map_err(refuse)?;
    }
    Ok(plan)
}

/// Names of the columns that the SQL reads from its sources in `ctx`, sorted.
pub fn columns_read(ctx: &SessionContext, plan: &LogicalPlan) -> Result<Vec<String>> {
    let plan = ctx.state().optimize(plan)?;
    let mut columns = BTreeSet::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            columns.extend(scan.projected_schema.fields().iter().map(|f| f.name().clone()));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(columns.into_iter().collect())
}

fn check_output(plan: &LogicalPlan, pipeline: &Pipeline) -> Result<(), String> {
    let schema = plan.schema();
    let mut required: Vec<&str> = pipeline.key.iter().map(String::as_str).collect();
    match &pipeline.shape {
        Shape::Keyed { per } => required.extend(per.iter().map(String::as_str)),
        Shape::Windowed { .. } | Shape::Joined { .. } => {
            if pipeline.key.first().map(String::as_str) != Some("window_start") {
                return Err("the first column of `key` must be window_start".into());
            }
        }
        Shape::View => {}
    }
    for name in required {
        if schema.index_of_column_by_name(None, name).is_none() {
            return Err(format!("the output lacks column {name}, which the header names as key; select it"));
        }
    }
    for field in schema.fields().iter().filter(|f| !pipeline.key.contains(f.name())) {
        if pipeline.shape.open_ms().is_some() && !field.data_type().is_integer() {
            return Err(format!(
                "column {} has type {}; beside its key a window holds only integer sums (numerators and denominators), \
                 so that any grouping is exact",
                field.name(),
                field.data_type()
            ));
        }
    }
    Ok(())
}

fn check_nodes(plan: &LogicalPlan, pipeline: &Pipeline) -> Result<(), String> {
    let unit: Vec<&str> = match &pipeline.shape {
        Shape::Keyed { per } => per.iter().map(String::as_str).collect(),
        _ => vec!["window_start"],
    };
    let of_several = matches!(pipeline.shape, Shape::Joined { .. });
    let mut found = Ok(());
    let walked = plan.apply_with_subqueries(|node| {
        found = check_node(node, &unit, of_several);
        Ok(if found.is_ok() { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    walked.map_err(|e| e.to_string())?;
    found
}

fn check_node(node: &LogicalPlan, unit: &[&str], of_several: bool) -> Result<(), String> {
    match node {
        LogicalPlan::Aggregate(aggregate) => check_grouping(aggregate, unit)?,
        LogicalPlan::Limit(_) => {
            return Err("LIMIT depends on the order of rows; select by a condition instead".into());
        }
        LogicalPlan::Join(join) => {
            let matched = equalities(join);
            // A source without an extent has no window column: it is the same in every window.
            let in_windows = |side: &LogicalPlan| {
                unit.iter().all(|u| side.schema().index_of_column_by_name(None, u).is_some())
            };
            let both = in_windows(&join.left) && in_windows(&join.right);
            if let Some(missing) = unit
                .iter()
                .filter(|_| both || !of_several)
                .find(|u| !matched.iter().any(|(l, r)| names(l, u) && names(r, u)))
            {
                return Err(format!(
                    "a join must also match on {missing} of both sides, or a row could be joined with rows of another key or window"
                ));
            }
        }
        _ => {}
    }
    for expr in node.expressions() {
        check_expr(&expr, node, unit)?;
    }
    Ok(())
}

/// Pairs of expressions that a join matches on, as text.
fn equalities(join: &Join) -> Vec<(String, String)> {
    let keys = join.on.iter().map(|(left, right)| (left.to_string(), right.to_string()));
    let conditions = join.filter.iter().flat_map(|filter| split_conjunction(filter));
    let equal = conditions.filter_map(|condition| match condition {
        Expr::BinaryExpr(e) if e.op == Operator::Eq => Some((e.left.to_string(), e.right.to_string())),
        _ => None,
    });
    keys.chain(equal).collect()
}

fn check_grouping(aggregate: &Aggregate, unit: &[&str]) -> Result<(), String> {
    let grouped: Vec<String> = aggregate.group_expr.iter().map(ToString::to_string).collect();
    match unit.iter().find(|u| !grouped.iter().any(|g| names(g, u))) {
        Some(missing) => {
            Err(format!("GROUP BY must include {missing}: the pipeline runs for one {missing} at a time"))
        }
        None => Ok(()),
    }
}

/// Whether an expression, as text, is this column, qualified or not.
fn names(expr: &str, column: &str) -> bool {
    expr == column || expr.strip_suffix(column).is_some_and(|head| head.ends_with('.'))
}

fn check_expr(expr: &Expr, node: &LogicalPlan, unit: &[&str]) -> Result<(), String> {
    let mut found = Ok(());
    let walked = expr.apply(|e| {
        found = match e {
            Expr::ScalarFunction(f) if f.func.signature().volatility != Volatility::Immutable => {
                Err(format!(
                    "{}() depends on when it is called; use the times of the rows, or as_of",
                    f.func.name()
                ))
            }
            Expr::AggregateFunction(f) => check_aggregate(f, node),
            Expr::WindowFunction(f) => check_window(f, unit),
            _ => Ok(()),
        };
        Ok(if found.is_ok() { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    walked.map_err(|e| e.to_string())?;
    found
}

fn check_aggregate(f: &AggregateFunction, node: &LogicalPlan) -> Result<(), String> {
    let name = f.func.name();
    if name.starts_with("approx_") {
        return Err(format!(
            "{name}() depends on how rows are batched; keep a histogram with log_bucket() instead"
        ));
    }
    if matches!(name, "first_value" | "last_value" | "nth_value" | "array_agg" | "string_agg") {
        return Err(format!(
            "{name}() depends on the order of rows; use latest(value, time), min() or max()"
        ));
    }
    let float = |e: &Expr| {
        node.inputs().iter().any(|input| {
            matches!(
                e.get_type(input.schema()),
                Ok(DataType::Float16 | DataType::Float32 | DataType::Float64)
            )
        })
    };
    if !matches!(name, "min" | "max" | "count" | "latest" | "quantiles" | "mad")
        && f.params.args.iter().any(float)
    {
        return Err(format!(
            "{name}() over floats depends on the order of rows; sum integers in a smaller unit"
        ));
    }
    if matches!(name, "avg" | "stddev" | "var" | "median" | "corr") {
        return Err(format!(
            "{name}() cannot be merged exactly; keep sum() and count(), and divide when you read"
        ));
    }
    Ok(())
}

fn check_window(f: &WindowFunction, unit: &[&str]) -> Result<(), String> {
    let partitioned: Vec<String> = f.params.partition_by.iter().map(ToString::to_string).collect();
    match unit.iter().find(|u| !partitioned.iter().any(|p| names(p, u))) {
        Some(missing) => Err(format!(
            "OVER (…) must be PARTITION BY {missing}: the pipeline runs for one {missing} at a time"
        )),
        None => Ok(()),
    }
}
