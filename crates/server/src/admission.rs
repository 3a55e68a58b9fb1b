//! Admission: rejects queries whose planning alone would exhaust stack, memory or time. The engine
//! limits none of these while it plans, and nothing can interrupt it.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, ObjectName, Query, Select, Visit, Visitor};

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

/// Size of a query.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    /// Tables and SELECTs.
    parts: usize,
    columns: usize,
}

/// Measures a statement with its WITH queries expanded.
#[derive(Default)]
struct Size {
    expr_depth: usize,
    /// Sizes of the queries being visited, the innermost last.
    open: Vec<Parts>,
    /// The WITH queries seen so far.
    with: HashMap<String, Parts>,
    /// Names of WITH queries that are yet to be visited, by address.
    names: HashMap<*const Query, String>,
}

impl Size {
    fn add(&mut self, more: Parts) -> ControlFlow<String> {
        let Some(here) = self.open.last_mut() else { return ControlFlow::Continue(()) };
        here.parts = here.parts.saturating_add(more.parts);
        here.columns = here.columns.saturating_add(more.columns);
        let (what, most) = match (here.parts > MAX_PARTS, here.columns > MAX_COLUMNS) {
            (true, _) => ("tables and SELECTs", MAX_PARTS),
            (false, true) => ("columns in all its tables and SELECTs", MAX_COLUMNS),
            (false, false) => return ControlFlow::Continue(()),
        };
        ControlFlow::Break(format!("it has more than {most} {what}, WITH queries written out; split it"))
    }
}

impl Visitor for Size {
    type Break = String;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        self.open.push(Parts::default());
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.names.insert(&raw const *cte.query, cte.alias.name.value.to_lowercase());
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        let parts = self.open.pop().unwrap_or_default();
        match self.names.remove(&(&raw const *query)) {
            Some(name) => {
                self.with.insert(name, parts);
                ControlFlow::Continue(())
            }
            None => self.add(parts),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<String> {
        self.add(Parts { parts: 1, columns: select.projection.len() })
    }

    fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<String> {
        let name = name.to_string().trim_matches('"').to_lowercase();
        let table = Parts { parts: 1, columns: TABLE_COLUMNS };
        self.add(self.with.get(&name).copied().unwrap_or(table))
    }

    fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<String> {
        self.expr_depth += 1;
        match self.expr_depth > MAX_EXPR_DEPTH {
            true => ControlFlow::Break(format!(
                "an expression is more than {MAX_EXPR_DEPTH} levels deep; for many alternatives use IN (…)"
            )),
            false => ControlFlow::Continue(()),
        }
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
}
