//! The tables as queries see them: committed files, with what is not committed yet laid over them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::functions_aggregate::expr_fn::{count, max};
use datafusion::logical_expr::{Expr, JoinType, cast};
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{SessionContext, ident, lit};
use futures::FutureExt;

use crate::error::Result;
use crate::exec::{self, Limits};
use crate::lazy::LazyTable;
use crate::level::Level;
use crate::once::OnceTable;
use crate::parts;
use crate::plan::{Plan, Planned};
use crate::table::{Column, KEY, Layout, PARTITION, REVISION, SEGMENT, TableSpec, timestamp_type};

/// Rows that stand in memory, and the committed rows they replace.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    /// Committed rows that are not to be seen.
    pub hide: Option<Expr>,
    /// Committed rows of these (log partition, key) are not to be seen either.
    pub hide_keys: Vec<(i32, i64)>,
    /// Nor are committed rows of these (log partition, segment).
    pub hide_segments: Vec<(i32, String)>,
    /// Rows with the table's full schema.
    pub rows: Vec<RecordBatch>,
    /// Further rows, which are put together when a query reads them.
    pub streams: Vec<Arc<dyn PartitionStream>>,
}

/// A consistent set of tables: every query runs on one catalog from its first table to its last.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    pub tables: BTreeMap<String, Arc<dyn TableProvider>>,
    pub specs: BTreeMap<String, Arc<TableSpec>>,
    /// Those of the tables that are computed when asked for.
    pub views: BTreeSet<String>,
    /// Per table those that hold its windows put together to wider ones, the narrowest first.
    pub levels: BTreeMap<String, Vec<Level>>,
}

impl Catalog {
    /// Registers every table in a session.
    pub fn register(&self, ctx: &SessionContext) -> Result<()> {
        for (name, table) in &self.tables {
            ctx.register_table(name.as_str(), Arc::clone(table))?;
        }
        Ok(())
    }
}

/// A stored table with every column: committed rows that are not hidden, and the rows in memory.
pub fn with_overlay(
    ctx: &SessionContext,
    spec: &TableSpec,
    committed: Option<Arc<dyn TableProvider>>,
    overlay: Overlay,
) -> Result<DataFrame> {
    let schema = spec.full_schema();
    let in_memory = MemTable::try_new(Arc::clone(&schema), vec![overlay.rows])?;
    let Some(committed) = committed else { return Ok(ctx.read_table(Arc::new(in_memory))?) };
    let mut rows = ctx.read_table(committed)?;
    if let Some(hide) = overlay.hide {
        rows = rows.filter(hide.is_not_true())?;
    }
    let keys: ArrayRef =
        Arc::new(overlay.hide_keys.iter().map(|(_, key)| Some(*key)).collect::<Int64Array>());
    rows = without(ctx, rows, KEY, overlay.hide_keys.iter().map(|(p, _)| *p).collect(), keys)?;
    let segments: ArrayRef =
        Arc::new(overlay.hide_segments.iter().map(|(_, name)| Some(name)).collect::<StringArray>());
    rows = without(ctx, rows, SEGMENT, overlay.hide_segments.iter().map(|(p, _)| *p).collect(), segments)?;
    let mut rows = rows.select(columns_as(&schema))?.union(ctx.read_table(Arc::new(in_memory))?)?;
    if !overlay.streams.is_empty() {
        rows = rows.union(ctx.read_table(Arc::new(StreamingTable::try_new(schema, overlay.streams)?))?)?;
    }
    Ok(rows)
}

/// Rows whose (log partition, `column`) is not listed.
///
/// A join, not a list of literals: the scan turns a list into nested ORs, and thousands of them
/// overflow the stack.
fn without(
    ctx: &SessionContext,
    rows: DataFrame,
    column: &str,
    partitions: Vec<i32>,
    values: ArrayRef,
) -> Result<DataFrame> {
    if partitions.is_empty() {
        return Ok(rows);
    }
    let partitions: ArrayRef = Arc::new(Int32Array::from(partitions));
    let listed = RecordBatch::try_from_iter([("listed_partition", partitions), ("listed_value", values)])?;
    let listed = ctx.read_batch(listed)?;
    Ok(rows.join(
        listed,
        JoinType::LeftAnti,
        &[PARTITION, column],
        &["listed_partition", "listed_value"],
        None,
    )?)
}

fn columns_as(schema: &SchemaRef) -> Vec<Expr> {
    let column =
        |f: &Arc<arrow::datatypes::Field>| cast(ident(f.name()), f.data_type().clone()).alias(f.name());
    schema.fields().iter().map(column).collect()
}

/// The table as queries see it: public columns; windows of several partitions added up, and parts
/// of windows put together.
pub fn public(spec: &TableSpec, rows: DataFrame, partitions: u32) -> Result<DataFrame> {
    if spec.layout == Layout::Windowed && (partitions > 1 || !spec.parts.is_empty()) {
        return parts::together(spec, rows);
    }
    Ok(rows.select(spec.columns.iter().map(|c| ident(&c.name)).collect::<Vec<_>>())?)
}

