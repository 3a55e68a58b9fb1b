//! From the text of a query to its plan: one statement that only reads, is not too large, and has
//! values for its parameters.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::error::DataFusionError;
use datafusion::execution::FunctionRegistry;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::resolve::resolve_table_references;
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use tidegate_lake::catalog::Catalog;
use tidegate_lake::catalog::rollup::rewrite_onto_rollups;

use crate::admission;
use crate::bounded_functions::Bounds;
use crate::error::QueryError;
use crate::interval_product::IntervalProducts;
use crate::question::{Description, Encoding, Parameters, Query, Question};
use crate::{flight, postgres};

/// Longest query text, bytes.
pub(crate) const MAX_SQL_BYTES: usize = 64 << 10;
/// Most parameters of a query.
const MAX_PARAMETERS: usize = 1000;

/// A query that can be optimized and run in its session.
pub(crate) struct Planned {
    pub ctx: SessionContext,
    pub plan: LogicalPlan,
}

impl Planned {
    /// Plans a query on these tables; a value may have so many bytes.
    ///
    /// # Errors
    /// It does not parse, writes, is too large, or means nothing.
    pub async fn new(
        ctx: SessionContext,
        catalog: &Catalog,
        query: &Query,
        step_bytes: usize,
    ) -> Result<Self, QueryError> {
        let explain = |e| QueryError::from_engine(&e, catalog.tables.keys().cloned());
        let (ctx, mut statement) = match query.of_postgres && postgres::catalog::is_meant(&query.sql) {
            false => {
                catalog.register_named(&ctx).map_err(|e| QueryError::Internal(e.to_string()))?;
                (ctx, only_statement(&query.sql, explain)?)
            }
            true => {
                check_length(&query.sql)?;
                let statement = only(postgres::catalog::statements(&query.sql).map_err(explain)?)?;
                (postgres::catalog::session(&ctx, catalog).await.map_err(explain)?, statement)
            }
        };
        if query.of_postgres {
            postgres::template::translate(&mut statement)?;
        }
        let bounds = Arc::new(Bounds { step_bytes });
        ctx.state_ref().write().register_function_rewrite(bounds).map_err(explain)?;
        ctx.state_ref().write().register_expr_planner(Arc::new(IntervalProducts)).map_err(explain)?;
        let plan = ctx.state().statement_to_plan(statement).await.map_err(explain)?;
        let plan = rewrite_onto_rollups(&ctx, catalog, plan).map_err(explain)?;
        let read_only =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        read_only.verify_plan(&plan).map_err(explain)?;
        admission::admit_plan(&plan).map_err(explain)?;
        Ok(Self { ctx, plan })
    }

    /// The query with values in place of its parameters.
    ///
    /// # Errors
    /// A value is missing, or none of its parameter's type.
    pub fn with_values(mut self, values: &Parameters) -> Result<Self, QueryError> {
        let values = match values {
            Parameters::None => return Ok(self),
            Parameters::Postgres(bound) => postgres::parameters::values(bound, &self.parameters()?)?,
            Parameters::Arrow(stream) => flight::values::values(stream, &self.parameters()?)?,
        };
        let explain = |e| QueryError::from_engine(&e, std::iter::empty());
        self.plan = self.plan.with_param_values(values).map_err(explain)?;
        Ok(self)
    }

    /// What the query takes and gives.
    ///
    /// # Errors
    /// Its parameters are not numbered.
    pub fn describe(&self) -> Result<Description, QueryError> {
        let types = self.parameters()?.into_iter().enumerate();
        let parameter = |(at, of): (usize, Option<DataType>)| {
            Field::new(format!("${}", at + 1), of.unwrap_or(DataType::Null), true)
        };
        let parameters = Arc::new(Schema::new(types.map(parameter).collect::<Vec<_>>()));
        Ok(Description { parameters, columns: Arc::new(self.plan.schema().as_arrow().clone()) })
    }

    /// Types of the parameters, as far as the query shows them.
    fn parameters(&self) -> Result<Vec<Option<DataType>>, QueryError> {
        let explain = |e| QueryError::from_engine(&e, std::iter::empty());
        let found: HashMap<String, Option<DataType>> = self.plan.get_parameter_types().map_err(explain)?;
        let mut types = Vec::new();
        for (name, of) in found {
            let number = name.strip_prefix('$').and_then(|number| number.parse::<usize>().ok());
            let at = number.filter(|number| (1..=MAX_PARAMETERS).contains(number)).ok_or_else(|| {
                QueryError::Invalid(format!("parameter {name}: they are numbered, $1 to ${MAX_PARAMETERS}"))
            })?;
            if types.len() < at {
                types.resize(at, None);
            }
            types[at - 1] = of;
        }
        Ok(types)
    }
}

/// Tables and views that a query names, WITH queries included.
pub(crate) fn tables_named(sql: &str) -> Result<Vec<String>, QueryError> {
    let explain = |e: DataFusionError| QueryError::from_engine(&e, std::iter::empty());
    let statement = only_statement(sql, explain)?;
    let (tables, with) = resolve_table_references(&statement, true).map_err(explain)?;
    Ok(tables.iter().chain(&with).map(|name| name.table().to_owned()).collect())
}

/// Parses a text that must hold one statement, which only reads and is not too large to plan.
fn only_statement(
    sql: &str,
    explain: impl Fn(DataFusionError) -> QueryError,
) -> Result<Statement, QueryError> {
    check_length(sql)?;
    let parser = DFParserBuilder::new(sql).with_dialect(&PostgreSqlDialect {}).build();
    only(parser.and_then(|mut p| p.parse_statements()).map_err(explain)?)
}

fn check_length(sql: &str) -> Result<(), QueryError> {
    match sql.len() > MAX_SQL_BYTES {
        false => Ok(()),
        true => Err(QueryError::Invalid(format!(
            "its text has {} bytes; at most {MAX_SQL_BYTES} are read",
            sql.len()
        ))),
    }
}

/// The only one of these statements, which only reads and is not too large to plan.
fn only(statements: impl IntoIterator<Item = Statement>) -> Result<Statement, QueryError> {
    let mut statements = statements.into_iter();
    let statement = statements.next().ok_or(QueryError::Empty)?;
    let more = statements.count();
    if more > 0 {
        return Err(QueryError::SeveralStatements(more + 1));
    }
    admission::admit(&statement)?;
    Ok(statement)
}

impl Description {
    /// It as bytes, as whoever asked the question reads them.
    ///
    /// # Errors
    /// A type cannot be written in this encoding.
    pub fn encoded(&self, question: &Question) -> Result<Vec<u8>, QueryError> {
        let types: &[u32] = match &question.query.parameters {
            Parameters::Postgres(bound) => &bound.types,
            Parameters::None | Parameters::Arrow(_) => &[],
        };
        match &question.encoding {
            Encoding::Postgres { .. } => postgres::rows::described(self, types),
            Encoding::Flight => flight::values::described(self),
            Encoding::Format(format) => {
                Err(QueryError::Internal(format!("nothing is described as {format}")))
            }
        }
    }
}
