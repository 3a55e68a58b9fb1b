//! SQL over the lake: read-only queries with limits, output formats, and the HTTP service.
//!
//! [`QueryService`] runs SQL on the newest consistent catalog; [`Encoded`] turns the rows into
//! bytes of a [`Format`], piece by piece; [`serve`] offers both over HTTP, [`Ingest`] appends what
//! agents send, and [`steering`] takes what people decide about the autopilot. The `tidegate sql`
//! command uses the first two directly.
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
mod asked;
pub mod audit;
mod background;
mod bounded_functions;
mod cancellation;
mod certificate;
mod changes;
mod door;
mod encode;
mod error;
mod figures;
mod file_threads;
mod flight;
mod format;
mod http;
mod http_error;
mod ingest;
mod interval_product;
mod lasting;
mod memory_meter;
mod metrics;
mod metrics_door;
pub mod openapi;
mod page;
mod page_door;
mod plain_columns;
mod planning;
mod postgres;
mod query;
mod question;
mod readiness;
pub mod reference;
pub mod rehearsal;
mod row_width;
mod serve;
pub mod steering;
pub mod workers;

pub use answers::Answers;
pub use door::limits::MAX_BODY_BYTES;
pub use door::{ClientFiles, ConnectionLimits, Door, HostNames, Tls, TlsError, TlsFiles};
pub use encode::{Encoded, TABLE_ROWS};
pub use error::QueryError;
pub use format::Format;
pub use ingest::Ingest;
pub use memory_meter::measure_by;
pub use metrics::{AutopilotKept, Metrics, ObjectiveKept, SignalsMemory};
pub use query::{Overrides, QueryLimits, QueryService, Rows};
pub use serve::serve;
