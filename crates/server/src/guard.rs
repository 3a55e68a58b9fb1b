//! Refuses queries whose mere planning would cost the process its stack, its memory or minutes, which the engine does not
//! limit and nothing can interrupt.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, ObjectName, Query, Select, Visit, Visitor};

use crate::error::QueryError;

/// Operators, function calls and brackets inside one another, e.g. terms of one sum. Planning time grows faster than the
/// square of it.
const MAX_EXPR_DEPTH: usize = 200;
/// Tables and SELECTs of one query. A WITH query that is named twice counts twice: forty of them, each naming the one
/// before it twice, would ask for a million million.
const MAX_PARTS: usize = 500;

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

/// What a statement would be with its WITH queries written out.
#[derive(Default)]
struct Size {
    expr_depth: usize,
    /// Parts of each query that is being visited, the innermost last.
    open: Vec<usize>,
    /// Parts of the WITH queries seen so far.
    with: HashMap<String, usize>,
    /// Names of WITH queries that are yet to be visited, by address.
    names: HashMap<*const Query, String>,
}

impl Size {
    fn add(&mut self, parts: usize) -> ControlFlow<String> {
        let Some(here) = self.open.last_mut() else { return ControlFlow::Continue(()) };
        *here += parts;
        match *here > MAX_PARTS {
            true => ControlFlow::Break(format!(
                "it has more than {MAX_PARTS} tables and SELECTs, WITH queries written out; split it"
            )),
            false => ControlFlow::Continue(()),
        }
    }
}

impl Visitor for Size {
    type Break = String;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        self.open.push(0);
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

    fn pre_visit_select(&mut self, _: &Select) -> ControlFlow<String> {
        self.add(1)
    }

    fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<String> {
        let name = name.to_string().trim_matches('"').to_lowercase();
        self.add(self.with.get(&name).copied().unwrap_or(1))
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
