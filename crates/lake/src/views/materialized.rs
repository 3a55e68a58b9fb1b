//! Materialized views: computed once, and shared by all readers.
//!
//! DataFusion does not share common parts of a plan: a view that others read ten times is in the
//! plan ten times, and views upon views multiply. So the rows of such a view are cached for the
//! next query as long as its catalog lives and there is room ([`crate::engine::view_cache`]). A
//! query that reads them holds them until it ends.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::logical_expr::{Expr, LogicalPlan, TableType};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::StreamExt;
use tokio::sync::Mutex;

use crate::engine::memory::QueryPool;
use crate::engine::view_cache::{QueryViews, ViewRows, ViewSlot};
use crate::error::Result;
use crate::views::deferred::DeferredView;

/// A view whose rows are computed on first use, within the limits of that query.
#[derive(Debug)]
pub struct MaterializedView {
    name: String,
    view: DeferredView,
    slot: Arc<ViewSlot>,
    /// Held by the query that computes the rows; others wait for it.
    computing: Mutex<()>,
}

impl MaterializedView {
    /// `make` must return a plan with this schema.
    pub fn provider(
        name: &str,
        schema: SchemaRef,
        make: impl Fn() -> Result<LogicalPlan> + Send + Sync + 'static,
    ) -> Arc<dyn TableProvider> {
        Arc::new(Self {
            name: name.to_owned(),
            view: DeferredView::new(schema, make),
            slot: Arc::default(),
            computing: Mutex::default(),
        })
    }

    /// The rows, which the query holds from now on: those it read before, those in the cache, or
    /// computed now.
    async fn rows(&self, state: &dyn Session) -> Result<Arc<ViewRows>, DataFusionError> {
        let held = state.config().get_extension::<QueryViews>().unwrap_or_default();
        let pool = state.runtime_env().memory_pool.downcast_ref::<QueryPool>();
        // Parts of one query may meet here too. There is no deadlock: views do not read themselves.
        let _computing = self.computing.lock().await;
        if let Some(rows) = held.rows(&self.slot) {
            return Ok(rows);
        }
        let rows = match self.slot.rows() {
            Some(rows) => {
                pool.inspect(|pool| pool.view_cache().mark_used(&self.slot));
                rows
            }
            None => {
                // A query that is cancelled here leaves nothing behind, and the next one starts
                // over.
                let begun = std::time::Instant::now();
                let rows = Arc::new(self.compute(state, &held).await?);
                tracing::debug!(view = self.name, took = ?begun.elapsed(), "computed");
                pool.inspect(|pool| pool.view_cache().insert(&self.slot, &rows, pool.max_cached_bytes()));
                rows
            }
        };
        held.hold(&self.slot, &rows);
        Ok(rows)
    }

    async fn compute(&self, state: &dyn Session, held: &QueryViews) -> Result<ViewRows, DataFusionError> {
        let claimed =
            MemoryConsumer::new(format!("the view {}", self.name)).register(&state.runtime_env().memory_pool);
        let mut plan = self.view.scan(state, None, &[], None).await?;
        if let Some(guard) = held.guard() {
            plan = guard.guard(plan)?;
        }
        let mut stream = execute_stream(plan, state.task_ctx())?;
        let (mut rows, mut buffers) = (Vec::new(), Buffers::default());
        while let Some(batch) = stream.next().await {
            let batch = compacted(&batch?)?;
            // Work of the lake itself must go on, so it is not guarded and claims nothing.
            if held.guard().is_some() {
                claimed.try_grow(buffers.add(&batch))?;
            }
            rows.push(batch);
        }
        Ok(ViewRows::new(MemTable::try_new(self.view.schema(), vec![rows])?, claimed))
    }
}

/// Text of a filtered batch may keep the text of all rows before the filter. This copies what is
/// used.
fn compacted(batch: &RecordBatch) -> Result<RecordBatch, DataFusionError> {
    let columns = batch.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()),
        _ => Arc::clone(column),
    });
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}

/// Memory of batches. A buffer that several share counts once.
#[derive(Debug, Default)]
struct Buffers(HashSet<usize>);

impl Buffers {
    /// Bytes that a batch holds and earlier batches do not.
    fn add(&mut self, batch: &RecordBatch) -> usize {
        batch.columns().iter().map(|column| self.add_array(&column.to_data())).sum::<usize>()
            + size_of::<RecordBatch>()
    }

    fn add_array(&mut self, array: &ArrayData) -> usize {
        let nulls = array.nulls().map(|nulls| nulls.buffer());
        let own: usize = (array.buffers().iter().chain(nulls))
            .map(|buffer| match self.0.insert(buffer.data_ptr().as_ptr() as usize) {
                true => buffer.capacity(),
                false => 0,
            })
            .sum();
        own + array.child_data().iter().map(|child| self.add_array(child)).sum::<usize>()
    }
}

#[async_trait]
impl TableProvider for MaterializedView {
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
        self.rows(state).await?.table.scan(state, projection, filters, limit).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow::datatypes::Int64Type;
    use datafusion::execution::runtime_env::RuntimeEnv;
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::engine::view_cache::QueryGuard;
    use crate::engine::{self, Limits};

