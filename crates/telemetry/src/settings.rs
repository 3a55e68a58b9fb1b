//! What is exported where, from the standard environment variables and the options of a command.
//! <https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::headers::Headers;
use crate::pairs::pairs;
use crate::sampler::Sampler;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// What a command line says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// Address of the collector, in place of `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub endpoint: Option<String>,
    /// File with headers, beside `OTEL_EXPORTER_OTLP_HEADERS`.
    pub headers_file: Option<PathBuf>,
    /// Whether spans hold the text of people's queries.
    pub query_texts: bool,
}

/// What is exported, where to, and how.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(crate) traces: Option<Signal>,
    pub(crate) metrics: Option<Signal>,
    pub(crate) resource: BTreeMap<String, String>,
    pub(crate) sampler: Sampler,
    pub(crate) queue_spans: usize,
    pub(crate) batch_spans: usize,
    pub(crate) delay: Duration,
    pub(crate) metrics_every: Duration,
    pub(crate) query_texts: bool,
}

/// Where the requests of one kind go.
#[derive(Debug, Clone)]
pub(crate) struct Signal {
    pub endpoint: Url,
    pub headers: Headers,
    pub protocol: Protocol,
    pub timeout: Duration,
    pub gzip: bool,
    pub ca: Option<PathBuf>,
    /// Certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Protobuf,
    Json,
}

/// A variable or option says what cannot be done. The text quotes no header and no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; OTEL_SDK_DISABLED=true starts without an export")]
pub struct SettingsError(String);

impl Signal {
    /// The address without what may be secret in it.
    pub fn place(&self) -> String {
        let port = self.endpoint.port().map(|port| format!(":{port}")).unwrap_or_default();
        let host = self.endpoint.host_str().unwrap_or_default();
        format!("{}://{host}{port}{}", self.endpoint.scheme(), self.endpoint.path())
    }

    /// Whether its headers would cross a network in the clear.
    pub fn shows_headers(&self) -> bool {
        let is_here = match self.endpoint.host() {
            Some(url::Host::Domain(name)) => name == "localhost",
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        self.endpoint.scheme() == "http" && !self.headers.is_empty() && !is_here
    }
}

impl Settings {
    /// What the environment and a command line ask for; `None` if they ask for no export.
    ///
    /// # Errors
    /// [`SettingsError`] if a value cannot be used.
    pub fn find(given: &Given) -> Result<Option<Self>, SettingsError> {
        Self::read(&|name| std::env::var(name).ok(), given).map_err(SettingsError)
    }

