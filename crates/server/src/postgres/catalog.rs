//! Postgres' catalogue, for clients that look there for tables: `\d` of psql, reflection of
//! SQLAlchemy, metadata of drivers.
//!
//! The tables `pg_catalog.*` and `information_schema.*` are there for queries of Postgres' clients
//! that name them, and only these are rewritten into what the engine can plan. Every other query
//! is the same query at every door.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock, OnceLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{
    CatalogProviderList, MemoryCatalogProviderList, SchemaProvider, TableFunctionImpl,
};
use datafusion::common::ScalarValue;
use datafusion::datasource::empty::EmptyTable;
use datafusion::datasource::{TableProvider, TableType};
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{ColumnarValue, Expr as Expression, Volatility, cast, create_udf};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, ObjectName,
    SetExpr, Value, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use datafusion_pg_catalog::pg_catalog as tables;
use datafusion_pg_catalog::pg_catalog::catalog_info::CatalogInfo;
use datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_pg_catalog::pg_catalog::{PgCatalogSchemaProvider, PgCatalogStaticTables};
use datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use tidegate_lake::catalog::Catalog;

use super::{constant, setting};

/// Name of the database: there is one.
pub(super) const DATABASE: &str = "tidegate";
/// The schema of all tables.
const SCHEMA: &str = "public";
/// The release of Postgres whose catalogue is answered, as clients parse it.
pub(super) const SERVER_VERSION: &str = "15.0";
/// What only the catalogue has, beside names that begin with `pg_`.
const WORDS: [&str; 8] = [
    "information_schema",
    "regclass",
    "regtype",
    "regproc",
    "regnamespace",
    "current_user",
    "session_user",
    "current_catalog",
];
/// Functions of Postgres about the session and the catalogue.
const FUNCTIONS: [&str; 10] = [
    "version",
    "current_setting",
    "current_database",
    "current_schema",
    "current_schemas",
    "format_type",
    "has_database_privilege",
    "has_schema_privilege",
    "has_table_privilege",
    "quote_ident",
];

/// Whether a text is about Postgres' catalogue or session.
pub(crate) fn is_meant(sql: &str) -> bool {
    let Ok(tokens) = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize() else { return false };
    let mut tokens = tokens.into_iter().filter(|token| !matches!(token, Token::Whitespace(_))).peekable();
    while let Some(token) = tokens.next() {
        let Token::Word(word) = token else { continue };
        let word = word.value.to_ascii_lowercase();
        let is_called = matches!(tokens.peek(), Some(Token::LParen));
        if word.starts_with("pg_")
            || WORDS.contains(&word.as_str())
            || is_called && FUNCTIONS.contains(&word.as_str())
        {
            return true;
        }
    }
    false
}

/// Statements of a text about the catalogue, as the engine can plan them.
pub(crate) fn statements(sql: &str) -> Result<Vec<Statement>, DataFusionError> {
    static PARSER: LazyLock<PostgresCompatibilityParser> = LazyLock::new(PostgresCompatibilityParser::new);
    let mut parsed = PARSER.parse(sql).map_err(|error| DataFusionError::SQL(Box::new(error), None))?;
    // Nothing breaks off.
    if let ControlFlow::Break(never) = parsed.visit(&mut Plannable) {
        match never {}
    }
    Ok(parsed.into_iter().map(|statement| Statement::Statement(Box::new(statement))).collect())
}

/// Puts what the engine can plan in place of what it cannot.
struct Plannable;

