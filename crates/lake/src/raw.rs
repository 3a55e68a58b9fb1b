//! Raw tables: one per event schema, one row per event, as it came from the log. Samples have rows
//! of their own kind, see [`crate::samples`].

mod autopilot;
mod insight;
mod scheduler;
mod sizing;

use std::hash::Hasher;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int32Array, Int64Array, Int64Builder, RecordBatch, StringViewBuilder,
    TimestampMicrosecondBuilder,
};
use arrow::datatypes::DataType;
use tidegate_events::v1::{DeadLetter, Envelope, JobEvent, JobEventKind, SignalState, StepReport};
use tidegate_events::{Event, SchemaId};
use xxhash_rust::xxh3::Xxh3;

use crate::table::{Column, EVENT, KEY, Layout, OFFSET, PARTITION, TableSpec, timestamp_type};
use crate::window::MICROS_PER_MS;

/// What the runner must know of one event besides its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Hash of the key.
    pub key: i64,
    /// Short event identity: equal facts have equal numbers.
    pub event: i64,
    /// Event time, µs.
    pub time: i64,
    /// Until when the event alone may change windows, µs; equal to `time` for instantaneous events.
    pub reach: i64,
    /// Up to when its cluster is known by it, µs: `time`, but for a price that is entered for a
    /// time to come.
    pub observed: i64,
    /// Attempt it belongs to; -1 if none.
    pub attempt: i64,
    /// Whether nothing more is expected for the key after this event; `None` where the event does
    /// not say, as that of a step, which may end a moment after its job.
    pub terminal: Option<bool>,
}

/// A raw table: which schema it holds and how an event becomes a row.
#[derive(Debug, Clone)]
pub struct RawTable {
    pub spec: Arc<TableSpec>,
    pub schema: SchemaId,
    /// Events are so many that repeats are known only if they come soon, see
    /// [`crate::samples::REMEMBERED_RECORDS`]. Else any repeat is, at about five bytes of memory
    /// for each key there ever was.
    pub knows_lately: bool,
}

impl RawTable {
    /// Whether its keys come back for ever: each event is on its own then.
    pub fn is_endless(&self) -> bool {
        matches!(self.schema, SchemaId::GpuSampleBatch | SchemaId::StepReport | SchemaId::NodeEvent)
    }
}

/// All raw tables.
pub fn raw_tables() -> Vec<RawTable> {
    let table = |schema: SchemaId, name: &str, doc: &str, key: &[&str], columns: Vec<Column>| RawTable {
        schema,
        knows_lately: schema == SchemaId::StepReport,
        spec: Arc::new(TableSpec {
            name: name.into(),
            // Another version of the event has other columns.
            version: schema.version().into(),
            doc: doc.into(),
            layout: Layout::Raw,
            columns,
            key: key.iter().map(|k| (*k).to_owned()).collect(),
            parts: Vec::new(),
        }),
    };
    vec![
        table(
            SchemaId::JobEvent,
            "job_events",
            "Everything that happened to jobs, one row per event, as reported.",
            &["cluster", "job_id"],
            documented(scheduler::JOB),
        ),
        table(
            SchemaId::CapacityEvent,
            "capacity_events",
            "Settings of quotas, reservations, limits, partitions and prices, as reported.",
            &["cluster", "owner"],
            documented(scheduler::CAPACITY),
        ),
        table(
            SchemaId::PoolSample,
            "pool_samples",
            "State of pools and quotas as a scheduler reported it, one row per sample.",
            &["cluster", "owner"],
            documented(scheduler::POOL),
        ),
        table(
            SchemaId::NodeEvent,
            "node_events",
            "Everything that happened to nodes: registered, removed, faults.",
            &["cluster", "node"],
            documented(scheduler::NODE),
        ),
        table(
            SchemaId::StepReport,
            "steps",
            "Training steps as jobs report them, one row per rank and step.",
            &["cluster", "job_id", "rank", "step"],
            documented(STEP),
        ),
        table(
            SchemaId::DeadLetter,
            "dead_letters",
            "Input that could not become an event, with where it stood and why.",
            &["origin"],
            documented(DEAD),
        ),
        crate::samples::metrics::table(),
        table(
            SchemaId::StragglerSignal,
            "straggler_signals",
            "What Tidegate said of slow ranks, nodes and networks of jobs, one row per statement.",
            &["cluster", "job_id"],
            documented(insight::STRAGGLER),
        ),
        table(
            SchemaId::NodeSignal,
            "node_signals",
            "How Tidegate took nodes to stand, by their devices and faults, one row per change.",
            &["cluster", "node"],
            documented(insight::NODE_SIGNAL),
        ),
        table(
            SchemaId::Forecast,
            "forecasts",
            "Quantiles of demand (GPUs held and waited for) as foreseen, one row per series, time of issue and hour.",
            &["cluster", "kind", "name"],
            documented(insight::FORECAST),
        ),
        table(
            SchemaId::AutopilotEvent,
            "autopilot_events",
            "Everything the autopilot thought and did, one row per step.",
            &["cluster"],
            documented(autopilot::EVENT),
        ),
        table(
            SchemaId::CoverageSignal,
            "coverage_signals",
            "Whether the bounds of forecasts held, by series and how far ahead: one row per change, and one a day.",
            &["cluster", "kind", "name"],
            documented(insight::COVERAGE),
        ),
        table(
            SchemaId::JobEndSignal,
            "job_end_signals",
            "Which fault Tidegate took to have ended an attempt of a job, one row per attempt that a fault can have ended.",
            &["cluster", "job_id"],
            documented(insight::JOB_END),
        ),
        table(
            SchemaId::ScalingCurve,
            "scaling_points",
            "Scaling curves of families of jobs as fitted to their steps, one row per statement and size.",
            &["cluster", "family"],
            documented(insight::SCALING),
        ),
        table(
            SchemaId::SizingAdvice,
            "sizing_advice",
            "How much of a pool to commit to for a term, as advised by its demand and the prices of the time: one row per statement and term.",
            &["cluster", "kind", "name"],
            documented(sizing::SIZING),
        ),
    ]
}

