//! Makes running queries endable. A query is a task, and a task ends where it pauses. The engine
//! pauses where rows are read, but a join may compute for hours on what it has read: it is made to
//! pause with what it puts out, and to look at the clock where it puts out nothing.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::{DataFusionError, Result as EngineResult};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder};
use datafusion::physical_plan::unnest::UnnestExec;
use tokio::time::{Instant, timeout_at};

use crate::error::QueryError;

/// When a query has to end: at its time limit, or once its caller is gone.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    limit: Duration,
    deadline: Instant,
    abandoned: Arc<AtomicBool>,
}

impl Stop {
    /// The limit counts from now.
    pub(crate) fn after(limit: Duration) -> Self {
        Self { limit, deadline: Instant::now() + limit, abandoned: Arc::default() }
    }

    /// Nobody waits for the query any more.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_due(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }

    pub(crate) fn error(&self) -> QueryError {
        QueryError::TooSlow { limit: self.limit }
    }

    /// The work's result if it comes in time.
    pub(crate) async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, QueryError> {
        timeout_at(self.deadline, work).await.map_err(|_| self.error())
    }

    /// The plan with pauses and looks at the clock in operators that can make many rows of few.
    pub(crate) fn apply(&self, plan: Arc<dyn ExecutionPlan>) -> EngineResult<Arc<dyn ExecutionPlan>> {
        let endable = plan.transform_up(|node| {
            if node.children().len() < 2 && node.downcast_ref::<UnnestExec>().is_none() {
                return Ok(Transformed::no(node));
            }
            let node: Arc<dyn ExecutionPlan> = if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
                let filter = join.filter().map(|filter| self.watched(filter));
                Arc::new(NestedLoopJoinExecBuilder::from(join).with_filter(filter).build()?)
            } else if let Some(join) = node.downcast_ref::<HashJoinExec>() {
                let filter = join.filter().map(|filter| self.watched(filter));
                join.builder().with_filter(filter).build_exec()?
            } else {
                node
            };
            Ok(Transformed::yes(Arc::new(CooperativeExec::new(node)) as Arc<dyn ExecutionPlan>))
        })?;
        Ok(endable.data)
    }

    fn watched(&self, filter: &JoinFilter) -> JoinFilter {
        let watched = Watched { inner: Arc::clone(filter.expression()), stop: self.clone() };
        JoinFilter::new(Arc::new(watched), filter.column_indices().to_vec(), Arc::clone(filter.schema()))
    }
}

/// An expression that fails once its query has to end.
#[derive(Debug)]
struct Watched {
    inner: Arc<dyn PhysicalExpr>,
    stop: Stop,
}

impl PartialEq for Watched {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner)
    }
}
impl Eq for Watched {}
impl Hash for Watched {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PhysicalExpr for Watched {
    fn evaluate(&self, batch: &RecordBatch) -> EngineResult<ColumnarValue> {
        if self.stop.is_due() {
            return Err(DataFusionError::Execution("the query was ended".into()));
        }
        self.inner.evaluate(batch)
    }

    fn return_field(&self, input_schema: &Schema) -> EngineResult<FieldRef> {
        self.inner.return_field(input_schema)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> EngineResult<Arc<dyn PhysicalExpr>> {
        let inner = children.pop().unwrap_or_else(|| Arc::clone(&self.inner));
        Ok(Arc::new(Self { inner, stop: self.stop.clone() }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}
