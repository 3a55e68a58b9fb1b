//! Step reports as OpenTelemetry metrics (OTLP/HTTP, protobuf or JSON).
//!
//! Data points of `tidegate.step.*` with equal job, rank, step and start form one report; its
//! fields are those of a JSON line, see `deploy/clients/README.md`. The start is an attribute too,
//! because a point's own times are those of its export, and an exporter may resend a point with
//! other times. Other metrics are counted and ignored.

mod size;

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{Metric, NumberDataPoint};
use prost::Message;
use serde_json::{Map, Value};

use super::answers::{deliver, refuse};
use super::batch::{Batch, LISTED_REFUSALS, Outcome};
use super::limits::Peer;
use super::{Counts, Shared};
use tidegate_readings::json_fields::MAX_NAME_BYTES;

const PREFIX: &str = "tidegate.step.";
/// Duration metrics, by their name after the prefix.
const DURATIONS: [&str; 6] = ["duration", "compute", "communication", "data_wait", "checkpoint", "restore"];
/// Other numeric metrics.
const NUMBERS: [&str; 5] = ["tokens", "squared_tokens", "model_flops", "loss", "dropped"];
/// Numeric attributes; some languages send them as text.
const NUMERIC: [&str; 10] = [
    "rank",
    "step",
    "start",
    "start_ms",
    "attempt",
    "world_size",
    "pipeline_stage",
    "pipeline_stages",
    "micro_batches",
    "expert_group",
];
const TEXTS: [&str; 5] = ["job", "gpu", "node", "precision", "flops_convention"];

/// Job, rank, step and start: points with an equal key form one report.
type Key = [Rc<str>; 4];

/// Points of a request, grouped. A body may repeat one long text for each of its points by naming
/// it once for all, so texts are shared.
#[derive(Default)]
struct Reports {
    by_key: BTreeMap<Key, Report>,
    texts: HashSet<Rc<str>>,
    /// Points that are no part of a report.
    ignored: usize,
}

struct Report {
    of_resource: Rc<Map<String, Value>>,
    /// Fields of its points, which take precedence.
    own: Map<String, Value>,
    points: i64,
}

/// Handles a request.
pub(super) async fn respond(
    shared: &Arc<Shared>,
    peer: &Peer,
    content_type: &str,
    body: &[u8],
) -> Response<Full<Bytes>> {
    let json = content_type.starts_with("application/json");
    if let Err(what) = if json { size::check_json(body) } else { size::check_protobuf(body) } {
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, &format!("the request is too large: {what}"));
    }
    let request = match json {
        true => serde_json::from_slice(body).map_err(|error| error.to_string()),
        false => ExportMetricsServiceRequest::decode(body).map_err(|error| error.to_string()),
    };
    let (batch, points) = match request {
        Ok(request) => batch(shared, peer, request, body.len()),
        Err(error) => {
            let what = format!(
                "the body is no OTLP metrics request ({error}); send application/x-protobuf or application/json, uncompressed"
            );
            return refuse(StatusCode::BAD_REQUEST, &what);
        }
    };
    let outcomes = match deliver(shared, peer, batch).await {
        Ok(outcomes) => outcomes,
        Err(refused) => return refused,
    };
    let mut partial = ExportMetricsPartialSuccess::default();
    let refused = outcomes.into_iter().zip(points).filter_map(|(outcome, points)| match outcome {
        Outcome::Refused(what) => Some((what, points)),
        Outcome::Taken { .. } => None,
    });
    for (at, (what, points)) in refused.enumerate() {
        partial.rejected_data_points += points;
        if at < LISTED_REFUSALS {
            let joint = if at > 0 { "; " } else { "" };
            partial.error_message += &format!("{joint}{what}");
        }
    }
    let partial_success = (partial.rejected_data_points > 0).then_some(partial);
    answer(&ExportMetricsServiceResponse { partial_success }, json)
}

