//! Builds the catalog that queries see.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::dataframe::DataFrame;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::functions_aggregate::expr_fn::{count, max};
use datafusion::prelude::{SessionContext, ident, lit};
use futures::FutureExt;

use super::full_rows::StoredTable;
use super::lag::{self, TableLag};
use super::named::named;
use super::overlay::{cast_columns, is_merged, public_rows};
use super::parts::Parts;
use super::rollup::rewrite_onto_rollups;
use super::{Catalog, Question};
use crate::engine::{self, Limits};
use crate::error::Result;
use crate::pipeline::definition::Pipeline;
use crate::pipeline::plan::{Plan, Planned};
use crate::raw::AUDIT_TABLE;
use crate::table::{Layout, REVISION, TableSpec, table_lag, window_revisions};
use crate::views::deferred::DeferredView;
use crate::views::materialized::MaterializedView;

/// Registers, in order, the views whose sources are all in the session, and returns them. Tables in
/// `replaced` stand in for views of their name. A view that sums up a table in `unmerged` reads
/// these rows if the result is the same.
pub async fn register_views(
    ctx: &SessionContext,
    views: impl Iterator<Item = &Planned>,
    replaced: &BTreeMap<String, Arc<dyn TableProvider>>,
    unmerged: BTreeMap<String, Parts>,
) -> Result<Vec<(String, Arc<dyn TableProvider>)>> {
    let mut registered = Vec::new();
    let unmerged = Arc::new(Catalog { parts: unmerged, ..Catalog::default() });
    for view in views {
        if let Some(provider) = replaced.get(&view.spec.name) {
            ctx.register_table(view.spec.name.as_str(), Arc::clone(provider))?;
            registered.push((view.spec.name.clone(), Arc::clone(provider)));
            continue;
        }
        let names = &view.pipeline.sources;
        if !names.iter().all(|source| ctx.table_exist(source.as_str()).unwrap_or(false)) {
            continue;
        }
        // The view keeps its sources, not the session: the session keeps the view.
        let mut sources = Vec::new();
        for name in names {
            sources.push((name.clone(), ctx.table_provider(name.as_str()).await?));
        }
        let (runtime, spec, sql) = (ctx.runtime_env(), Arc::clone(&view.spec), view.pipeline.sql.clone());
        let (schema, unmerged) = (spec.public_schema(), Arc::clone(&unmerged));
        let make = move || {
            let ctx = engine::session(&runtime, Limits { threads: 1, ..Limits::default() });
            for (name, rows) in &sources {
                ctx.register_table(name.as_str(), named(rows))?;
            }
            let state = ctx.state();
            let plan = state.create_logical_plan(&sql).now_or_never();
            let plan = plan.expect("tables in memory are found at once")?;
            let rows = DataFrame::new(state, rewrite_onto_rollups(&ctx, &unmerged, plan)?);
            Ok(rows.select(cast_columns(&spec.public_schema()))?.into_unoptimized_plan())
        };
        let provider = match view.pipeline.materialized {
            true => MaterializedView::provider(&view.spec.name, schema, make),
            false => Arc::new(DeferredView::new(schema, make)),
        };
        ctx.register_table(view.spec.name.as_str(), Arc::clone(&provider))?;
        registered.push((view.spec.name.clone(), provider));
    }
    Ok(registered)
}

/// Builds the public catalog from the full rows of every stored table.
///
/// Tables are registered in a new session, not in the one that made the rows. Each table owns its
/// rows and each `DataFrame` owns its session, so registering them there would be a reference cycle
/// and leak the catalog.
pub async fn public_catalog(
    runtime: &Arc<RuntimeEnv>,
    plan: &Plan,
    stored: Vec<StoredTable>,
    lag: Vec<TableLag>,
    replaced: &BTreeMap<String, Arc<dyn TableProvider>>,
) -> Result<Catalog> {
    let ctx = &engine::session(runtime, Limits { threads: 1, ..Limits::default() });
    let guarded = plan.computed_from(AUDIT_TABLE);
    let mut catalog = Catalog { rollups: plan.rollups(), questions: questions(plan), ..Catalog::default() };
    let mut windowed = Vec::new();
    for StoredTable { spec, rows, partitions } in stored {
        if spec.layout == Layout::Windowed && !guarded.contains(&spec.name) {
            windowed.push((Arc::clone(&spec), rows.clone()));
        }
        if is_merged(&spec, partitions) {
            catalog.parts.insert(spec.name.clone(), Parts::of(&spec, rows.clone()));
        }
        let table = Arc::clone(&spec);
        let provider: Arc<dyn TableProvider> = Arc::new(DeferredView::new(spec.public_schema(), move || {
            Ok(public_rows(&table, rows.plan()?, partitions)?.into_unoptimized_plan())
        }));
        ctx.register_table(spec.name.as_str(), Arc::clone(&provider))?;
        catalog.tables.insert(spec.name.clone(), provider);
        catalog.specs.insert(spec.name.clone(), spec);
    }
    if !windowed.is_empty() {
        let spec = window_revisions();
        let all = DeferredView::new(spec.public_schema(), move || {
            let tables = windowed.iter().map(|(spec, rows)| revisions_of(spec, rows.plan()?));
            let all = tables.reduce(|a, b| Ok(a?.union(b?)?)).expect("a table with windows");
            Ok(all?.into_unoptimized_plan())
        });
        catalog.tables.insert(spec.name.clone(), Arc::new(all));
        catalog.specs.insert(spec.name.clone(), spec);
    }
    let lag: Vec<TableLag> = lag.into_iter().filter(|lag| !guarded.contains(&lag.table)).collect();
    catalog.tables.insert(table_lag().name.clone(), lag::provider(&lag)?);
    catalog.specs.insert(table_lag().name.clone(), table_lag());
    catalog.lag = lag;
    // A rollup may be behind while joined tables are updated, so views are not read from those.
    let parts = catalog.parts.iter().filter(|(name, _)| !replaced.contains_key(*name));
    let unmerged = parts.map(|(name, parts)| (name.clone(), parts.clone())).collect();
    for (name, provider) in register_views(ctx, plan.views.iter(), replaced, unmerged).await? {
        catalog.tables.insert(name, provider);
    }
    for view in &plan.views {
        catalog.specs.insert(view.spec.name.clone(), Arc::clone(&view.spec));
        catalog.views.insert(view.spec.name.clone());
    }
    catalog.guarded = guarded;
    Ok(catalog)
}

fn questions(plan: &Plan) -> BTreeMap<String, Question> {
    let stored = plan.pipelines().map(|planned| &planned.pipeline).filter(|pipeline| pipeline.stored);
    let question = |pipeline: &Pipeline| {
        let text = pipeline.question.clone()?;
        Some((pipeline.name.clone(), Question { text, example: pipeline.example.clone() }))
    };
    stored.filter_map(question).collect()
}

fn revisions_of(spec: &TableSpec, rows: DataFrame) -> Result<DataFrame> {
    let figures = vec![max(ident(REVISION)).alias("revision"), count(lit(1)).alias("row_count")];
    let windows = rows.aggregate(vec![ident("window_start")], figures)?;
    let named = windows.with_column("pipeline", lit(spec.name.as_str()))?;
    Ok(named.select(cast_columns(&window_revisions().public_schema()))?)
}
