//! From the world to events: what collectors see on nodes and beside schedulers, and imports of
//! history.
//!
//! A [`Mapping`] says declaratively which column of a file is which field of an event; [`import`]
//! applies it to a file and appends the events to a log. Mappings for common exports are shipped; a
//! user adds one for his own by writing a TOML file (`schemas/imports/README.md`). [`generate`]
//! makes realistic accounting files for measurements. All this is behind the feature `import`, so
//! that what runs on nodes stays small.
//!
//! Live sources (`nvml`, `dcgm`, `slurm`, …) tell a [`Sink`] what they see, see [`reading`].
//!
//! This crate has no command line and draws no progress bar.

pub mod agent;
mod checkpoint;
pub mod dcgm;
pub mod demo;
#[cfg(feature = "import")]
mod duplicates;
mod error;
#[cfg(feature = "import")]
mod fleet;
#[cfg(feature = "import")]
pub mod generate;
pub mod holds;
#[cfg(feature = "import")]
mod import;
pub mod inlet;
#[cfg(feature = "import")]
mod jobs;
pub mod kube;
#[cfg(feature = "import")]
mod mapping;
pub mod nvml;
#[cfg(feature = "import")]
mod outbox;
pub mod outlet;
#[cfg(feature = "import")]
mod plan;
pub mod reading;
#[cfg(feature = "import")]
mod row_plan;
#[cfg(feature = "import")]
mod rows;
pub mod slurm;
mod ticker;
#[cfg(feature = "import")]
mod time;
#[cfg(feature = "import")]
pub mod topology;
pub mod xid;

#[cfg(feature = "import")]
pub use error::{ColumnType, ImportError, MappingError, MissingColumn};
pub use error::{Reject, RejectCode};
#[cfg(feature = "import")]
pub use fleet::{Fleet, FleetError};
#[cfg(feature = "import")]
pub use import::{ImportOptions, ImportSummary, Progress, import};
#[cfg(feature = "import")]
pub use mapping::{Kind, Mapping, OnDuplicateId};
pub use reading::{Device, Metric, Reading, Sink, Value};
#[cfg(feature = "import")]
pub use rows::open::Source;