impl VisitorMut for Plannable {
    type Break = Infallible;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Infallible> {
        match expr {
            // Backslash is the only escape there is.
            Expr::Like { pattern, escape_char, .. } | Expr::ILike { pattern, escape_char, .. } => {
                if let Some(Value::SingleQuotedString(escape)) = escape_char.take().map(|value| value.value)
                    && escape != "\\"
                {
                    let replaced = [pattern.as_ref().clone(), literal(&escape), literal("\\")];
                    **pattern = call("replace", replaced);
                }
            }
            // An array of a query's rows, such as the roles that a role is in: there are none.
            Expr::Function(function)
                if function.name.to_string().eq_ignore_ascii_case("array")
                    && matches!(function.args, FunctionArguments::Subquery(_)) =>
            {
                *expr = call("make_array", []);
            }
            // Prints who has which rights on an object: nobody has any but by their token.
            Expr::Function(function) if prints_rights(function) => *expr = Expr::Value(Value::Null.into()),
            // Compares a truth with a letter, as SQLAlchemy 1.4 does.
            Expr::BinaryOp { left, right, .. } if is_truth(left) => {
                if let Expr::Value(value) = right.as_mut()
                    && let Value::SingleQuotedString(letter) = &value.value
                    && matches!(letter.as_str(), "t" | "f")
                {
                    value.value = Value::Boolean(letter == "t");
                }
            }
            // Looks up a default, a sequence or a collation of a column, of which there are none.
            Expr::Subquery(query) if looks_up_nothing(&query.body) => *expr = Expr::Value(Value::Null.into()),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Whether this is `array_to_string` of a column like `nspacl`.
fn prints_rights(function: &Function) -> bool {
    let FunctionArguments::List(list) = &function.args else { return false };
    let is_called = function.name.to_string().to_ascii_lowercase().ends_with("array_to_string");
    is_called && list.args.first().is_some_and(|of| of.to_string().to_ascii_lowercase().ends_with("acl"))
}

/// Whether this is a column of `pg_index` that says yes or no.
fn is_truth(expr: &Expr) -> bool {
    let name = match expr {
        Expr::Identifier(name) => name,
        Expr::CompoundIdentifier(names) => match names.last() {
            Some(name) => name,
            None => return false,
        },
        _ => return false,
    };
    name.value.to_ascii_lowercase().starts_with("indis")
}

fn looks_up_nothing(body: &SetExpr) -> bool {
    let SetExpr::Select(select) = body else { return false };
    let read = select.from.first().map(|from| from.relation.to_string()).unwrap_or_default();
    let selected = select.projection.first().map(ToString::to_string).unwrap_or_default();
    ["pg_attrdef", "pg_sequence", "pg_collation"].iter().any(|name| read.contains(name))
        || selected.ends_with("typcollation")
}

fn literal(text: &str) -> Expr {
    Expr::Value(Value::SingleQuotedString(text.to_owned()).into())
}

fn call<const N: usize>(name: &str, arguments: [Expr; N]) -> Expr {
    let arguments = arguments.map(|argument| FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)));
    let args =
        FunctionArgumentList { duplicate_treatment: None, args: arguments.into(), clauses: Vec::new() };
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(args),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// A session like this one in which these tables, and the catalogue of them, can be read.
pub(crate) async fn session(
    like: &SessionContext,
    catalog: &Catalog,
) -> Result<SessionContext, DataFusionError> {
    let config = like.copied_config().with_default_catalog_and_schema(DATABASE, SCHEMA);
    let state = SessionStateBuilder::new_from_existing(like.state())
        .with_config(config.with_information_schema(true).with_create_default_catalog_and_schema(true))
        .with_catalog_list(Arc::new(MemoryCatalogProviderList::new()))
        .with_type_planner(Arc::new(tables::oid_type_planner::PgOidTypePlanner))
        .build();
    let ctx = SessionContext::new_with_state(state);
    catalog.register(&ctx).map_err(|error| DataFusionError::External(Box::new(error)))?;
    let fixed = fixed_tables()?;
    let list = InOrder(Arc::clone(ctx.state().catalog_list()));
    let provider = PgCatalogSchemaProvider::try_new(list, Arc::clone(&fixed), EmptyContextProvider)?;
    let provider = Arc::new(provider);
    let database = ctx.catalog(DATABASE).ok_or_else(|| DataFusionError::Internal("no database".into()))?;
    number_all(&ctx, provider.as_ref()).await?;
    database.register_schema("pg_catalog", Arc::new(WithoutKeys(provider)))?;
    register_functions(&ctx, &fixed);
    Ok(ctx)
}

/// Tables that are the same in every database, read once.
fn fixed_tables() -> Result<Arc<PgCatalogStaticTables>, DataFusionError> {
    static FIXED: OnceLock<Arc<PgCatalogStaticTables>> = OnceLock::new();
    if let Some(fixed) = FIXED.get() {
        return Ok(Arc::clone(fixed));
    }
    let fixed = Arc::new(PgCatalogStaticTables::try_new()?);
    Ok(Arc::clone(FIXED.get_or_init(|| fixed)))
}

/// Gives every schema and table its object identifier. They are counted as they are met, and
/// clients ask with one query for the identifier that the next one names: all queries, in whatever
/// process, must meet them in the same order.
async fn number_all(ctx: &SessionContext, schema: &dyn SchemaProvider) -> Result<(), DataFusionError> {
    let classes = schema.table("pg_class").await?;
    let classes = classes.ok_or_else(|| DataFusionError::Internal("no pg_class".into()))?;
    ctx.read_table(classes)?.collect().await.map(|_| ())
}

/// The catalogue, without the constraints and indexes of a real Postgres' own tables: there are
/// none here, and queries unnest columns of theirs that are lists. Tables have no options.
#[derive(Debug)]
struct WithoutKeys<P>(Arc<P>);

#[async_trait]
impl<P: SchemaProvider + 'static> SchemaProvider for WithoutKeys<P> {
    fn table_names(&self) -> Vec<String> {
        self.0.table_names()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let Some(table) = self.0.table(name).await? else { return Ok(None) };
        if name == "pg_class" {
            let options = DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)));
            let options = cast(Expression::Literal(ScalarValue::Null, None), options);
            let classes = SessionContext::new().read_table(table)?.with_column("reloptions", options)?;
            return Ok(Some(classes.into_view()));
        }
        if !matches!(name, "pg_constraint" | "pg_index" | "pg_attrdef") {
            return Ok(Some(table));
        }
        let list = |of| DataType::List(Arc::new(Field::new_list_field(of, true)));
        let with_lists = |field: &Arc<Field>| match field.name().as_str() {
            "indkey" | "indoption" | "conkey" | "confkey" => {
                Field::new(field.name(), list(DataType::Int16), true)
            }
            "indclass" | "indcollation" => Field::new(field.name(), list(DataType::Int32), true),
            _ => field.as_ref().clone(),
        };
        let schema = table.schema();
        let fields: Vec<Field> = schema.fields().iter().map(with_lists).collect();
        Ok(Some(Arc::new(EmptyTable::new(Arc::new(Schema::new(fields))))))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.0.table_exist(name)
    }
}