    fn read(env: &dyn Fn(&str) -> Option<String>, given: &Given) -> Result<Option<Self>, String> {
        // The specification takes an empty value for none.
        let env = |name: &str| env(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        if env("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let traces = signal(&env, given, "TRACES", "v1/traces")?;
        let metrics = signal(&env, given, "METRICS", "v1/metrics")?;
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        let mut resource = BTreeMap::new();
        if let Some(list) = env("OTEL_RESOURCE_ATTRIBUTES") {
            let malformed = |at| format!("OTEL_RESOURCE_ATTRIBUTES: entry {at} is not NAME=VALUE");
            resource.extend(pairs(&list).map_err(malformed)?);
        }
        resource.extend(env("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
        let sampler = match env("OTEL_TRACES_SAMPLER") {
            Some(name) => Sampler::named(&name, env("OTEL_TRACES_SAMPLER_ARG").as_deref())?,
            None => Sampler::default(),
        };
        let queue_spans = count(&env, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)?;
        let batch_spans = count(&env, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)?.min(queue_spans);
        Ok(Some(Self {
            traces,
            metrics,
            resource,
            sampler,
            queue_spans,
            batch_spans,
            delay: millis(&env, "OTEL_BSP_SCHEDULE_DELAY", 5_000)?,
            metrics_every: millis(&env, "OTEL_METRIC_EXPORT_INTERVAL", 60_000)?,
            query_texts: given.query_texts,
        }))
    }

    /// A line for people: what goes where.
    pub fn describe(&self) -> String {
        let of = |name: &str, signal: &Option<Signal>| {
            signal.as_ref().map(|signal| format!("{name} to {}", signal.place()))
        };
        let all = [of("traces", &self.traces), of("metrics", &self.metrics)];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

type Env<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Settings of one kind of requests: its own variables, or those of all.
fn signal(env: &Env<'_>, given: &Given, kind: &str, path: &str) -> Result<Option<Signal>, String> {
    let own = |name: &str| env(&format!("OTEL_EXPORTER_OTLP_{kind}_{name}"));
    let any = |name: &str| own(name).or_else(|| env(&format!("OTEL_EXPORTER_OTLP_{name}")));
    let named = |name: &str| match own(name) {
        Some(_) => format!("OTEL_EXPORTER_OTLP_{kind}_{name}"),
        None => format!("OTEL_EXPORTER_OTLP_{name}"),
    };
    let endpoint = match (own("ENDPOINT"), given.endpoint.clone().or_else(|| env(ENDPOINT))) {
        (Some(own), _) => address(&named("ENDPOINT"), &own)?,
        (None, Some(all)) => {
            let mut all = address(given.endpoint.as_ref().map_or(ENDPOINT, |_| "--otlp"), &all)?;
            all.set_path(&format!("{}/{path}", all.path().trim_end_matches('/')));
            all
        }
        (None, None) => return Ok(None),
    };
    let exporter = format!("OTEL_{kind}_EXPORTER");
    match env(&exporter).as_deref() {
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        // GET /metrics is there anyway.
        Some("prometheus") if kind == "METRICS" => return Ok(None),
        Some(_) => return Err(format!("{exporter} is otlp or none")),
    }
    let protocol = match any("PROTOCOL").as_deref() {
        None | Some("http/protobuf") => Protocol::Protobuf,
        Some("http/json") => Protocol::Json,
        Some("grpc") => {
            return Err(format!(
                "{} is grpc, which is not spoken here: set it to http/protobuf, and name the collector's port for HTTP, \
                 most often 4318",
                named("PROTOCOL")
            ));
        }
        Some(_) => return Err(format!("{} is http/protobuf or http/json", named("PROTOCOL"))),
    };
    let gzip = match any("COMPRESSION").as_deref() {
        None | Some("none") => false,
        Some("gzip") => true,
        Some(_) => return Err(format!("{} is gzip or none", named("COMPRESSION"))),
    };
    let mut headers = match any("HEADERS") {
        Some(list) => Headers::parse(&named("HEADERS"), &list)?,
        None => Headers::default(),
    };
    if let Some(file) = &given.headers_file {
        headers = headers.with(Headers::read(file)?);
    }
    let file = |name: &str| any(name).map(PathBuf::from);
    let identity = match (file("CLIENT_CERTIFICATE"), file("CLIENT_KEY")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            let (one, other) = (named("CLIENT_CERTIFICATE"), named("CLIENT_KEY"));
            return Err(format!("{one} and {other} belong together: set both or neither"));
        }
    };
    let timeout = millis(&|name| if name == "TIMEOUT" { any(name) } else { None }, "TIMEOUT", 10_000)
        .map_err(|_| format!("{} is no number of milliseconds from 1 on", named("TIMEOUT")))?;
    Ok(Some(Signal { endpoint, headers, protocol, timeout, gzip, ca: file("CERTIFICATE"), identity }))
}

/// An address. What is wrong with it is said without quoting it: it may hold a password.
fn address(name: &str, text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|_| format!("{name} is no address; write http://HOST:4318"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(format!("{name} is no address with http or https; write http://HOST:4318"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!(
            "{name} holds a user or password: give them as a header, in OTEL_EXPORTER_OTLP_HEADERS"
        ));
    }
    Ok(url)
}

fn count(env: &Env<'_>, name: &str, otherwise: usize) -> Result<usize, String> {
    let Some(text) = env(name) else { return Ok(otherwise) };
    let number = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or_else(|| format!("{name} is no number from 1 to 1000000"))
}

fn millis(env: &Env<'_>, name: &str, otherwise: u64) -> Result<Duration, String> {
    let Some(text) = env(name) else { return Ok(Duration::from_millis(otherwise)) };
    let number = text.parse().ok().filter(|number| (1..=86_400_000).contains(number));
    let number = number.ok_or_else(|| format!("{name} is no number of milliseconds from 1 to a day's"))?;
    Ok(Duration::from_millis(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)], given: &Given) -> Result<Option<Settings>, String> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        Settings::read(&|name| variables.get(name).map(|value| (*value).to_owned()), given)
    }

    fn found(variables: &[(&str, &str)]) -> Settings {
        read(variables, &Given::default()).unwrap().unwrap()
    }

    #[test]
    fn it_is_off_unless_an_address_is_named() {
        let off = |variables: &[(&str, &str)]| read(variables, &Given::default()).unwrap().is_none();
        assert!(off(&[]));
        assert!(off(&[("OTEL_SERVICE_NAME", "x"), ("OTEL_EXPORTER_OTLP_HEADERS", "a=b"), (ENDPOINT, " ")]));
        assert!(off(&[(ENDPOINT, "http://c:4318"), ("OTEL_SDK_DISABLED", "TRUE")]));
        // Disabled, nothing else is looked at.
        assert!(off(&[(ENDPOINT, "::"), ("OTEL_SDK_DISABLED", "true")]));
        let none =
            [(ENDPOINT, "http://c"), ("OTEL_TRACES_EXPORTER", "none"), ("OTEL_METRICS_EXPORTER", "none")];
        assert!(off(&none));
        assert!(found(&none[..2]).traces.is_none() && found(&none[..2]).metrics.is_some());
    }

    #[test]
    fn one_address_serves_both_and_one_of_a_kind_is_taken_as_it_is() {
        let settings = found(&[
            (ENDPOINT, "https://c:4318/otlp/"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:9090/api/v1/otlp/v1/metrics"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x=1"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ]);
        let (traces, metrics) = (settings.traces.clone().unwrap(), settings.metrics.clone().unwrap());
        assert_eq!(traces.endpoint.as_str(), "https://c:4318/otlp/v1/traces");
        assert_eq!(metrics.endpoint.as_str(), "http://127.0.0.1:9090/api/v1/otlp/v1/metrics");
        assert_eq!((traces.protocol, metrics.protocol), (Protocol::Json, Protocol::Protobuf));
        assert_eq!(metrics.headers.iter().collect::<Vec<_>>(), [("x", "1")]);
        assert!(traces.gzip && traces.timeout == Duration::from_millis(250));
        let shown = format!("{settings:?} {}", settings.describe());
        assert!(
            !shown.contains("s3cret") && shown.contains("traces to https://c:4318/otlp/v1/traces"),
            "{shown}"
        );
        let given = Given { endpoint: Some("http://d:4318".into()), ..Given::default() };
        let given = read(&[(ENDPOINT, "http://c:4318")], &given).unwrap().unwrap();
        assert_eq!(given.traces.unwrap().place(), "http://d:4318/v1/traces");
    }

    #[test]
    fn headers_in_the_clear_are_noticed() {
        let shows = |endpoint: &str| {
            found(&[(ENDPOINT, endpoint), ("OTEL_EXPORTER_OTLP_HEADERS", "a=b")])
                .traces
                .unwrap()
                .shows_headers()
        };
        assert!(shows("http://collector:4318") && !shows("https://collector:4318"));
        assert!(
            !shows("http://127.0.0.1:4318") && !shows("http://localhost:4318") && !shows("http://[::1]:4318")
        );
    }

    #[test]
    fn the_names_of_the_service_and_its_attributes_are_kept() {
        let settings = found(&[
            (ENDPOINT, "http://c"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,deployment.environment.name=lab%2Cwest"),
            ("OTEL_SERVICE_NAME", "tide"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
        ]);
        assert_eq!(settings.resource["service.name"], "tide");
        assert_eq!(settings.resource["deployment.environment.name"], "lab,west");
        assert_eq!((settings.queue_spans, settings.batch_spans), (10, 10));
    }

    #[test]
    fn what_cannot_be_used_is_named_and_not_quoted() {
        let endpoint = (ENDPOINT, "http://c:4318");
        for (variables, says) in [
            (vec![(ENDPOINT, "s3cret")], "OTEL_EXPORTER_OTLP_ENDPOINT is no address"),
            (vec![(ENDPOINT, "ftp://s3cret")], "with http or https"),
            (vec![(ENDPOINT, "http://me:s3cret@c")], "holds a user or password"),
            (vec![endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "most often 4318"),
            (vec![endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "s3cret")], "http/protobuf or http/json"),
            (vec![endpoint, ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "br")], "TRACES_COMPRESSION is gzip"),
            (
                vec![endpoint, ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")],
                "OTEL_EXPORTER_OTLP_TIMEOUT is no number",
            ),
            (vec![endpoint, ("OTEL_BSP_SCHEDULE_DELAY", "0")], "OTEL_BSP_SCHEDULE_DELAY"),
            (vec![endpoint, ("OTEL_METRIC_EXPORT_INTERVAL", "-1")], "OTEL_METRIC_EXPORT_INTERVAL"),
            (vec![endpoint, ("OTEL_TRACES_EXPORTER", "zipkin")], "OTEL_TRACES_EXPORTER is otlp or none"),
            (vec![endpoint, ("OTEL_TRACES_SAMPLER", "s3cret")], "OTEL_TRACES_SAMPLER is one of"),
            (vec![endpoint, ("OTEL_RESOURCE_ATTRIBUTES", "a=1,s3cret")], "OTEL_RESOURCE_ATTRIBUTES: entry 2"),
            (vec![endpoint, ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret")], "OTEL_EXPORTER_OTLP_HEADERS: entry 1"),
            (vec![endpoint, ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "k")], "belong together"),
        ] {
            let why = read(&variables, &Given::default()).unwrap_err();
            assert!(why.contains(says) && !why.contains("s3cret"), "{why}");
        }
    }
}
