//! Admission: rejects queries whose planning alone would exhaust stack, memory or time. The engine
//! limits none of these while it plans, and nothing can interrupt it.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, ObjectNamePart, Query, Select, SetExpr, Visit, Visitor,
};

use crate::error::QueryError;

/// Operators, function calls and brackets inside one another, e.g. terms of one sum. Planning time
/// grows faster than the square of it.
const MAX_EXPR_DEPTH: usize = 200;
/// Tables and SELECTs of one query. A WITH query that is named twice counts twice: forty of them,
/// each naming the one before it twice, would be a million million.
const MAX_PARTS: usize = 500;
/// Columns of all its tables and SELECTs, WITH queries written out. Each is an expression that is
/// copied dozens of times while the query is planned.
const MAX_COLUMNS: usize = 30_000;
/// Assumed number of columns of a table; the text of a query does not show it.
const TABLE_COLUMNS: usize = 50;
/// Operators, calls, names and values of all its expressions, WITH queries written out.
const MAX_EXPRS: usize = 100_000;
/// Values in all VALUES lists.
const MAX_VALUES: usize = 10_000;
/// Queries inside one another.
const MAX_QUERY_DEPTH: usize = 40;
/// Steps of a plan, with those of the views that it reads.
const MAX_PLAN_NODES: usize = 50_000;

/// Refuses statements that write, and those that are too deep or too large to plan.
pub(crate) fn admit(statement: &Statement) -> Result<(), QueryError> {
    match statement {
        Statement::Statement(statement) => match statement.visit(&mut Size::default()) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(what) => Err(QueryError::Invalid(what)),
        },
        Statement::Explain(explain) => admit(&explain.statement),
        Statement::CopyTo(_) => Err(QueryError::NotReadOnly("COPY".into())),
        Statement::CreateExternalTable(_) => Err(QueryError::NotReadOnly("CREATE EXTERNAL TABLE".into())),
        Statement::Reset(_) => Err(QueryError::NotReadOnly("RESET".into())),
    }
}

