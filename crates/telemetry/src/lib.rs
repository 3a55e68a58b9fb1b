//! Traces and metrics of this process, sent to an OpenTelemetry collector over OTLP/HTTP.
//!
//! Code that is worth a span opens one of `tracing` with the target [`TARGET`], which no log line
//! shows; it needs this crate for nothing. [`SpanLayer`] takes those spans while an export runs.
//! [`Settings`] reads the standard environment variables, and [`Telemetry`] starts two threads: one
//! sends spans, one sends the figures of a metrics page at an interval. A span that finds the queue
//! full is dropped and counted: nothing waits for a collector.
//!
//! Fields of spans have the names that `tracing-opentelemetry` gives them: `otel.kind` (`server`,
//! `client`, `internal`), `otel.name`, and beside them `traceparent` and `tracestate` of a request,
//! `error.type`, which makes the span a failed one, and `otlp.skip`, which lets it go unsent.
//!
//! ```no_run
//! use tidegate_telemetry::{Given, Settings, SpanLayer, Telemetry};
//! use tracing_subscriber::layer::SubscriberExt;
//! use tracing_subscriber::util::SubscriberInitExt;
//!
//! tracing_subscriber::registry().with(SpanLayer::filtered()).init();
//! let page = || "# TYPE up gauge\nup 1\n# EOF\n".to_owned();
//! let telemetry = match Settings::find(&Given::default())? {
//!     Some(settings) => Some(Telemetry::start(settings, page)?),
//!     None => None,
//! };
//! let span = tracing::info_span!(target: "otlp", "query", otel.kind = "server", rows = 3);
//! drop(span);
//! telemetry.map(Telemetry::end);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod client;
mod complaints;
mod context;
mod headers;
mod layer;
mod page;
mod pairs;
mod queue;
mod resource;
mod sampler;
mod settings;
mod telemetry;
#[cfg(test)]
mod tests;

pub use context::MAX_CONTEXT_BYTES;
pub use layer::current_traceparent;
pub use layer::{Exported, SpanLayer};
pub use queue::{Counts, counts};
pub use settings::{Given, Settings, SettingsError};
pub use telemetry::{NotStarted, Telemetry};

/// Target of the spans that are exported. The filter of log lines lets it through at no usual
/// level.
pub const TARGET: &str = "otlp";
