//! Tables that a plan reads by name, until views are written out.
//!
//! DataFusion puts a view's own plan in its place as soon as a query names it, and then nothing
//! shows which table was meant. A rewrite onto other tables ([`super::rollup`]) needs the name.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, TableProviderFilterPushDown, TableScan, TableType,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;

use super::Catalog;

/// A table that shows no plan of its own.
#[derive(Debug)]
struct Named(Arc<dyn TableProvider>);

/// A table that a view reads, so that the view's plan can be rewritten before views are written
/// out.
pub(super) fn named(table: &Arc<dyn TableProvider>) -> Arc<dyn TableProvider> {
    Arc::new(Named(Arc::clone(table)))
}

impl Catalog {
    /// Registers every table by name: pass plans of the session to
    /// [`super::rollup::rewrite_onto_rollups`].
    pub fn register_named(&self, ctx: &SessionContext) -> Result<()> {
        for (name, table) in &self.tables {
            ctx.register_table(name.as_str(), named(table))?;
        }
        Ok(())
    }
}

/// The table that a scan reads.
pub(super) fn table_of(scan: &TableScan) -> Result<Arc<dyn TableProvider>> {
    let table = source_as_provider(&scan.source)?;
    Ok(match table.downcast_ref::<Named>() {
        Some(Named(table)) => Arc::clone(table),
        None => table,
    })
}

/// Puts the plans of views in place of their names.
pub(super) fn write_out(plan: LogicalPlan) -> Result<LogicalPlan> {
    let written = plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::TableScan(scan) = &node else { return Ok(Transformed::no(node)) };
        if !source_as_provider(&scan.source)?.is::<Named>() {
            return Ok(Transformed::no(node));
        }
        let (name, source) = (scan.table_name.clone(), provider_as_source(table_of(scan)?));
        Ok(Transformed::yes(LogicalPlanBuilder::scan(name, source, scan.projection.clone())?.build()?))
    })?;
    Ok(written.data)
}

#[async_trait]
impl TableProvider for Named {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn table_type(&self) -> TableType {
        self.0.table_type()
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.0.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        self.0.scan(state, projection, filters, limit).await
    }
}
