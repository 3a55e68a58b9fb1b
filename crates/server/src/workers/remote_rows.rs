//! Rows that only the serving process has, as a table of a worker.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::{StreamExt, TryStreamExt, stream};

use super::link::Link;
use super::message::WantedTail;

/// Rows of a table that are not committed, all columns. They are asked for when a query reads them,
/// and only the columns that it reads.
#[derive(Debug)]
pub(super) struct RemoteRows {
    pub(super) link: Arc<Link>,
    pub(super) table: String,
    pub(super) schema: SchemaRef,
}

#[async_trait]
impl TableProvider for RemoteRows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let columns = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let schema = Arc::new(self.schema.project(&columns)?);
        let wanted = WantedTail { id: self.link.next_id(), table: self.table.clone(), columns };
        let rows = TailPartition { link: Arc::clone(&self.link), wanted, schema: Arc::clone(&schema) };
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![Arc::new(rows)], None, [], false, limit)?))
    }
}

#[derive(Debug)]
struct TailPartition {
    link: Arc<Link>,
    wanted: WantedTail,
    schema: SchemaRef,
}

impl PartitionStream for TailPartition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (link, wanted) = (Arc::clone(&self.link), self.wanted.clone());
        let rows = stream::once(async move { link.tail(&wanted).await })
            .map_err(DataFusionError::IoError)
            .map_ok(|batches| stream::iter(batches).map(Ok))
            .try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}