/// Raw rows under construction: events in, one record batch out. An event is written to its columns
/// at once and not kept.
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
            SchemaId::DeadLetter => rows(DEAD, |e| if let Event::DeadLetter(e) = e { Some(e) } else { None }),
            SchemaId::StepReport => rows(STEP, |e| if let Event::Step(e) = e { Some(e) } else { None }),
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
            SchemaId::GpuSampleBatch => unreachable!("samples become rows in crate::samples"),
        };
        Self { table, partition: partition as i32, columns, offsets: Vec::new(), facts: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.facts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Adds a row. An event of another schema is none of this table's and is left out.
    pub fn push(&mut self, offset: u64, event: &Event) {
        if self.columns.push(event) {
            self.offsets.push(offset as i64);
            self.facts.push(facts_of(event));
        }
    }

    /// The rows with the table's full schema, and the facts of each; empties the builder.
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

fn facts_of(event: &Event) -> Facts {
    let envelope = event.envelope();
    let id = envelope.map_or(&[][..], |e| e.event_id.as_slice());
    let identity = id.first_chunk().map_or(0, |head| i64::from_le_bytes(*head));
    let time = event.event_time_ms().saturating_mul(MICROS_PER_MS);
    let cluster = envelope.map_or("", |e| e.cluster.as_str());
    let (key, reach, terminal) = match event {
        // A heartbeat is a fact of its own: its key is its identity, so that heartbeats do not pile
        // up under one key.
        Event::Job(e) if e.kind() == JobEventKind::Observed => (identity, time, Some(true)),
        Event::Job(e) => (
            key_hash(cluster, &e.job_id),
            time,
            says_whether_done(e.kind().as_str_name(), e.step_id.is_none()).then(|| is_terminal(e)),
        ),
        Event::Capacity(e) => (key_hash(cluster, &e.owner), time, Some(false)),
        Event::PoolSample(e) => {
            (identity, time.saturating_add(MICROS_PER_MS.saturating_mul(e.interval_ms as i64)), Some(true))
        }
        // Not folded: neither nodes nor what is told of them ever ends, and steps are too many to
        // wait for their job's end. So each is a key of its own, and leaves memory with the next
        // commit.
        Event::Step(e) => (identity, time.saturating_add(e.duration_us as i64), Some(true)),
        // A job's episodes are few; one that is over may be followed by another.
        Event::Straggler(e) => (key_hash(cluster, &e.job_id), time, Some(e.state() == SignalState::Cleared)),
        Event::NodeHealth(e) => (key_hash(cluster, &e.node), time, Some(false)),
        Event::Node(_)
        | Event::DeadLetter(_)
        | Event::GpuSamples(_)
        | Event::Forecast(_)
        | Event::Coverage(_)
        | Event::JobEnd(_)
        | Event::Scaling(_)
        | Event::Sizing(_)
        | Event::Autopilot(_) => (identity, time, Some(true)),
    };
    let attempt = if let Event::Job(e) = event { e.attempt_id.unwrap_or(-1) } else { -1 };
    let observed = match event {
        Event::Capacity(e) => e.entered_ms.map_or(time, |ms| time.min(ms.saturating_mul(MICROS_PER_MS))),
        _ => time,
    };
    Facts { key, event: identity, time, reach, observed, attempt, terminal }
}

/// A step may end a moment after its job, and a device be let go of.
pub(crate) fn says_whether_done(kind: &str, of_job: bool) -> bool {
    of_job && !matches!(kind, "DEVICE_HELD" | "DEVICE_RELEASED")
}

fn is_terminal(event: &JobEvent) -> bool {
    event.kind() == JobEventKind::Ended && !goes_on(event.final_state.as_deref())
}

/// A job is done when an attempt ended for good. One that was requeued or resized will be followed
/// by another one.
pub(crate) fn goes_on(final_state: Option<&str>) -> bool {
    matches!(final_state, Some("REQUEUED" | "RESIZED"))
}

/// Hash of (cluster, name): the unit of recomputation of keyed tables.
pub fn key_hash(cluster: &str, name: &str) -> i64 {
    let mut hasher = Xxh3::new();
    hasher.write(cluster.as_bytes());
    hasher.write_u8(0);
    hasher.write(name.as_bytes());
    hasher.finish() as i64
}

/// How a column is read from an event.
enum Read<E> {
    Text(fn(&E) -> Option<&str>),
    /// Several texts, in one with `; ` between; NULL for none.
    Lines(fn(&E) -> &[String]),
    Int(fn(&E) -> Option<i64>),
    /// Milliseconds since the epoch, stored in microseconds.
    Time(fn(&E) -> Option<i64>),
}

type Columns<E> = &'static [(&'static str, Read<E>, &'static str)];

fn documented<E>(columns: Columns<E>) -> Vec<Column> {
    let column = |(name, read, doc): &(&str, Read<E>, &str)| Column {
        name: (*name).to_owned(),
        data_type: match read {
            Read::Text(_) | Read::Lines(_) => DataType::Utf8View,
            Read::Int(_) => DataType::Int64,
            Read::Time(_) => timestamp_type(),
        },
        doc: (*doc).to_owned(),
    };
    columns.iter().map(column).collect()
}

/// The public columns of a raw table under construction.
trait Rows: std::fmt::Debug + Send {
    /// Adds the event's row; false if the event is of another schema.
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

fn env(envelope: &Option<Envelope>) -> Option<&Envelope> {
    envelope.as_ref()
}

fn int(value: Option<u64>) -> Option<i64> {
    value.and_then(|v| i64::try_from(v).ok())
}

const CLUSTER_DOC: &str = "Cluster the event is about.";
const TIME_DOC: &str = "When it happened.";
const SOURCE_DOC: &str = "Who observed it.";
const EPOCH_DOC: &str = "Life of the source.";
const SEQ_DOC: &str = "Number of the event in that life; a gap is a loss.";

const STEP: Columns<StepReport> = &[
    ("cluster", Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())), CLUSTER_DOC),
    ("job_id", Read::Text(|e| Some(&e.job_id)), "Job that reports."),
    (
        "attempt_id",
        Read::Int(|e| e.attempt_id),
        "Attempt of the job, as in attempts, where the job knows it.",
    ),
    ("rank", Read::Int(|e| Some(e.rank.into())), "Rank of the process in the job."),
    ("world_size", Read::Int(|e| e.world_size.map(i64::from)), "Number of ranks."),
    (
        "step",
        Read::Int(|e| int(Some(e.step))),
        "Number of the step; the same number again is a step done anew after a restart.",
    ),
    ("event_time", Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)), "When the step began."),
    ("duration_us", Read::Int(|e| int(Some(e.duration_us))), "How long it took, µs."),
    (
        "compute_us",
        Read::Int(|e| int(e.compute_us)),
        "Of it computing, before collectives wait for others, µs. Parts may overlap.",
    ),
    (
        "communication_us",
        Read::Int(|e| int(e.communication_us)),
        "Of it in collectives, waiting included, µs.",
    ),
    ("data_wait_us", Read::Int(|e| int(e.data_wait_us)), "Of it waiting for input, µs."),
    ("checkpoint_us", Read::Int(|e| int(e.checkpoint_us)), "Of it saving or loading a checkpoint, µs."),
    (
        "restore_us",
        Read::Int(|e| int(e.restore_us)),
        "Of it loading a checkpoint, where it is told apart, µs.",
    ),
    ("tokens", Read::Int(|e| int(e.tokens)), "Tokens of this rank in this step."),
    (
        "model_flops",
        Read::Int(|e| int(e.model_flops)),
        "Floating-point operations of the model, of this rank in this step, by flops_convention.",
    ),
    (
        "flops_convention",
        Read::Text(|e| e.flops_convention.as_deref()),
        "How model_flops are counted, e.g. palm, megatron, 6n.",
    ),
    ("precision", Read::Text(|e| e.precision.as_deref()), "Precision of the multiplications, e.g. bf16."),
    (
        "data_epoch",
        Read::Int(|e| int(e.data_epoch)),
        "Pass over the training data that the step is in, from 0 on.",
    ),
    (
        "pipeline_stage",
        Read::Int(|e| e.pipeline_stage.map(i64::from)),
        "Stage of the pipeline that the rank works in, from 0.",
    ),
    ("pipeline_stages", Read::Int(|e| e.pipeline_stages.map(i64::from)), "Stages of the pipeline."),
    ("micro_batches", Read::Int(|e| e.micro_batches.map(i64::from)), "Micro-batches of a step, per replica."),
    (
        "expert_group",
        Read::Int(|e| e.expert_group.map(i64::from)),
        "Group of experts that the rank computes, from 0.",
    ),
    (
        "squared_tokens",
        Read::Int(|e| int(e.squared_tokens)),
        "Sum of the squares of its sequences' lengths, in tokens.",
    ),
    ("loss_ppm", Read::Int(|e| e.loss_ppm), "Loss, millionths."),
    ("node", Read::Text(|e| e.node.as_deref()), "Node the rank ran on."),
    ("gpu_uuid", Read::Text(|e| e.gpu_uuid.as_deref()), "Device the rank ran on, by its UUID."),
    ("gpu_index", Read::Int(|e| e.gpu_index.map(i64::from)), "Number of the device in its node."),
    (
        "dropped",
        Read::Int(|e| int(e.dropped)),
        "Reports of this rank that its client dropped before this one.",
    ),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    ("epoch", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.epoch)))), EPOCH_DOC),
    ("seq", Read::Int(|e| env(&e.envelope).and_then(|v| int(Some(v.seq)))), SEQ_DOC),
];

const DEAD: Columns<DeadLetter> = &[
    (
        "cluster",
        Read::Text(|e| env(&e.envelope).map(|v| v.cluster.as_str())),
        "Cluster the input was for, where known.",
    ),
    ("origin", Read::Text(|e| Some(&e.origin)), "File name, or topic name of the log."),
    ("line", Read::Int(|e| int(e.line)), "Line or row in the file; 1 is the first line."),
    ("partition", Read::Int(|e| e.partition.map(i64::from)), "Partition of the log."),
    ("offset", Read::Int(|e| int(e.offset)), "Offset in the partition."),
    ("code", Read::Text(|e| Some(&e.code)), "Stable code of what is wrong."),
    ("reason", Read::Text(|e| Some(&e.reason)), "What is wrong and how to mend it."),
    (
        "raw",
        Read::Text(|e| std::str::from_utf8(&e.raw).ok()),
        "The input itself, at most 4096 bytes; NULL if it is not text.",
    ),
    ("source", Read::Text(|e| env(&e.envelope).map(|v| v.source.as_str())), SOURCE_DOC),
    (
        "event_time",
        Read::Time(|e| env(&e.envelope).map(|v| v.event_time_ms)),
        "Event time of the input if it had one, else 1970.",
    ),
];
