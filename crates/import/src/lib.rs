//! Import of a cluster's history from files.
//!
//! A [`Mapping`] says declaratively which column of a file is which field of an event; [`import`]
//! applies it to a file and appends the events to a log. Mappings for common exports are shipped; a
//! user adds one for his own by writing a TOML file (`schemas/imports/README.md`). [`generate`]
//! makes realistic accounting files for measurements.
//!
//! This crate has no command line and draws no progress bar.

mod duplicates;
mod error;
mod fleet;
pub mod generate;
mod import;
mod jobs;
mod mapping;
mod outbox;
mod plan;
mod row_plan;
mod rows;
mod time;
pub mod topology;

pub use error::{ColumnType, FleetError, ImportError, MappingError, MissingColumn, Reject, RejectCode};
pub use fleet::Fleet;
pub use import::{ImportOptions, ImportSummary, Progress, import};
pub use mapping::{Kind, Mapping, OnDuplicateId};
pub use rows::open::Source;
