//! Raw tables: one per event schema, with one row per event as it came from the log. GPU samples
//! have many rows per event, see [`samples`].

mod columns;
pub(crate) mod facts;
pub(crate) mod rows;
pub mod samples;
pub(crate) mod table;

use std::sync::Arc;

use tidegate_events::SchemaId;

use self::columns::{audit, autopilot, dead_letter, documented, insight, scheduler, sizing, step};
use self::table::RawTable;
use crate::table::{Column, Layout, TableSpec};

/// The raw table of what people did. It, and whatever is computed from it, is for administrators.
pub const AUDIT_TABLE: &str = "audit_events";

/// All raw tables. Their order is part of the commit format of joined tables, which name a raw
/// table by its number.
pub fn raw_tables() -> Vec<RawTable> {
    let table = |schema: SchemaId, name: &str, doc: &str, key: &[&str], columns: Vec<Column>| RawTable {
        schema,
        has_dedup_window: schema == SchemaId::StepReport,
        ratio_step_ppm: 1,
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
            "Events of jobs as reported, one row per event.",
            &["cluster", "job_id"],
            documented(scheduler::JOB),
        ),
        table(
            SchemaId::CapacityEvent,
            "capacity_events",
            "Quotas, reservations, limits, partitions and prices as reported, one row per setting.",
            &["cluster", "owner"],
            documented(scheduler::CAPACITY),
        ),
        table(
            SchemaId::PoolSample,
            "pool_samples",
            "State of pools and quotas as the scheduler reported it, one row per sample.",
            &["cluster", "owner"],
            documented(scheduler::POOL),
        ),
        table(
            SchemaId::NodeEvent,
            "node_events",
            "Events of nodes as reported: registrations, removals, states, faults, labels.",
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
            "Input that could not become an event, with its position and the reason.",
            &["origin"],
            documented(dead_letter::DEAD),
        ),
        samples::metrics::table(),
        table(
            SchemaId::StragglerSignal,
            "straggler_signals",
            "Straggler signals: slow ranks, nodes and networks of jobs, one row per signal.",
            &["cluster", "job_id"],
            documented(insight::STRAGGLER),
        ),
        table(
            SchemaId::NodeSignal,
            "node_signals",
            "Health of nodes as inferred from their devices and faults, one row per change.",
            &["cluster", "node"],
            documented(insight::NODE_SIGNAL),
        ),
        table(
            SchemaId::Forecast,
            "forecasts",
            "Forecast quantiles of demand (GPUs held and waited for), one row per series, time of issue and hour.",
            &["cluster", "kind", "name"],
            documented(insight::FORECAST),
        ),
        table(
            SchemaId::AutopilotEvent,
            "autopilot_events",
            "Journal of the autopilot, one row per entry.",
            &["cluster"],
            documented(autopilot::EVENT),
        ),
        table(
            SchemaId::CoverageSignal,
            "coverage_signals",
            "Whether the bounds of forecasts hold, by series and distance: one row per change, and one a day.",
            &["cluster", "kind", "name"],
            documented(insight::COVERAGE),
        ),
        table(
            SchemaId::JobEndSignal,
            "job_end_signals",
            "The fault that most likely ended an attempt of a job, one row per attempt that a fault can have ended.",
            &["cluster", "job_id"],
            documented(insight::JOB_END),
        ),
        table(
            SchemaId::ScalingCurve,
            "scaling_points",
            "Scaling curves of families of jobs, fitted to their steps, one row per curve and size.",
            &["cluster", "family"],
            documented(insight::SCALING),
        ),
        table(
            SchemaId::SizingAdvice,
            "sizing_advice",
            "How much of a pool to commit to for a term, advised from its demand and the prices at that time: one row per advice and term.",
            &["cluster", "kind", "name"],
            documented(sizing::SIZING),
        ),
        table(
            SchemaId::AuditEvent,
            AUDIT_TABLE,
            "Audit records: what people did and how it ended, one row per record; for administrators alone.",
            &["source"],
            documented(audit::AUDIT),
        ),
    ]
}
