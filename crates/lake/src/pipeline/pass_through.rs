//! Recognises text columns that a pipeline only passes through.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// Text columns of the sources that the plan only groups by and outputs under their own names,
/// sorted. They can be dictionary-encoded while the pipeline runs.
pub fn pass_through_columns(plan: &LogicalPlan) -> Vec<String> {
    let (mut text, mut used, mut simple) = (BTreeSet::new(), BTreeSet::new(), true);
    let walked = plan.apply_with_subqueries(|node| {
        let bare: &[Expr] = match node {
            LogicalPlan::TableScan(scan) => {
                let is_text = |f: &&Arc<Field>| f.data_type() == &DataType::Utf8View;
                text.extend(scan.projected_schema.fields().iter().filter(is_text).map(|f| f.name().clone()));
                &[]
            }
            LogicalPlan::Projection(projection) => &projection.expr,
            LogicalPlan::Aggregate(aggregate) => &aggregate.group_expr,
            LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => &[],
            _ => {
                simple = false;
                &[]
            }
        };
        for expr in node.expressions() {
            if matches!(expr, Expr::Column(_)) && bare.contains(&expr) {
                continue;
            }
            if let Expr::Alias(alias) = &expr {
                used.insert(alias.name.clone());
            }
            used.extend(expr.column_refs().iter().map(|c| c.name.clone()));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    if walked.is_err() || !simple {
        return Vec::new();
    }
    text.difference(&used).cloned().collect()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Schema;
    use datafusion::datasource::MemTable;
    use datafusion::prelude::SessionContext;

    use super::*;

    /// Text that is compared, computed with, renamed or joined on is not passed through.
    #[tokio::test]
    async fn only_unchanged_text_is_passed_through() {
        let ctx = SessionContext::new();
        let fields = ["a", "b", "c"].map(|name| Field::new(name, DataType::Utf8View, true)).to_vec();
        let table = MemTable::try_new(Arc::new(Schema::new(fields)), vec![vec![]]).unwrap();
        ctx.register_table("t", Arc::new(table)).unwrap();
        for (sql, expected) in [
            ("SELECT a, b, count(*) AS n FROM t GROUP BY a, b", "a b c"),
            ("SELECT a, b, count(*) AS n FROM t WHERE b = 'x' GROUP BY a, b", "a c"),
            ("SELECT a, b, count(c) AS n FROM t GROUP BY a, b", "a b"),
            ("SELECT a, upper(b) AS b, count(*) AS n FROM t GROUP BY a, upper(b)", "a c"),
            ("SELECT a, b AS c, count(*) AS n FROM t GROUP BY a, b", "a"),
            ("SELECT a, count(*) AS n FROM t GROUP BY a HAVING a > 'x'", "b c"),
            ("SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b) AS n FROM t", ""),
            ("SELECT t.a, u.b FROM t JOIN t u ON t.a = u.a", ""),
            ("SELECT a FROM t WHERE b IN (SELECT c FROM t)", ""),
        ] {
            let plan = ctx.state().create_logical_plan(sql).await.unwrap();
            assert_eq!(pass_through_columns(&plan).join(" "), expected, "{sql}");
        }
    }
}