/// Refuses plans that are too large to be optimized: views stand in them written out, and a text
/// does not show how large they are.
pub(crate) fn admit_plan(plan: &LogicalPlan) -> Result<(), DataFusionError> {
    let mut nodes = 0_usize;
    plan.apply_with_subqueries(|_| {
        nodes += 1;
        Ok(if nodes > MAX_PLAN_NODES { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    match nodes > MAX_PLAN_NODES {
        true => Err(DataFusionError::Plan(format!(
            "its plan has more than {MAX_PLAN_NODES} steps, views written out; split it"
        ))),
        false => Ok(()),
    }
}

/// Size of a query.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    /// Tables and SELECTs.
    parts: usize,
    columns: usize,
    exprs: usize,
    values: usize,
}

impl Parts {
    fn add(&mut self, more: Self) -> ControlFlow<String> {
        let sums = [
            (&mut self.parts, more.parts, MAX_PARTS, "tables and SELECTs"),
            (&mut self.columns, more.columns, MAX_COLUMNS, "columns in all its tables and SELECTs"),
            (&mut self.exprs, more.exprs, MAX_EXPRS, "operators, calls, names and values"),
            (&mut self.values, more.values, MAX_VALUES, "values in VALUES lists"),
        ];
        for (sum, more, most, what) in sums {
            *sum = sum.saturating_add(more);
            if *sum > most {
                return ControlFlow::Break(format!(
                    "it has more than {most} {what}, WITH queries written out; split it"
                ));
            }
        }
        ControlFlow::Continue(())
    }
}

/// A query that is being visited.
#[derive(Default)]
struct Open {
    size: Parts,
    /// The WITH queries of this query that were visited. They can be named in it and in what it
    /// holds, and hide those of the same name around it.
    with: HashMap<String, Parts>,
}

/// Measures a statement with its WITH queries expanded.
#[derive(Default)]
struct Size {
    expr_depth: usize,
    /// The queries being visited, the innermost last.
    open: Vec<Open>,
    /// Names of WITH queries that are yet to be visited, by address.
    names: HashMap<*const Query, String>,
}

impl Size {
    fn add(&mut self, more: Parts) -> ControlFlow<String> {
        match self.open.last_mut() {
            Some(here) => here.size.add(more),
            None => ControlFlow::Continue(()),
        }
    }

    /// The size of the WITH query that a name stands for here.
    fn named(&self, name: &ObjectName) -> Option<Parts> {
        let [ObjectNamePart::Identifier(name)] = &name.0[..] else { return None };
        let name = normalized(name);
        self.open.iter().rev().find_map(|open| open.with.get(&name)).copied()
    }
}

/// A name as the planner compares it: without quotes its case does not matter.
fn normalized(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_ascii_lowercase(),
    }
}

impl Visitor for Size {
    type Break = String;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        if self.open.len() >= MAX_QUERY_DEPTH {
            return ControlFlow::Break(format!(
                "more than {MAX_QUERY_DEPTH} queries are inside one another; write the inner ones as WITH queries"
            ));
        }
        self.open.push(Open::default());
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.names.insert(&raw const *cte.query, normalized(&cte.alias.name));
        }
        match query.body.as_ref() {
            SetExpr::Values(rows) => {
                let values = rows.rows.iter().map(|row| row.len()).sum();
                self.add(Parts { parts: 1, values, ..Parts::default() })
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        let size = self.open.pop().unwrap_or_default().size;
        match (self.names.remove(&(&raw const *query)), self.open.last_mut()) {
            (Some(name), Some(around)) => {
                around.with.insert(name, size);
                ControlFlow::Continue(())
            }
            _ => self.add(size),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<String> {
        self.add(Parts { parts: 1, columns: select.projection.len(), ..Parts::default() })
    }

    fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<String> {
        let table = Parts { parts: 1, columns: TABLE_COLUMNS, ..Parts::default() };
        self.add(self.named(name).unwrap_or(table))
    }

    fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<String> {
        self.expr_depth += 1;
        if self.expr_depth > MAX_EXPR_DEPTH {
            return ControlFlow::Break(format!(
                "an expression is more than {MAX_EXPR_DEPTH} levels deep; for many alternatives use IN (…)"
            ));
        }
        self.add(Parts { exprs: 1, ..Parts::default() })
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<String> {
        self.expr_depth -= 1;
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn admitted(sql: &str) -> Result<(), String> {
        let statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
        admit(&statement).map_err(|e| e.to_string())
    }

    #[test]
    fn columns_count_as_often_as_their_query_is_named() {
        let columns: Vec<String> = (0..1000).map(|n| format!("value + {n} AS c{n}")).collect();
        let wide = format!("WITH wide AS (SELECT {} FROM generate_series(1, 10)) ", columns.join(", "));
        let named = |times| format!("{wide}{}", vec!["SELECT * FROM wide"; times].join(" UNION ALL "));
        assert_eq!(admitted(&named(20)), Ok(()));
        let refused = admitted(&named(40)).unwrap_err();
        assert!(refused.contains("more than 30000 columns"), "{refused}");
        assert_eq!(admitted(&vec!["SELECT * FROM jobs"; 200].join(" UNION ALL ")), Ok(()));
    }
    /// A chain of WITH queries, each naming the one before it twice.
    fn doubling(name: impl Fn(usize) -> String, levels: usize) -> String {
        let with = (1..levels).map(|n| {
            format!("{} AS (SELECT l.x FROM {before} l, {before} r)", name(n), before = name(n - 1))
        });
        let with: Vec<String> =
            std::iter::once(format!("{} AS (SELECT 1 AS x)", name(0))).chain(with).collect();
        format!("WITH {} SELECT * FROM {}", with.join(", "), name(levels - 1))
    }

    #[test]
    fn with_queries_count_by_scope_and_case() {
        let refused = |sql: &str| admitted(sql).unwrap_err();
        let plain = doubling(|n| format!("t{n}"), 26);
        assert!(refused(&plain).contains("more than 500 tables"));
        // "A" and "a" are two.
        let quoted =
            doubling(|n| if n % 2 == 0 { format!("\"T{}\"", n / 2) } else { format!("\"t{}\"", n / 2) }, 26);
        assert!(refused(&quoted).contains("more than 500 tables"));
        // What is defined inside another query does not stand for what is around it.
        let hidden = plain.replace(
            " SELECT * FROM t25",
            ", z AS (WITH t25 AS (SELECT 1 AS x) SELECT * FROM t25) SELECT * FROM t25",
        );
        assert!(refused(&hidden).contains("more than 500 tables"), "{hidden}");
        let inside: String = (1..26)
            .fold("SELECT 1 AS x".into(), |inner, _| format!("WITH t AS ({inner}) SELECT l.x FROM t l, t r"));
        assert!(refused(&inside).contains("more than 500 tables"));
        assert_eq!(
            admitted("WITH t AS (SELECT 1) SELECT * FROM t, (WITH t AS (SELECT 2) SELECT * FROM t) u"),
            Ok(())
        );
    }

    #[test]
    fn values_expressions_and_depth_are_counted() {
        let values = |rows: usize| format!("VALUES {}", vec!["(1, 2)"; rows].join(", "));
        assert_eq!(admitted(&values(4_000)), Ok(()));
        assert!(admitted(&values(5_001)).unwrap_err().contains("more than 10000 values"));
        let list = format!("WITH t AS (SELECT value IN ({}) FROM u) ", vec!["1"; 4_000].join(", "));
        let thirty = format!("{list}{}", vec!["SELECT * FROM t"; 30].join(" UNION ALL "));
        assert!(admitted(&thirty).unwrap_err().contains("more than 100000 operators"));
        let deep =
            |levels| (0..levels).fold("SELECT 1".into(), |inner: String, _| format!("SELECT ({inner})"));
        assert_eq!(admitted(&deep(10)), Ok(()));
        let parsed = DFParser::parse_sql(&deep(45)).map_err(|e| e.to_string());
        let refused = parsed.and_then(|mut s| admit(&s.pop_front().unwrap()).map_err(|e| e.to_string()));
        assert!(refused.is_err(), "{refused:?}");
    }
}
