//! SQL over the lake: read-only queries with limits, output formats, and the HTTP service.
//!
//! [`QueryService`] runs SQL on the newest consistent catalog; [`Encoded`] turns the rows into
//! bytes of a [`Format`], piece by piece; [`serve`] offers both over HTTP, and [`Ingest`] appends
//! what agents send. The `tidegate sql` command uses the first two directly.

mod bounded;
mod encode;
mod error;
mod format;
mod guard;
mod http;
mod ingest;
mod meter;
mod metrics;
mod query;
pub mod reference;
mod stop;
mod wide;

pub use encode::{Encoded, TABLE_ROWS};
pub use error::QueryError;
pub use format::Format;
pub use http::{MAX_BODY_BYTES, serve};
pub use ingest::Ingest;
pub use meter::measure_by;
pub use metrics::{AutopilotKept, Metrics, ObjectiveKept};
pub use query::{Overrides, QueryLimits, QueryService, Rows};
