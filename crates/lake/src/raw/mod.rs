//! Raw tables: one per event schema, with one row per event as it came from the log. GPU samples
//! have many rows per event, see [`samples`].

mod columns;
pub(crate) mod facts;
pub(crate) mod rows;
pub mod samples;
pub(crate) mod table;

use std::sync::Arc;

use tidegate_events::SchemaId;

use self::columns::{autopilot, dead_letter, documented, insight, scheduler, sizing, step};
use self::table::RawTable;
use crate::table::{Column, Layout, TableSpec};

/// All raw tables. Their order is part of the commit format of joined tables, which name a raw
/// table by its number.
pub fn raw_tables() -> Vec<RawTable> {
    let table = |schema: SchemaId, name: &str, doc: &str, key: &[&str], columns: Vec<Column>| RawTable {
        schema,
        has_dedup_window: schema == SchemaId::StepReport,
        spec: Arc::new(TableSpec {
            name: name.into(),
            // A new version of the event has other columns, so it gets a table of its own.
            version: schema.version().into(),
            doc: doc.into(),
            layout: Layout::Raw,
            columns,
            key: key.iter().map(|k| (*k).to_owned()).collect(),
            partials: Vec::new(),
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
            documented(step::STEP),
        ),
        table(
            SchemaId::DeadLetter,
            "dead_letters",
            "Input that could not become an event, with where it stood and why.",
            &["origin"],
            documented(dead_letter::DEAD),
        ),
        samples::metrics::table(),
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
