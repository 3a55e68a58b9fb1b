//! GPU samples from a server that speaks Prometheus' HTTP API and holds a dcgm-exporter's metrics.

mod answer;
mod client;
mod fetch;
mod refusal;
mod remote;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tidegate_log::{EventLog, TopicConfig};
use tidegate_readings::dcgm::fields::Named;

use crate::error::ImportError;
use crate::outbox::Place;
use crate::samples::held::HOUR_MS;
use crate::samples::writer::SampleWriter;
use client::Client;
use fetch::{Asked, BadSeries, Window};
use refusal::Refusal;

/// Most hours asked for at once.
const MOST_HOURS: i64 = 24;
/// Different bad series of which a dead letter is written; all are counted.
const MOST_BAD_SERIES: usize = 1_000;

/// What to ask, and whom.
#[derive(Debug, Clone)]
pub struct PrometheusOptions {
    /// Address before `/api/v1`, http or https.
    pub url: String,
    /// What the server asks for.
    pub credentials: Option<Credentials>,
    /// Begin and end, ms since the epoch. The whole UTC hours between them are imported.
    pub from_ms: i64,
    /// See `from_ms`.
    pub to_ms: i64,
    /// Time between two samples, ms; divides an hour.
    pub step_ms: i64,
    /// Selector of series, `{label="value",…}`.
    pub matcher: Option<String>,
    /// Values by remote read in place of queries.
    pub remote_read: bool,
    /// Label that names the node; by default `Hostname`, else `instance` without its port.
    pub node_label: Option<String>,
    /// Cluster of all samples.
    pub cluster: String,
    /// Time limit of one question.
    pub patience: Duration,
    /// Take an answer that the server calls partial or warns about.
    pub allow_partial: bool,
    /// Layout of topics that the log lacks.
    pub topics: TopicConfig,
}

/// What a server asks for before it answers.
#[derive(Clone)]
pub enum Credentials {
    /// A bearer token.
    Token(String),
    /// A name without a colon, and its password: basic authentication.
    Basic {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
}

impl Credentials {
    /// The value of the header `Authorization`.
    fn authorization(&self) -> String {
        match self {
            Self::Token(token) => format!("Bearer {token}"),
            Self::Basic { user, password } => {
                format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
        }
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Token(_) => "Token",
            Self::Basic { .. } => "Basic",
        })
    }
}

/// Counts of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrometheusSummary {
    /// Time that was imported, ms since the epoch.
    pub from_ms: i64,
    /// See `from_ms`.
    pub to_ms: i64,
    /// Questions asked.
    pub queries: u64,
    /// Values read of series that name a GPU.
    pub values: u64,
    /// Samples written: values of one device at one time.
    pub samples: u64,
    /// Series without a GPU or node, by code: they are dead letters.
    pub series_rejected: BTreeMap<&'static str, u64>,
    /// DCGM's names that the server has and that are no metric here.
    pub names_unused: Vec<String>,
    /// What the server warned of.
    pub warnings: Vec<String>,
    /// Events appended, dead letters included, and events that were there already.
    pub events_written: u64,
    /// See `events_written`.
    pub events_already_present: u64,
    /// First and last sample, ms since the epoch; none without samples.
    pub samples_ms: Option<(i64, i64)>,
}

/// Progress: imported time and all of it, ms, and samples so far.
#[derive(Debug, Clone, Copy)]
pub struct PrometheusProgress {
    /// Time imported, ms.
    pub done_ms: i64,
    /// Time to import, ms.
    pub total_ms: i64,
    /// Samples so far.
    pub samples: u64,
}

