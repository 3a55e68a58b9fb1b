//! Arguments of the export to an OpenTelemetry collector.

use std::path::PathBuf;

use clap::Args;
use tidegate_telemetry::{Given, Settings};

use crate::error::CommandError;

/// Where this process's traces and metrics go.
#[derive(Debug, Clone, Default, Args)]
pub struct OtlpArgs {
    /// Export traces and metrics of this process over OTLP/HTTP to the OpenTelemetry collector at
    /// this address, e.g. http://127.0.0.1:4318, in place of OTEL_EXPORTER_OTLP_ENDPOINT. The other
    /// standard variables, OTEL_*, hold too
    #[arg(long, value_name = "URL", hide_short_help = true)]
    otlp: Option<String>,
    /// File with headers for the collector, one NAME: VALUE a line, beside
    /// OTEL_EXPORTER_OTLP_HEADERS
    #[arg(long, value_name = "FILE", env = "TIDEGATE_OTLP_HEADERS_FILE", hide_short_help = true)]
    otlp_headers_file: Option<PathBuf>,
    /// Put the text of queries into their spans
    #[arg(long, hide_short_help = true)]
    otlp_query_text: bool,
}

impl OtlpArgs {
    /// What is exported; `None` if neither these arguments nor the environment name a collector.
    ///
    /// # Errors
    /// An argument or variable cannot be used.
    pub fn settings(&self) -> Result<Option<Settings>, CommandError> {
        let given = Given {
            endpoint: self.otlp.clone(),
            headers_file: self.otlp_headers_file.clone(),
            query_texts: self.otlp_query_text,
        };
        Ok(Settings::find(&given)?)
    }
}
