//! Builds rows of a raw table from events.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int32Array, Int64Array, Int64Builder, RecordBatch, StringViewBuilder,
    TimestampMicrosecondBuilder,
};
use tidegate_events::{Event, SchemaId};

use super::columns::{Columns, Read, audit, autopilot, dead_letter, insight, scheduler, sizing, step};
use super::facts::{Facts, facts_from_event};
use super::table::RawTable;
use crate::table::{EVENT, KEY, OFFSET, PARTITION};
use crate::window::MICROS_PER_MS;

/// Builder of raw rows: events in, one record batch out. An event is written to its columns at once
/// and not kept.
#[derive(Debug)]
pub struct RawRows {
    table: RawTable,
    partition: i32,
    columns: Box<dyn Rows>,
    offsets: Vec<i64>,
    facts: Vec<Facts>,
}

impl RawRows {
    pub fn new(table: RawTable, partition: u32) -> Self {
        let columns: Box<dyn Rows> = match table.schema {
            SchemaId::JobEvent => {
                rows(scheduler::JOB, |e| if let Event::Job(e) = e { Some(e) } else { None })
            }
            SchemaId::CapacityEvent => {
                rows(scheduler::CAPACITY, |e| if let Event::Capacity(e) = e { Some(e) } else { None })
            }
            SchemaId::PoolSample => {
                rows(scheduler::POOL, |e| if let Event::PoolSample(e) = e { Some(e) } else { None })
            }
            SchemaId::NodeEvent => {
                rows(scheduler::NODE, |e| if let Event::Node(e) = e { Some(e) } else { None })
            }
            SchemaId::DeadLetter => {
                rows(dead_letter::DEAD, |e| if let Event::DeadLetter(e) = e { Some(e) } else { None })
            }
            SchemaId::StepReport => rows(step::STEP, |e| if let Event::Step(e) = e { Some(e) } else { None }),
            SchemaId::StragglerSignal => {
                rows(insight::STRAGGLER, |e| if let Event::Straggler(e) = e { Some(e) } else { None })
            }
            SchemaId::NodeSignal => {
                rows(insight::NODE_SIGNAL, |e| if let Event::NodeHealth(e) = e { Some(e) } else { None })
            }
            SchemaId::JobEndSignal => {
                rows(insight::JOB_END, |e| if let Event::JobEnd(e) = e { Some(e) } else { None })
            }
            SchemaId::Forecast => {
                rows(insight::FORECAST, |e| if let Event::Forecast(e) = e { Some(e) } else { None })
            }
            SchemaId::AutopilotEvent => {
                rows(autopilot::EVENT, |e| if let Event::Autopilot(e) = e { Some(e) } else { None })
            }
            SchemaId::CoverageSignal => {
                rows(insight::COVERAGE, |e| if let Event::Coverage(e) = e { Some(e) } else { None })
            }
            SchemaId::ScalingCurve => {
                rows(insight::SCALING, |e| if let Event::Scaling(e) = e { Some(e) } else { None })
            }
            SchemaId::SizingAdvice => {
                rows(sizing::SIZING, |e| if let Event::Sizing(e) = e { Some(e) } else { None })
            }
            SchemaId::AuditEvent => {
                rows(audit::AUDIT, |e| if let Event::Audit(e) = e { Some(e) } else { None })
            }
            SchemaId::GpuSampleBatch => unreachable!("samples become rows in crate::raw::samples"),
        };
        Self { table, partition: partition as i32, columns, offsets: Vec::new(), facts: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.facts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Adds a row. Events of another schema are skipped.
    pub fn push(&mut self, offset: u64, event: &Event) {
        if self.columns.push(event) {
            self.offsets.push(offset as i64);
            self.facts.push(facts_from_event(event));
        }
    }

    /// Returns the rows with the table's full schema, and the facts of each. Empties the builder.
    pub fn finish(&mut self) -> (RecordBatch, Vec<Facts>) {
        let facts = std::mem::take(&mut self.facts);
        let mut columns = self.columns.finish();
        columns.push(Arc::new(Int32Array::from_value(self.partition, facts.len())));
        columns.push(Arc::new(Int64Array::from(std::mem::take(&mut self.offsets))));
        columns.push(Arc::new(facts.iter().map(|f| Some(f.key)).collect::<Int64Array>()));
        columns.push(Arc::new(facts.iter().map(|f| Some(f.event)).collect::<Int64Array>()));
        debug_assert_eq!(
            [PARTITION, OFFSET, KEY, EVENT],
            self.table.spec.hidden_columns().iter().map(|c| c.0).collect::<Vec<_>>()[..]
        );
        let batch = RecordBatch::try_new(self.table.spec.full_schema(), columns)
            .expect("columns are built to the schema");
        (batch, facts)
    }
}

/// Builder of the public columns of one raw table.
trait Rows: std::fmt::Debug + Send {
    /// Adds the event's row. Returns `false` if the event is of another schema.
    fn push(&mut self, event: &Event) -> bool;
    fn finish(&mut self) -> Vec<ArrayRef>;
}

enum ColumnBuilder {
    Text(StringViewBuilder),
    Int(Int64Builder),
    Time(TimestampMicrosecondBuilder),
}

struct TypedRows<E: 'static> {
    cast: fn(&Event) -> Option<&E>,
    columns: Vec<(&'static Read<E>, ColumnBuilder)>,
}

impl<E> std::fmt::Debug for TypedRows<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TypedRows").field("columns", &self.columns.len()).finish()
    }
}

fn rows<E: 'static>(columns: Columns<E>, cast: fn(&Event) -> Option<&E>) -> Box<dyn Rows> {
    let builder = |read: &Read<E>| match read {
        Read::Text(_) | Read::Lines(_) => ColumnBuilder::Text(StringViewBuilder::new()),
        Read::Int(_) => ColumnBuilder::Int(Int64Builder::new()),
        Read::Time(_) => ColumnBuilder::Time(TimestampMicrosecondBuilder::new().with_timezone("UTC")),
    };
    Box::new(TypedRows { cast, columns: columns.iter().map(|(_, read, _)| (read, builder(read))).collect() })
}

impl<E: 'static> Rows for TypedRows<E> {
    fn push(&mut self, event: &Event) -> bool {
        let Some(event) = (self.cast)(event) else { return false };
        for (read, builder) in &mut self.columns {
            match (read, builder) {
                (Read::Text(get), ColumnBuilder::Text(builder)) => builder.append_option(get(event)),
                (Read::Lines(get), ColumnBuilder::Text(builder)) => {
                    let lines = get(event);
                    builder.append_option((!lines.is_empty()).then(|| lines.join("; ")));
                }
                (Read::Int(get), ColumnBuilder::Int(builder)) => builder.append_option(get(event)),
                (Read::Time(get), ColumnBuilder::Time(builder)) => {
                    builder.append_option(get(event).map(|ms| ms.saturating_mul(MICROS_PER_MS)));
                }
                _ => unreachable!("builders are made from their reads"),
            }
        }
        true
    }

    fn finish(&mut self) -> Vec<ArrayRef> {
        let finish = |builder: &mut ColumnBuilder| -> ArrayRef {
            match builder {
                ColumnBuilder::Text(builder) => Arc::new(builder.finish()),
                ColumnBuilder::Int(builder) => Arc::new(builder.finish()),
                ColumnBuilder::Time(builder) => Arc::new(builder.finish()),
            }
        };
        self.columns.iter_mut().map(|(_, builder)| finish(builder)).collect()
    }
}
