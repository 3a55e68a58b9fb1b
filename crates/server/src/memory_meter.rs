//! Memory metering: measures what queries hold, and claims beforehand what operators allocate
//! without a claim.
//!
//! Each step of an operator is followed by [`QueryPool::worked`]. A step is not interrupted, so the
//! size of a step's output is bounded beforehand: see `bounded_functions.rs` and `row_width.rs`.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result as EngineResult;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{Stream, StreamExt};
use tidegate_lake::engine::memory::{Gauge, QueryPool};

use crate::row_width;

static GAUGE: OnceLock<&'static dyn Gauge> = OnceLock::new();

/// Sets the gauge that measures queries of this process. Only the program knows its allocator.
pub fn measure_by(gauge: &'static dyn Gauge) {
    GAUGE.set(gauge).ok();
}

pub(crate) fn gauge() -> Option<&'static dyn Gauge> {
    GAUGE.get().copied()
}

/// Meters the plans of one query.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    /// The pool of all queries.
    pub(crate) pool: Arc<dyn MemoryPool>,
    /// Bytes that one step may make.
    pub(crate) step_bytes: usize,
    /// Rows that are worked on at a time.
    pub(crate) batch_rows: usize,
}

impl Meter {
    /// The plan, metered after every step.
    pub(crate) fn apply(&self, plan: Arc<dyn ExecutionPlan>) -> EngineResult<Arc<dyn ExecutionPlan>> {
        let metered = plan.transform_up(|node| {
            let claims = Arc::new(Claims::default());
            let node = self.with_inputs(node, &claims)?;
            Ok(Transformed::yes(Metered::over(node, self.clone(), Role::Worked(claims))))
        })?;
        Ok(metered.data)
    }

    /// The operator, with inputs that are metered before it multiplies them.
    fn with_inputs(
        &self,
        node: Arc<dyn ExecutionPlan>,
        claims: &Arc<Claims>,
    ) -> EngineResult<Arc<dyn ExecutionPlan>> {
        let build =
            node.downcast_ref::<HashJoinExec>().is_some() || node.downcast_ref::<CrossJoinExec>().is_some();
        // A join claims its input itself, not the copy; windows claim nothing, and put out a column
        // each. A nested loop join that finds no room works on a part of its input at a time, so it
        // must not be refused here.
        let gathered = match node.downcast_ref::<WindowAggExec>() {
            Some(windows) => {
                Some(Copies { of_input: 2, more_a_row: 2 * VALUE_BYTES * windows.window_expr().len() })
            }
            None if build => Some(Copies { of_input: 1, more_a_row: 0 }),
            None => None,
        };
        let unnested = node.downcast_ref::<UnnestExec>().map(|unnest| {
            let lists = unnest.list_column_indices().iter().map(|list| list.index_in_input_schema);
            lists.collect::<Vec<_>>()
        });
        let joins = node.children().len() > 1;
        if gathered.is_none() && !joins && unnested.is_none() {
            return Ok(node);
        }
        let children: Vec<Arc<dyn ExecutionPlan>> = node.children().into_iter().cloned().collect();
        let inputs = children.into_iter().enumerate().map(|(place, child)| {
            let role = match (&unnested, gathered.filter(|_| place == 0)) {
                (Some(lists), _) => Role::Unnested(lists.clone()),
                (None, Some(copies)) => Role::Gathered(Arc::clone(claims), copies),
                (None, None) => Role::Joined,
            };
            Metered::over(child, self.clone(), role)
        });
        let inputs = inputs.collect();
        replace_children_if_necessary(node, inputs)
    }

    fn queries(&self) -> Option<&QueryPool> {
        self.pool.downcast_ref::<QueryPool>()
    }

    /// Bytes that a row may have where an operator makes as many copies of it as a batch has rows.
    fn widest(&self) -> usize {
        2 * self.step_bytes / self.batch_rows
    }
}

/// What an operator makes of the input it gathers, besides its own claims.
#[derive(Debug, Clone, Copy)]
struct Copies {
    of_input: usize,
    more_a_row: usize,
}

/// A computed value takes so many bytes, about.
const VALUE_BYTES: usize = 16;

/// What an operator's input is claimed as while it is gathered: most gather batches, and then copy
/// them into one.
#[derive(Debug, Default)]
struct Claims(Mutex<HashMap<usize, MemoryReservation>>);

impl Claims {
    fn add(&self, partition: usize, pool: &Arc<dyn MemoryPool>, bytes: usize) -> EngineResult<()> {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let claim = claims.entry(partition);
        claim.or_insert_with(|| MemoryConsumer::new("rows put together").register(pool)).try_grow(bytes)
    }

    /// The operator has gone on: nothing is copied any more. What was gathered for all its
    /// partitions is the first one's.
    fn release(&self, partition: usize) {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let partition = if claims.len() == 1 { None } else { Some(partition) };
        match partition {
            Some(partition) => drop(claims.remove(&partition)),
            None => claims.clear(),
        }
    }
}

/// Why a stream is metered.
#[derive(Debug, Clone)]
enum Role {
    /// It is the output of an operator, which may have claims for its input.
    Worked(Arc<Claims>),
    /// It is input that is gathered and copied.
    Gathered(Arc<Claims>, Copies),
    /// It is input whose rows are repeated.
    Joined,
    /// It is input whose lists in these columns become rows.
    Unnested(Vec<usize>),
}

/// An operator whose stream is metered.
#[derive(Debug)]
struct Metered {
    input: Arc<dyn ExecutionPlan>,
    meter: Meter,
    role: Role,
}

