//! Evaluates `coalesce` of two integers over whole columns.
//!
//! DataFusion plans `coalesce(x, y)` as CASE WHEN x IS NOT NULL THEN x ELSE y END, and splits each
//! batch into the rows of either branch before it evaluates them. That matters where y can fail or
//! is costly. Where it is a column or one of our functions, which cannot fail, evaluating both over
//! all rows takes a tenth of the time.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use crate::functions;

/// The plan with every such expression replaced.
pub fn eager(plan: LogicalPlan) -> Result<LogicalPlan> {
    let replaced = plan.transform_up_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        let replaced = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let replaced = expr.transform_up(|expr| Ok(replace(expr, &schema)))?;
            Ok(replaced.update_data(|expr| name.restore(expr)))
        })?;
        match replaced.transformed {
            true => replaced.map_data(LogicalPlan::recompute_schema),
            false => Ok(replaced),
        }
    })?;
    Ok(replaced.data)
}

fn replace(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::Case(case) = &expr else { return Transformed::no(expr) };
    let ([(when, then)], Some(other)) = (case.when_then_expr.as_slice(), &case.else_expr) else {
        return Transformed::no(expr);
    };
    let is_coalesce = case.expr.is_none()
        && matches!(when.as_ref(), Expr::IsNotNull(tested) if tested == then)
        && [then, other].iter().all(|e| cannot_fail(e) && e.get_type(schema).ok() == Some(DataType::Int64));
    if !is_coalesce {
        return Transformed::no(expr);
    }
    let args = vec![then.as_ref().clone(), other.as_ref().clone()];
    Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(functions::first_known(), args)))
}

fn cannot_fail(expr: &Expr) -> bool {
    match expr {
        Expr::Column(_) | Expr::Literal(..) => true,
        Expr::ScalarFunction(call) => functions::cannot_fail(&call.func) && call.args.iter().all(cannot_fail),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::engine::{self, Limits};

    async fn run(sql: &str) -> (String, Vec<Option<i64>>) {
        let limits = Limits::default();
        let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
        let x = Int64Array::from(vec![Some(1), None, None]);
        let y = Int64Array::from(vec![Some(5), Some(6), None]);
        let columns = [("x", Arc::new(x) as _, true), ("y", Arc::new(y) as _, true)];
        ctx.register_batch("t", RecordBatch::try_from_iter_with_nullable(columns).unwrap()).unwrap();
        let state = ctx.state();
        let plan = state.optimize(&state.create_logical_plan(sql).await.unwrap()).unwrap();
        let plan = eager(plan).unwrap();
        let shown = plan.to_string();
        let rows = ctx.execute_logical_plan(plan).await.unwrap().collect().await.unwrap();
        assert_eq!(rows[0].schema().field(0).name(), "z");
        (
            shown,
            rows.iter()
                .flat_map(|b| b.column(0).as_primitive::<Int64Type>().iter().collect::<Vec<_>>())
                .collect(),
        )
    }

    #[tokio::test]
    async fn two_integers_are_evaluated_whole() {
        let (plan, found) = run("SELECT coalesce(x, millionths(y, 2000000)) AS z FROM t").await;
        assert_eq!(found, [Some(1), Some(12), None]);
        assert!(plan.contains("first_known(t.x, millionths("), "{plan}");
    }

    #[tokio::test]
    async fn what_may_fail_is_evaluated_only_where_it_is_needed() {
        let (plan, found) = run("SELECT coalesce(x, CASE WHEN y > 5 THEN 7 / (y - 5) END) AS z FROM t").await;
        assert_eq!(found, [Some(1), Some(7), None], "y - 5 is 0 in the first row");
        assert!(!plan.contains("first_known"), "{plan}");
    }
}
