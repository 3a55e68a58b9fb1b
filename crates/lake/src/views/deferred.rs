//! Deferred views: tables that are planned when a query first reads them.
//!
//! A new catalog is published every second, and few of its tables are read before the next one.
//! Planning a view, or a sum over ninety columns, takes longer than everything else that publishing
//! does.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::datasource::ViewTable;
use datafusion::logical_expr::{Expr, LogicalPlan, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;

use crate::error::Result;

type Make = Box<dyn Fn() -> Result<LogicalPlan> + Send + Sync>;

/// A view whose plan is made on first use.
pub struct DeferredView {
    schema: SchemaRef,
    make: Make,
    made: OnceLock<Result<ViewTable, String>>,
}

impl DeferredView {
    /// `make` must return a plan with this schema.
    pub fn new(schema: SchemaRef, make: impl Fn() -> Result<LogicalPlan> + Send + Sync + 'static) -> Self {
        Self { schema, make: Box::new(make), made: OnceLock::new() }
    }

    fn view(&self) -> Result<&ViewTable, DataFusionError> {
        let make = || (self.make)().map(|plan| ViewTable::new(plan, None)).map_err(|e| e.to_string());
        self.made.get_or_init(make).as_ref().map_err(|e| DataFusionError::Plan(e.clone()))
    }
}

impl fmt::Debug for DeferredView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredView").field("schema", &self.schema).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for DeferredView {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    /// If the plan cannot be made, the error shows when the view is scanned.
    fn get_logical_plan(&self) -> Option<Cow<'_, LogicalPlan>> {
        self.view().ok().map(|view| Cow::Borrowed(view.logical_plan()))
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>, DataFusionError> {
        self.view()?.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        self.view()?.scan(state, projection, filters, limit).await
    }
}