    const LIMIT: usize = 64 << 20;
    /// Rows that take 8 MiB.
    const ROWS: usize = 1 << 20;

    /// Counts how often views are computed.
    #[derive(Clone, Default)]
    struct Computed(Arc<AtomicUsize>);

    impl QueryGuard for Computed {
        fn guard(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(plan)
        }
    }

    struct Lake {
        runtime: Arc<RuntimeEnv>,
        computed: Computed,
    }

    impl Lake {
        fn new() -> Self {
            let runtime = engine::runtime(Limits { memory_bytes: LIMIT, threads: 2 }).unwrap();
            Self { runtime, computed: Computed::default() }
        }

        async fn view(&self, rows: usize) -> Arc<dyn TableProvider> {
            let ctx = engine::session(&self.runtime, Limits::default());
            let plan = ctx.sql(&format!("SELECT value FROM generate_series(1, {rows})")).await.unwrap();
            let (schema, plan) = (Arc::new(plan.schema().as_arrow().clone()), plan.into_unoptimized_plan());
            MaterializedView::provider("numbers", schema, move || Ok(plan.clone()))
        }

        /// A session of a query that can read the views by these names.
        fn query(&self, views: &[(&str, &Arc<dyn TableProvider>)]) -> SessionContext {
            let ctx = engine::session(&self.runtime, Limits::default());
            let held = Arc::new(QueryViews::guarded(self.computed.clone()));
            ctx.state_ref().write().config_mut().set_extension(held);
            for (name, view) in views {
                ctx.register_table(*name, Arc::clone(view)).unwrap();
            }
            ctx
        }

        fn claimed(&self) -> usize {
            self.runtime.memory_pool.reserved()
        }

        fn times_computed(&self) -> usize {
            self.computed.0.load(Ordering::Relaxed)
        }
    }

    async fn count(ctx: &SessionContext, sql: &str) -> Result<i64, DataFusionError> {
        let rows = ctx.sql(sql).await?.collect().await?;
        Ok(rows[0].column(0).as_primitive::<Int64Type>().value(0))
    }

    #[tokio::test]
    async fn rows_are_computed_once_and_claimed_until_evicted() {
        let lake = Lake::new();
        let view = lake.view(ROWS).await;
        let twice = "SELECT count(*) FROM numbers a JOIN numbers b ON a.value = b.value WHERE a.value < 100";
        assert_eq!(count(&lake.query(&[("numbers", &view)]), twice).await.unwrap(), 99);
        assert_eq!(lake.times_computed(), 1);
        let kept = lake.claimed();
        assert!((ROWS * 8..ROWS * 9).contains(&kept), "{kept}");
        let reader = lake.query(&[("numbers", &view)]);
        assert_eq!(count(&reader, "SELECT count(*) FROM numbers").await.unwrap(), ROWS as i64);
        assert_eq!(lake.times_computed(), 1);

        let other = MemoryConsumer::new("another query").register(&lake.runtime.memory_pool);
        let refused = other.try_grow(LIMIT - 1024).unwrap_err();
        assert!(refused.to_string().contains("another query asks"), "a reader has the rows: {refused}");
        drop(reader);
        other.try_grow(LIMIT - 1024).expect("rows that nobody reads make room");
        assert_eq!(lake.claimed(), LIMIT - 1024);
        let refused = count(&lake.query(&[("numbers", &view)]), "SELECT count(*) FROM numbers").await;
        assert!(refused.unwrap_err().to_string().contains("the view numbers asks"));
        drop(other);
        assert_eq!(lake.claimed(), 0, "a query that was refused leaves nothing");
    }

    #[tokio::test]
    async fn the_least_recently_used_view_is_evicted_first() {
        let lake = Lake::new();
        let (first, second, third) =
            (lake.view(ROWS).await, lake.view(ROWS / 2).await, lake.view(ROWS / 2).await);
        let large = lake.view(3 * ROWS).await;
        let all = [("first", &first), ("second", &second), ("third", &third), ("large", &large)];
        for name in ["first", "second", "first", "large", "third", "first"] {
            let sql = format!("SELECT count(*) FROM {name}");
            count(&lake.query(&all), &sql).await.unwrap();
        }
        assert_eq!(lake.times_computed(), 4, "first, second, large, third");
        let kept = lake.claimed();
        assert!((ROWS * 12..LIMIT / 4).contains(&kept), "first and third: {kept}");
        count(&lake.query(&all), "SELECT count(*) FROM second").await.unwrap();
        assert_eq!(lake.times_computed(), 5, "second had gone");
        count(&lake.query(&all), "SELECT count(*) FROM first").await.unwrap();
        assert_eq!(lake.times_computed(), 5, "first was asked for after third");
        count(&lake.query(&all), "SELECT count(*) FROM large").await.unwrap();
        assert_eq!(lake.times_computed(), 6, "more than a quarter of the memory is its query's alone");
        drop((first, second, third, large));
        assert_eq!(lake.claimed(), 0);
    }
}