impl Metered {
    fn over(input: Arc<dyn ExecutionPlan>, meter: Meter, role: Role) -> Arc<dyn ExecutionPlan> {
        Arc::new(Self { input, meter, role })
    }
}

impl DisplayAs for Metered {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metered")
    }
}

impl ExecutionPlan for Metered {
    fn name(&self) -> &str {
        "Metered"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> EngineResult<TreeNodeRecursion>,
    ) -> EngineResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> EngineResult<Arc<dyn ExecutionPlan>> {
        let input = children.pop().unwrap_or_else(|| Arc::clone(&self.input));
        Ok(Self::over(input, self.meter.clone(), self.role.clone()))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> EngineResult<SendableRecordBatchStream> {
        Ok(Box::pin(MeteredStream {
            input: self.input.execute(partition, context)?,
            partition,
            meter: self.meter.clone(),
            role: self.role.clone(),
            rest: None,
            failed: false,
        }))
    }
}

struct MeteredStream {
    input: SendableRecordBatchStream,
    partition: usize,
    meter: Meter,
    role: Role,
    /// What of the last batch was not passed on yet.
    rest: Option<RecordBatch>,
    failed: bool,
}

impl MeteredStream {
    /// Meters a batch, and returns how many of its rows are passed on at once.
    fn measure(&self, batch: &RecordBatch) -> EngineResult<usize> {
        match &self.role {
            Role::Worked(_) => Ok(self.meter.batch_rows),
            Role::Gathered(claims, copies) => {
                row_width::check_rows(batch, self.meter.widest())?;
                let bytes: usize = batch.columns().iter().map(row_width::bytes).sum();
                let bytes = bytes * copies.of_input + batch.num_rows() * copies.more_a_row;
                claims.add(self.partition, &self.meter.pool, bytes)?;
                Ok(batch.num_rows())
            }
            Role::Joined => row_width::check_rows(batch, self.meter.widest()).map(|()| batch.num_rows()),
            Role::Unnested(lists) => self.rows_to_unnest(batch, lists),
        }
    }

    /// So many of the first rows of a batch that what their lists become is no more than a step may
    /// make.
    fn rows_to_unnest(&self, batch: &RecordBatch, lists: &[usize]) -> EngineResult<usize> {
        let mut made = vec![0; batch.num_rows()];
        let widths: Vec<Vec<usize>> = batch.columns().iter().map(row_width::row_bytes).collect();
        for (row, made) in made.iter_mut().enumerate() {
            let items = lists.iter().map(|list| items_of(batch.column(*list), row)).max().unwrap_or(0);
            let repeated: usize =
                (0..widths.len()).filter(|c| !lists.contains(c)).map(|c| widths[c][row] + 8).sum();
            let unnested: usize = lists.iter().map(|list| widths[*list][row]).sum();
            *made = items.saturating_mul(repeated).saturating_add(unnested);
        }
        // One row cannot be cut; it may make as much as is claimed for it.
        let first = made.first().copied().unwrap_or(0);
        if first > self.meter.step_bytes {
            MemoryConsumer::new("a list that becomes rows").register(&self.meter.pool).try_grow(2 * first)?;
        }
        let mut sum = 0_usize;
        let fitting = made.iter().take_while(|made| {
            sum = sum.saturating_add(**made);
            sum <= self.meter.step_bytes
        });
        Ok(fitting.count().max(1))
    }

    fn step(&mut self, context: &mut Context<'_>) -> Poll<Option<EngineResult<RecordBatch>>> {
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None => match self.input.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(batch))) => batch,
                other => return other,
            },
        };
        let rows = self.measure(&batch)?;
        if rows >= batch.num_rows() {
            return Poll::Ready(Some(Ok(batch)));
        }
        self.rest = Some(batch.slice(rows, batch.num_rows() - rows));
        Poll::Ready(Some(Ok(batch.slice(0, rows))))
    }
}

impl Stream for MeteredStream {
    type Item = EngineResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.failed {
            return Poll::Ready(None);
        }
        let stepped = self.step(context);
        if let (Role::Worked(claims), Poll::Ready(_)) = (&self.role, &stepped) {
            claims.release(self.partition);
        }
        let worked = self.meter.queries().map_or(Ok(()), |pool| pool.record_allocation(allocated()));
        let stepped = match (worked, stepped) {
            (Err(e), Poll::Ready(_) | Poll::Pending) => Poll::Ready(Some(Err(e))),
            (Ok(()), stepped) => stepped,
        };
        self.failed = matches!(stepped, Poll::Ready(Some(Err(_))));
        stepped
    }
}

impl RecordBatchStream for MeteredStream {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

/// Rows that the list in a row becomes; lists in it, too.
fn items_of(column: &ArrayRef, row: usize) -> usize {
    let items = match column.data_type() {
        DataType::List(_) => column.as_list::<i32>().value(row),
        DataType::LargeList(_) => column.as_list::<i64>().value(row),
        DataType::FixedSizeList(..) => column.as_fixed_size_list().value(row),
        _ => return 1,
    };
    match items.data_type().is_nested() {
        true => (0..items.len()).map(|item| items_of(&items, item)).sum(),
        false => items.len(),
    }
}

/// Bytes that this thread allocated since it was asked last.
fn allocated() -> usize {
    thread_local!(static BEFORE: Cell<u64> = const { Cell::new(0) });
    let now = gauge().map_or(0, Gauge::allocated_by_thread);
    (now - BEFORE.replace(now)) as usize
}
