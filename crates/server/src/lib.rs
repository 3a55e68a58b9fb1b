//! SQL over the lake: read-only queries with limits, output formats, and the HTTP service.
//!
//! [`QueryService`] runs SQL on the newest consistent catalog; [`Encoded`] turns the rows into
//! bytes of a [`Format`], piece by piece; [`serve`] offers both over HTTP, and [`Ingest`] appends
//! what agents send. The `tidegate sql` command uses the first two directly.
//!
//! ```no_run
//! use tidegate_lake::catalog::{Catalog, CatalogSource};
//! use tidegate_server::{Encoded, Format, Overrides, QueryError, QueryLimits, QueryService};
//!
//! async fn print_json_lines(sql: &str) -> Result<(), QueryError> {
//!     // A catalog without tables; a `tidegate_lake` runner keeps a real one.
//!     let catalog = CatalogSource::fixed(Catalog::default());
//!     let service = QueryService::new(catalog, QueryLimits::default())?;
//!     let rows = service.query(sql, Overrides::default()).await?;
//!     let mut encoded = Encoded::new(rows, Format::Jsonl)?;
//!     while let Some(piece) = encoded.next().await? {
//!         print!("{}", String::from_utf8_lossy(&piece));
//!     }
//!     Ok(())
//! }
//! ```
#![warn(missing_docs)]

pub mod access;
mod admission;
mod answers;
pub mod audit;
mod bounded_functions;
mod cancellation;
mod certificate;
mod door;
mod encode;
mod error;
mod file_threads;
mod format;
mod http;
mod ingest;
mod memory_meter;
mod metrics;
mod page;
mod query;
mod readiness;
pub mod reference;
mod row_width;
pub mod workers;

pub use answers::Answers;
pub use door::{ClientFiles, ConnectionLimits, Door, HostNames, Tls, TlsError, TlsFiles, serve};
pub use encode::{Encoded, TABLE_ROWS};
pub use error::QueryError;
pub use format::Format;
pub use http::MAX_BODY_BYTES;
pub use ingest::Ingest;
pub use memory_meter::measure_by;
pub use metrics::{AutopilotKept, Metrics, ObjectiveKept, SignalsMemory};
pub use query::{Overrides, QueryLimits, QueryService, Rows};
