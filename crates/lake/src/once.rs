//! Views that are evaluated once for all who read them.
//!
//! A plan has no common parts: a view that is read ten times by others stands in it ten times, and views upon views multiply.
//! Of such a view the rows are kept as long as the catalog they are of, which a query holds until it ends.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::datasource::MemTable;
use datafusion::logical_expr::{Expr, LogicalPlan, TableType};
use datafusion::physical_plan::{ExecutionPlan, collect};
use tokio::sync::OnceCell;

use crate::error::Result;
use crate::lazy::LazyTable;

/// A view whose rows are computed at the first question, within the limits of the query that asks.
#[derive(Debug)]
pub struct OnceTable {
    view: LazyTable,
    rows: OnceCell<MemTable>,
}

impl OnceTable {
    /// `make` gives a plan with this schema.
    pub fn provider(
        schema: SchemaRef,
        make: impl Fn() -> Result<LogicalPlan> + Send + Sync + 'static,
    ) -> Arc<dyn TableProvider> {
        Arc::new(Self { view: LazyTable::new(schema, make), rows: OnceCell::new() })
    }

    async fn compute(&self, state: &dyn Session) -> Result<MemTable, DataFusionError> {
        let plan = self.view.scan(state, None, &[], None).await?;
        let rows = collect(plan, state.task_ctx()).await?;
        MemTable::try_new(self.view.schema(), vec![rows])
    }
}

#[async_trait]
impl TableProvider for OnceTable {
    fn schema(&self) -> SchemaRef {
        self.view.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        // One that is given up leaves nothing, and the next question begins anew.
        let rows = self.rows.get_or_try_init(|| self.compute(state)).await?;
        rows.scan(state, projection, filters, limit).await
    }
}