fn register_functions(ctx: &SessionContext, fixed: &PgCatalogStaticTables) {
    let version = format!("PostgreSQL {SERVER_VERSION} (Tidegate {})", env!("CARGO_PKG_VERSION"));
    let version = move |_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(ScalarValue::from(version.clone())));
    let functions = [
        create_udf("version", Vec::new(), DataType::Utf8, Volatility::Stable, Arc::new(version)),
        tables::create_current_database_udf(DATABASE),
        tables::create_current_schema_udf(),
        tables::create_current_schemas_udf(),
        tables::create_pg_get_userbyid_udf(),
        tables::create_pg_table_is_visible(),
        tables::create_session_user_udf(),
        tables::create_pg_get_partkeydef_udf(),
        tables::create_pg_relation_is_publishable_udf(),
        tables::create_pg_get_statisticsobjdef_columns_udf(),
        tables::create_pg_encoding_to_char_udf(),
        tables::create_pg_backend_pid_udf(),
        tables::create_pg_relation_size_udf(),
        tables::create_pg_total_relation_size_udf(),
        tables::create_pg_stat_get_numscans(),
        tables::create_pg_get_constraintdef(),
        tables::create_pg_get_partition_ancestors_udf(),
        tables::format_type::create_format_type_udf(),
        tables::pg_get_expr_udf::create_pg_get_expr_udf(),
        tables::quote_ident_udf::create_quote_ident_udf(),
        tables::quote_ident_udf::create_parse_ident_udf(),
        tables::array_bounds_udf::create_array_upper_udf(),
        tables::array_bounds_udf::create_array_lower_udf(),
        setting::current_setting(),
    ];
    let privileges =
        ["has_table_privilege", "has_schema_privilege", "has_database_privilege", "has_any_column_privilege"];
    let privileges = privileges.map(tables::has_privilege_udf::create_has_privilege_udf);
    functions
        .into_iter()
        .chain(privileges)
        .chain(constant::all())
        .for_each(|function| ctx.register_udf(function));
    ctx.register_udtf("pg_get_keywords", Arc::clone(&fixed.pg_get_keywords) as Arc<dyn TableFunctionImpl>);
    tables::generate_series_arg_coercion::CoerceIntArgsToBigInt::widen(ctx);
}

/// The catalog with its names in order.
#[derive(Debug, Clone)]
struct InOrder(Arc<dyn CatalogProviderList>);

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

#[async_trait]
impl CatalogInfo for InOrder {
    async fn catalog_names(&self) -> Result<Vec<String>, DataFusionError> {
        Ok(sorted(CatalogInfo::catalog_names(&self.0).await?))
    }

    async fn schema_names(&self, catalog: &str) -> Result<Option<Vec<String>>, DataFusionError> {
        Ok(CatalogInfo::schema_names(&self.0, catalog).await?.map(sorted))
    }

    async fn table_names(&self, catalog: &str, schema: &str) -> Result<Option<Vec<String>>, DataFusionError> {
        Ok(CatalogInfo::table_names(&self.0, catalog, schema).await?.map(sorted))
    }

    async fn table_schema(
        &self,
        catalog: &str,
        schema: &str,
        table: &str,
    ) -> Result<Option<SchemaRef>, DataFusionError> {
        CatalogInfo::table_schema(&self.0, catalog, schema, table).await
    }

    async fn table_type(
        &self,
        catalog: &str,
        schema: &str,
        table: &str,
    ) -> Result<Option<TableType>, DataFusionError> {
        CatalogInfo::table_type(&self.0, catalog, schema, table).await
    }
}
