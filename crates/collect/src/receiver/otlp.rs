//! Step reports as OpenTelemetry metrics (OTLP/HTTP, protobuf or JSON).
//!
//! Data points of `tidegate.step.*` with equal job, rank, step and start form one report; its
//! fields are those of a JSON line, see `deploy/clients/README.md`. The start is an attribute too,
//! because a point's own times are those of its export, and an exporter may resend a point with
//! other times. Other metrics are counted and ignored.

use std::collections::BTreeMap;
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
type Key = [String; 4];

/// Reports of a request, each with its number of points.
type Reports = BTreeMap<Key, (Map<String, Value>, i64)>;

/// Handles a request.
pub(super) async fn respond(
    shared: &Arc<Shared>,
    peer: &Peer,
    content_type: &str,
    body: &[u8],
) -> Response<Full<Bytes>> {
    let json = content_type.starts_with("application/json");
    let request = match json {
        true => serde_json::from_slice(body).map_err(|error| error.to_string()),
        false => ExportMetricsServiceRequest::decode(body).map_err(|error| error.to_string()),
    };
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            let what = format!(
                "the body is no OTLP metrics request ({error}); send application/x-protobuf or application/json, uncompressed"
            );
            return refuse(StatusCode::BAD_REQUEST, &what);
        }
    };
    let (reports, ignored) = reports(request);
    Counts::add(&shared.counts.otlp_ignored, ignored);
    let mut batch = Batch::of_bytes(body.len());
    let mut points = Vec::new();
    for (fields, count) in reports.into_values() {
        let name = format!("step {} of rank {}", text(&fields, "step"), text(&fields, "rank"));
        batch.push(shared, peer, fields, &name);
        points.push(count);
    }
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

/// Groups points into reports. Also returns how many were ignored.
fn reports(request: ExportMetricsServiceRequest) -> (Reports, usize) {
    let (mut reports, mut ignored) = (Reports::new(), 0);
    for resource in request.resource_metrics {
        let of_resource =
            resource.resource.map(|resource| from_resource(&resource.attributes)).unwrap_or_default();
        for metric in resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
            let field = field(&metric);
            for (attributes, value) in points(metric) {
                let (Some(field), Some(value)) = (&field, value) else {
                    ignored += 1;
                    continue;
                };
                let mut fields = of_resource.clone();
                for attribute in &attributes {
                    let name = attribute.key.as_str();
                    if let (true, Some(value)) =
                        (NUMERIC.contains(&name) || TEXTS.contains(&name), plain(attribute))
                    {
                        fields.insert(name.to_owned(), value);
                    }
                }
                // Seconds and milliseconds are separate fields; only one of them belongs in the
                // key.
                let start = if fields.contains_key("start") { "start" } else { "start_ms" };
                let key = ["job", "rank", "step", start].map(|name| text(&fields, name));
                let (report, points) = reports.entry(key).or_default();
                report.extend(fields);
                report.insert(field.clone(), value);
                *points += 1;
            }
        }
    }
    (reports, ignored)
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
    let numbers = |points: Vec<NumberDataPoint>| {
        points.into_iter().map(|point| (point.attributes, point.value.and_then(number))).collect()
    };
    match metric.data {
        Some(Data::Gauge(gauge)) => numbers(gauge.data_points),
        Some(Data::Sum(sum)) => numbers(sum.data_points),
        Some(Data::Histogram(histogram)) => histogram
            .data_points
            .into_iter()
            .map(|point| {
                (
                    point.attributes,
                    point.sum.filter(|_| point.count == 1).and_then(|sum| number(Number::AsDouble(sum))),
                )
            })
            .collect(),
        Some(Data::ExponentialHistogram(histogram)) => histogram
            .data_points
            .into_iter()
            .map(|point| {
                (
                    point.attributes,
                    point.sum.filter(|_| point.count == 1).and_then(|sum| number(Number::AsDouble(sum))),
                )
            })
            .collect(),
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
        AnyValue { value: Some(Attribute::StringValue(text)) } if NUMERIC.contains(&name) => {
            Some(text.parse().map_or_else(|_| Value::String(text.clone()), Value::Number))
        }
        AnyValue { value: Some(Attribute::StringValue(text)) } => Some(text.clone().into()),
        AnyValue { value: Some(Attribute::IntValue(whole)) } => number(Number::AsInt(*whole)),
        AnyValue { value: Some(Attribute::DoubleValue(float)) } => number(Number::AsDouble(*float)),
        _ => None,
    }
}

fn text(fields: &Map<String, Value>, name: &str) -> String {
    fields
        .get(name)
        .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        .unwrap_or_default()
}