/// Imports samples of whole hours, hour by hour, in bounded memory.
///
/// Importing the same time again writes only what is missing, as long as the server answers the
/// same.
///
/// # Errors
/// The server does not answer or refuses, its answer is partial (unless that is allowed), or the
/// log fails. Hours before stay written; the same import again goes on.
pub fn import_prometheus(
    options: &PrometheusOptions,
    log: &dyn EventLog,
    progress: &mut dyn FnMut(PrometheusProgress),
) -> Result<PrometheusSummary, ImportError> {
    let (from_ms, to_ms) = whole_hours(options)?;
    let server = |what: String| ImportError::Server { url: options.url.clone(), what };
    let refused = |refusal: Refusal| match refusal {
        Refusal::Failed(what) => server(what),
        Refusal::TooMuch(what) => server(format!("{what}; ask for less of the cluster with --matcher")),
    };
    let authorization = options.credentials.as_ref().map(Credentials::authorization);
    let client = Client::new(&options.url, authorization, options.patience, options.allow_partial);
    // Without the address: it may hold a password.
    let mut client = client.map_err(|what| ImportError::Span(format!("--prometheus: {what}")))?;
    let matchers = matchers(options.matcher.as_deref())?;
    let read_matchers = options.remote_read.then(|| remote::matchers::parse(&matchers)).transpose();
    let read_matchers = read_matchers.map_err(|what| ImportError::Span(format!("--matcher: {what}")))?;
    let mut asked = asked(&mut client, &matchers, (from_ms, to_ms)).map_err(refused)?;
    if asked.names.is_empty() {
        return Err(server(
            "it has no metrics DCGM_FI_… of this time; check --from, --to and --matcher, and that it scrapes a \
             dcgm-exporter"
                .into(),
        ));
    }
    asked.read_matchers = read_matchers;
    asked.step_ms = options.step_ms;
    asked.node_label.clone_from(&options.node_label);
    asked.cluster.clone_from(&options.cluster);

    let mut writer = SampleWriter::new(log, "prometheus", options.topics)?;
    let mut summary = PrometheusSummary { from_ms, to_ms, ..PrometheusSummary::default() };
    let mut reported = BTreeSet::new();
    let (mut at_ms, mut hours) = (from_ms, MOST_HOURS);
    while at_ms < to_ms {
        let end_ms = to_ms.min(at_ms + hours * HOUR_MS);
        let mut window = match asked.window(&mut client, at_ms, end_ms) {
            Ok(window) => window,
            Err(Refusal::TooMuch(_)) if hours > 1 => {
                hours /= 2;
                continue;
            }
            Err(refusal) => return Err(refused(refusal)),
        };
        summary.values += window.values;
        write(&mut writer, &mut window, (at_ms, end_ms), options, &mut reported)?;
        at_ms = end_ms;
        progress(PrometheusProgress {
            done_ms: at_ms - from_ms,
            total_ms: to_ms - from_ms,
            samples: writer.readings,
        });
    }
    (summary.events_written, summary.events_already_present) = writer.finish()?;
    summary.samples = writer.readings;
    summary.samples_ms = writer.clusters.get(&options.cluster).copied();
    summary.series_rejected = writer.rejected;
    (summary.queries, summary.warnings, summary.names_unused) =
        (client.queries, client.warnings, asked.names_unused);
    Ok(summary)
}

/// The whole hours from begin to end.
fn whole_hours(options: &PrometheusOptions) -> Result<(i64, i64), ImportError> {
    if options.step_ms < 1_000 || HOUR_MS % options.step_ms != 0 {
        return Err(ImportError::Span("--step must divide an hour into steps of 1 s or more".into()));
    }
    let down = |ms: i64| ms - ms.rem_euclid(HOUR_MS);
    let (from_ms, to_ms) = (down(options.from_ms.saturating_add(HOUR_MS - 1)), down(options.to_ms));
    // From 1970, so that every time is written without a sign.
    if from_ms < HOUR_MS || from_ms >= to_ms {
        return Err(ImportError::Span(
            "there is no whole hour between --from and --to; whole UTC hours are imported".into(),
        ));
    }
    Ok((from_ms, to_ms))
}

/// The matchers between the braces.
fn matchers(selector: Option<&str>) -> Result<String, ImportError> {
    let Some(selector) = selector else {
        return Ok(String::new());
    };
    let inside = selector.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    match inside {
        Some(inside) if inside.len() <= 4_096 => Ok(inside.trim().trim_end_matches(',').to_owned()),
        _ => Err(ImportError::Span(r#"--matcher must be like {cluster="prod",job="dcgm"}"#.into())),
    }
}

/// The names that the server has and that are known here.
fn asked(client: &mut Client, matchers: &str, (from_ms, to_ms): (i64, i64)) -> Result<Asked, Refusal> {
    let comma = if matchers.is_empty() { "" } else { "," };
    let every = format!(r#"{{__name__=~"DCGM_FI_.+"{comma}{matchers}}}"#);
    let mut asked = Asked { matchers: matchers.to_owned(), ..Asked::default() };
    for name in client.names(&every, from_ms, to_ms)? {
        match name.strip_prefix("DCGM_FI_").and_then(Named::of) {
            Some(named) => asked.names.push((name, named)),
            // Only what was asked for: the server may not know `match[]`.
            None if name.starts_with("DCGM_FI_") => asked.names_unused.push(name),
            None => {}
        }
    }
    asked.order();
    Ok(asked)
}

/// Writes the hours of a window, and dead letters of its bad series that have none yet.
fn write(
    writer: &mut SampleWriter<'_>,
    window: &mut Window,
    (at_ms, end_ms): (i64, i64),
    options: &PrometheusOptions,
    reported: &mut BTreeSet<String>,
) -> Result<(), ImportError> {
    for BadSeries { labels, reject, at_ms } in std::mem::take(&mut window.bad) {
        if reported.contains(&labels) {
            continue;
        }
        if reported.len() >= MOST_BAD_SERIES {
            *writer.rejected.entry(reject.code.as_str()).or_default() += 1;
            continue;
        }
        let place = Place {
            cluster: &options.cluster,
            origin: &options.url,
            line: None,
            at_ms,
            raw: labels.clone().into_bytes(),
        };
        writer.reject(reject, place)?;
        reported.insert(labels);
    }
    let mut hour_ms = at_ms;
    while hour_ms < end_ms {
        writer.hour(&mut window.held, hour_ms, options.step_ms, true)?;
        hour_ms += HOUR_MS;
    }
    Ok(())
}