/// Restricts full rows to one log partition.
pub fn of_partition(rows: DataFrame, partition: u32) -> Result<DataFrame> {
    Ok(rows.filter(ident(PARTITION).eq(lit(partition as i32)))?)
}

/// Registers the views all of whose sources stand in the session, in order, and returns them.
pub async fn register_views(
    ctx: &SessionContext,
    views: impl Iterator<Item = &Planned>,
) -> Result<Vec<(String, Arc<dyn TableProvider>)>> {
    let mut registered = Vec::new();
    for view in views {
        let names = &view.pipeline.sources;
        if !names.iter().all(|source| ctx.table_exist(source.as_str()).unwrap_or(false)) {
            continue;
        }
        // It keeps its sources, not the session: that one keeps the view.
        let mut sources = Vec::new();
        for name in names {
            sources.push((name.clone(), ctx.table_provider(name.as_str()).await?));
        }
        let (runtime, spec, sql) = (ctx.runtime_env(), Arc::clone(&view.spec), view.pipeline.sql.clone());
        let schema = spec.public_schema();
        let make = move || {
            let ctx = exec::session(&runtime, Limits { threads: 1, ..Limits::default() });
            for (name, rows) in &sources {
                ctx.register_table(name.as_str(), Arc::clone(rows))?;
            }
            let rows = ctx.sql(&sql).now_or_never().expect("tables in memory are found at once")?;
            Ok(rows.select(columns_as(&spec.public_schema()))?.into_unoptimized_plan())
        };
        let provider = match view.pipeline.once {
            true => OnceTable::provider(&view.spec.name, schema, make),
            false => Arc::new(LazyTable::new(schema, make)),
        };
        ctx.register_table(view.spec.name.as_str(), Arc::clone(&provider))?;
        registered.push((view.spec.name.clone(), provider));
    }
    Ok(registered)
}

/// Builds the public catalog from full rows of every stored table.
///
/// Registers the tables in a new session, not in the one that made the rows. Each table owns its
/// rows, and each `DataFrame` owns its session, so registering them there would be a reference cycle
/// and leak the catalog.
pub async fn build(
    runtime: &Arc<RuntimeEnv>,
    plan: &Plan,
    stored: Vec<(Arc<TableSpec>, DataFrame, u32)>,
) -> Result<Catalog> {
    let ctx = &exec::session(runtime, Limits { threads: 1, ..Limits::default() });
    let mut catalog = Catalog { levels: plan.levels(), ..Catalog::default() };
    let mut windows = Vec::new();
    for (spec, rows, partitions) in stored {
        if spec.layout == Layout::Windowed {
            windows.push(revisions_of(&spec, rows.clone())?);
        }
        let table = Arc::clone(&spec);
        let provider: Arc<dyn TableProvider> = Arc::new(LazyTable::new(spec.public_schema(), move || {
            Ok(public(&table, rows.clone(), partitions)?.into_unoptimized_plan())
        }));
        ctx.register_table(spec.name.as_str(), Arc::clone(&provider))?;
        catalog.tables.insert(spec.name.clone(), provider);
        catalog.specs.insert(spec.name.clone(), spec);
    }
    if let Some(all) = windows.into_iter().map(Ok).reduce(|a: Result<DataFrame>, b| Ok(a?.union(b?)?)) {
        let spec = window_revisions();
        catalog.tables.insert(spec.name.clone(), all?.into_view());
        catalog.specs.insert(spec.name.clone(), spec);
    }
    for (name, provider) in register_views(ctx, plan.views.iter()).await? {
        catalog.tables.insert(name, provider);
    }
    for view in &plan.views {
        catalog.specs.insert(view.spec.name.clone(), Arc::clone(&view.spec));
        catalog.views.insert(view.spec.name.clone());
    }
    Ok(catalog)
}

/// The table that tells which windows changed after they had closed.
pub fn window_revisions() -> Arc<TableSpec> {
    let column = |name: &str, data_type, doc: &str| Column { name: name.into(), data_type, doc: doc.into() };
    Arc::new(TableSpec {
        name: "window_revisions".into(),
        version: 1,
        doc: "Windows of every windowed table, and how often late events changed them after they had closed."
            .into(),
        layout: Layout::Windowed,
        columns: vec![
            column("window_start", timestamp_type(), "Start of the window, UTC."),
            column("pipeline", DataType::Utf8View, "Pipeline, which is also the table."),
            column(
                "revision",
                DataType::Int64,
                "0 until a late event changed the closed window, then counting; NULL before its first commit.",
            ),
            column("row_count", DataType::Int64, "Rows of the window."),
        ],
        key: vec!["window_start".into(), "pipeline".into()],
        parts: Vec::new(),
    })
}

fn revisions_of(spec: &TableSpec, rows: DataFrame) -> Result<DataFrame> {
    let figures = vec![max(ident(REVISION)).alias("revision"), count(lit(1)).alias("row_count")];
    let windows = rows.aggregate(vec![ident("window_start")], figures)?;
    let named = windows.with_column("pipeline", lit(spec.name.as_str()))?;
    Ok(named.select(columns_as(&window_revisions().public_schema()))?)
}
