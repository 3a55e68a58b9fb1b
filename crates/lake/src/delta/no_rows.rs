//! A table without rows, which says so before it is read.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, Statistics, project_schema};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;

/// A table without rows.
#[derive(Debug)]
pub(super) struct NoRows {
    schema: SchemaRef,
}

impl NoRows {
    pub fn provider(schema: SchemaRef) -> Arc<dyn TableProvider> {
        Arc::new(Self { schema })
    }
}

#[async_trait]
impl TableProvider for NoRows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(Statistics { num_rows: Precision::Exact(0), ..Statistics::new_unknown(&self.schema) })
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(EmptyExec::new(project_schema(&self.schema, projection)?)))
    }
}
