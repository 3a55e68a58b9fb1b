//! Import of a cluster's history from files: accounting records, traces, quotas, nodes, faults.
//!
//! A [`Mapping`] declares which column of a file is which field of an event; [`import()`] applies
//! it to a file and appends the events to a log. Importing a file again, even after a kill halfway,
//! writes only what is missing. Mappings for common exports are built in, and a user adds one by
//! writing a TOML file (`schemas/imports/README.md`). [`topology`] imports the location of nodes;
//! [`generate`] makes realistic accounting files for benchmarks.
//!
//! The crate has no command line. Design: `docs/design/collection.md`; guide:
//! `docs/guide/import.md`.
//!
//! ```no_run
//! use tidegate_import::{ImportOptions, Mapping, Source, import};
//! use tidegate_log::{EmbeddedLog, EmbeddedOptions};
//!
//! let log = EmbeddedLog::open("data/log", EmbeddedOptions::default())?;
//! let options = ImportOptions { cluster: Some("prod".into()), ..ImportOptions::default() };
//! let source = Source::File("jobs.txt".into());
//! let summary = import(source, &Mapping::load("sacct")?, &options, &log, &mut |_| {})?;
//! println!("{} rows accepted, {} rejected", summary.rows_accepted, summary.rejected());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod accepted_row;
mod duplicates;
mod error;
mod faults;
mod fields;
mod fleet;
pub mod generate;
mod import;
mod jobs;
mod mapping;
mod options;
mod outbox;
mod prometheus;
mod row_mapper;
mod rows;
mod samples;
mod steps;
mod summary;
mod time;
pub mod topology;

pub use error::{ColumnType, FleetError, ImportError, MappingError, MissingColumn, Reject, RejectCode};
pub use fleet::Fleet;
pub use import::import;
pub use mapping::{Kind, Mapping, OnDuplicateId};
pub use options::{FileFormat, ImportOptions};
pub use prometheus::{
    Credentials, PrometheusOptions, PrometheusProgress, PrometheusSummary, import_prometheus,
};
pub use rows::open::Source;
pub use steps::{StepOptions, import_steps};
pub use summary::{ImportSummary, Progress};