fn answer(response: &ExportMetricsServiceResponse, json: bool) -> Response<Full<Bytes>> {
    let (body, content_type) = match json {
        // Serializing strings and numbers cannot fail.
        true => (serde_json::to_vec(response).unwrap_or_default(), "application/json"),
        false => (response.encode_to_vec(), "application/x-protobuf"),
    };
    let mut response = Response::new(Full::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The reports of a request, each with its number of points.
fn batch(
    shared: &Shared,
    peer: &Peer,
    request: ExportMetricsServiceRequest,
    bytes: usize,
) -> (Batch, Vec<i64>) {
    let reports = Reports::of(request);
    Counts::add(&shared.counts.otlp_ignored, reports.ignored);
    let mut batch = Batch::of_bytes(bytes);
    let mut points = Vec::new();
    for report in reports.by_key.into_values() {
        let mut fields = (*report.of_resource).clone();
        fields.extend(report.own);
        let name = format!("step {} of rank {}", text(fields.get("step")), text(fields.get("rank")));
        batch.push(shared, peer, fields, &name);
        points.push(report.points);
    }
    (batch, points)
}

impl Reports {
    /// Groups the points of a request.
    fn of(request: ExportMetricsServiceRequest) -> Self {
        let mut reports = Self::default();
        for resource in request.resource_metrics {
            let of_resource = resource.resource.map(|resource| from_resource(&resource.attributes));
            let of_resource = Rc::new(of_resource.unwrap_or_default());
            for metric in resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
                let field = field(&metric);
                for (attributes, value) in points(metric) {
                    match field.as_ref().zip(value) {
                        Some((field, value)) => reports.add(&of_resource, &attributes, field, value),
                        None => reports.ignored += 1,
                    }
                }
            }
        }
        reports
    }

    fn add(
        &mut self,
        of_resource: &Rc<Map<String, Value>>,
        attributes: &[KeyValue],
        field: &str,
        value: Value,
    ) {
        let mut own = Map::new();
        for attribute in attributes {
            let name = attribute.key.as_str();
            if let (true, Some(value)) = (NUMERIC.contains(&name) || TEXTS.contains(&name), plain(attribute))
            {
                own.insert(name.to_owned(), value);
            }
        }
        let of = |name: &str| own.get(name).or_else(|| of_resource.get(name));
        // Seconds and milliseconds are separate fields; only one of them belongs in the key.
        let start = if of("start").is_some() { "start" } else { "start_ms" };
        let key = ["job", "rank", "step", start].map(|name| text(of(name)));
        let key = key.map(|text| self.shared(text));
        let report = self.by_key.entry(key).or_insert_with(|| Report {
            of_resource: Rc::clone(of_resource),
            own: Map::new(),
            points: 0,
        });
        report.own.extend(own);
        report.own.insert(field.to_owned(), value);
        report.points += 1;
    }

    /// The text, each once.
    fn shared(&mut self, text: String) -> Rc<str> {
        if let Some(known) = self.texts.get(text.as_str()) {
            return Rc::clone(known);
        }
        let shared: Rc<str> = text.into();
        self.texts.insert(Rc::clone(&shared));
        shared
    }
}

/// The JSON field, with unit, of a metric; `None` for other metrics.
fn field(metric: &Metric) -> Option<String> {
    let name = metric.name.strip_prefix(PREFIX)?;
    if NUMBERS.contains(&name) {
        return Some(name.to_owned());
    }
    let unit = match metric.unit.as_str() {
        "" | "s" => "s",
        "ms" => "ms",
        "us" => "us",
        _ => return None,
    };
    DURATIONS.contains(&name).then(|| format!("{name}_{unit}"))
}

/// Attributes and value of each point. A histogram with one observation has its value as the sum;
/// with more, single values are lost.
fn points(metric: Metric) -> Vec<(Vec<KeyValue>, Option<Value>)> {
    let observed = |count: u64, sum: Option<f64>| {
        sum.filter(|_| count == 1).and_then(|sum| number(Number::AsDouble(sum)))
    };
    let numbers = |points: Vec<NumberDataPoint>| {
        points.into_iter().map(|point| (point.attributes, point.value.and_then(number))).collect()
    };
    match metric.data {
        Some(Data::Gauge(gauge)) => numbers(gauge.data_points),
        Some(Data::Sum(sum)) => numbers(sum.data_points),
        Some(Data::Histogram(histogram)) => {
            let points = histogram.data_points.into_iter();
            points.map(|point| (point.attributes, observed(point.count, point.sum))).collect()
        }
        Some(Data::ExponentialHistogram(histogram)) => {
            let points = histogram.data_points.into_iter();
            points.map(|point| (point.attributes, observed(point.count, point.sum))).collect()
        }
        Some(Data::Summary(summary)) => {
            summary.data_points.into_iter().map(|point| (point.attributes, None)).collect()
        }
        None => Vec::new(),
    }
}

/// `None` for numbers that JSON cannot represent.
fn number(number: Number) -> Option<Value> {
    match number {
        Number::AsInt(whole) => Some(whole.into()),
        Number::AsDouble(float) => serde_json::Number::from_f64(float).map(Value::Number),
    }
}

/// Fields from resource attributes: `tidegate.job` and so on, and the pod.
fn from_resource(attributes: &[KeyValue]) -> Map<String, Value> {
    let of = |key: &str| attributes.iter().find(|attribute| attribute.key == key);
    let mut fields = Map::new();
    if let (Some(namespace), Some(pod)) =
        (of("k8s.namespace.name").and_then(plain), of("k8s.pod.name").and_then(plain))
        && let (Value::String(namespace), Value::String(pod)) = (namespace, pod)
    {
        fields.insert("job".into(), format!("{namespace}/{pod}").into());
    }
    for name in TEXTS.iter().chain(&NUMERIC) {
        if let Some(value) = of(&format!("tidegate.{name}")).and_then(plain) {
            fields.insert((*name).to_owned(), value);
        }
    }
    fields
}

/// An attribute as a JSON line would have it.
fn plain(attribute: &KeyValue) -> Option<Value> {
    let name = attribute.key.strip_prefix("tidegate.").unwrap_or(&attribute.key);
    match attribute.value.as_ref()? {
        AnyValue { value: Some(Attribute::StringValue(text)) } => {
            // Longer than a name may be is too long all the same, and refused with the report.
            let text = &text[..text.ceil_char_boundary(MAX_NAME_BYTES + 1)];
            let number = NUMERIC.contains(&name).then(|| text.parse().ok()).flatten();
            Some(number.map_or_else(|| text.into(), Value::Number))
        }
        AnyValue { value: Some(Attribute::IntValue(whole)) } => number(Number::AsInt(*whole)),
        AnyValue { value: Some(Attribute::DoubleValue(float)) } => number(Number::AsDouble(*float)),
        _ => None,
    }
}

fn text(value: Option<&Value>) -> String {
    value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).unwrap_or_default()
}
