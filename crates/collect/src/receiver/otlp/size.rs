//! Size of a request before it is decoded. Two bytes of a body can become a structure of hundreds
//! in memory, so what a body would become is counted first.

use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};

/// Most data points of a request: the lines that a user may send at once.
const MAX_POINTS: usize = 10_000;
/// Most attributes of a resource, scope or point; OpenTelemetry's SDKs send at most 128.
const MAX_ATTRIBUTES: usize = 128;
/// Most structures of a request: each takes some hundred bytes in memory. A MiB of points with six
/// attributes each has 42,000.
const MAX_STRUCTURES: usize = 65_536;
/// Most values of a JSON body; they cost less.
const MAX_VALUES: usize = 2 * MAX_STRUCTURES;
/// Deepest nesting. Attributes may hold lists of lists.
const MAX_DEPTH: usize = 24;

/// Checks how many structures a JSON body has, by its punctuation. That of texts counts too, which
/// errs on the safe side.
pub(super) fn check_json(body: &[u8]) -> Result<(), String> {
    let structures = body.iter().filter(|byte| matches!(byte, b'{' | b'[')).count();
    let values = body.iter().filter(|byte| matches!(byte, b',')).count();
    at_most(structures, MAX_STRUCTURES, "objects and lists")?;
    at_most(values, MAX_VALUES, "values")
}

/// Checks how many structures, points and attributes a Protobuf body has. A body that breaks off is
/// left to the decoder.
pub(super) fn check_protobuf(body: &[u8]) -> Result<(), String> {
    Count::default().message(Kind::Request, body, 0)
}

fn at_most(count: usize, most: usize, what: &str) -> Result<(), String> {
    match count <= most {
        true => Ok(()),
        false => Err(format!("it has more than {most} {what}; send fewer points at once")),
    }
}

#[derive(Default)]
struct Count {
    points: usize,
    structures: usize,
}

impl Count {
    fn message(&mut self, kind: Kind, mut bytes: &[u8], depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        let mut attributes = 0;
        while !bytes.is_empty() {
            let Ok((tag, part)) = field(&mut bytes) else { return Ok(()) };
            let (Some(part), Some(inner)) = (part, kind.inside(tag)) else { continue };
            self.structures += 1;
            self.points += usize::from(inner.is_point());
            attributes += usize::from(inner == Kind::Attribute);
            at_most(self.structures, MAX_STRUCTURES, "structures")?;
            at_most(self.points, MAX_POINTS, "data points")?;
            at_most(attributes, MAX_ATTRIBUTES, "attributes in one place")?;
            self.message(inner, part, depth + 1)?;
        }
        Ok(())
    }
}

/// The next field: its number, and its bytes if it may be a message.
fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Option<&'a [u8]>), ()> {
    let (tag, wire) = decode_key(bytes).map_err(drop)?;
    let length = match wire {
        WireType::Varint => return decode_varint(bytes).map(|_| (tag, None)).map_err(drop),
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => decode_varint(bytes).map_err(drop)?,
        // OTLP has no groups: the decoder passes over their content.
        WireType::StartGroup | WireType::EndGroup => 0,
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= bytes.remaining()).ok_or(())?;
    let (part, rest) = bytes.split_at(length);
    *bytes = rest;
    Ok((tag, (wire == WireType::LengthDelimited).then_some(part)))
}

/// A message of OTLP, by the numbers in its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Request,
    OfResource,
    Resource,
    Entity,
    OfScope,
    Scope,
    Metric,
    Numbers,
    Number,
    Histograms,
    Histogram,
    Exponentials,
    Exponential,
    Summaries,
    Summary,
    Exemplar,
    Attribute,
    Value,
    List,
    Map,
    /// Anything without further structures.
    Leaf,
}

impl Kind {
    fn is_point(self) -> bool {
        matches!(self, Self::Number | Self::Histogram | Self::Exponential | Self::Summary)
    }

    /// The message in a field; `None` for other fields.
    fn inside(self, tag: u32) -> Option<Self> {
        Some(match (self, tag) {
            (Self::Request, 1) => Self::OfResource,
            (Self::OfResource, 1) => Self::Resource,
            (Self::OfResource, 2) => Self::OfScope,
            (Self::Resource, 3) => Self::Entity,
            (Self::OfScope, 1) => Self::Scope,
            (Self::OfScope, 2) => Self::Metric,
            (Self::Metric, 5 | 7) => Self::Numbers,
            (Self::Metric, 9) => Self::Histograms,
            (Self::Metric, 10) => Self::Exponentials,
            (Self::Metric, 11) => Self::Summaries,
            (Self::Numbers, 1) => Self::Number,
            (Self::Histograms, 1) => Self::Histogram,
            (Self::Exponentials, 1) => Self::Exponential,
            (Self::Summaries, 1) => Self::Summary,
            (Self::Number, 5) | (Self::Histogram, 8) | (Self::Exponential, 11) => Self::Exemplar,
            (Self::Resource | Self::Exponential, 1)
            | (Self::Scope, 3)
            | (Self::Metric, 12)
            | (Self::Number | Self::Summary | Self::Exemplar, 7)
            | (Self::Histogram, 9)
            | (Self::Map, 1) => Self::Attribute,
            (Self::Attribute, 2) | (Self::List, 1) => Self::Value,
            (Self::Value, 5) => Self::List,
            (Self::Value, 6) => Self::Map,
            (Self::Entity, 3 | 4) | (Self::Summary, 6) => Self::Leaf,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
    use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
    use opentelemetry_proto::tonic::metrics::v1::metric::Data;
    use opentelemetry_proto::tonic::metrics::v1::{
        ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram, HistogramDataPoint, Metric,
        NumberDataPoint, ResourceMetrics, ScopeMetrics, Summary, SummaryDataPoint,
    };
    use prost::Message;

    use super::*;

    fn request(data: Data) -> Vec<u8> {
        let metric = Metric { data: Some(data), ..Metric::default() };
        let scope = ScopeMetrics { metrics: vec![metric], ..ScopeMetrics::default() };
        let resource = ResourceMetrics { scope_metrics: vec![scope], ..ResourceMetrics::default() };
        ExportMetricsServiceRequest { resource_metrics: vec![resource] }.encode_to_vec()
    }

    fn attributes(count: usize) -> Vec<KeyValue> {
        vec![KeyValue::default(); count]
    }

    /// Points of every kind, each with some attributes.
    fn requests(points: usize, each: usize) -> [Vec<u8>; 4] {
        let attributes = attributes(each);
        let number = NumberDataPoint { attributes: attributes.clone(), ..Default::default() };
        let histogram = HistogramDataPoint { attributes: attributes.clone(), ..Default::default() };
        let wide = ExponentialHistogramDataPoint { attributes: attributes.clone(), ..Default::default() };
        let summary = SummaryDataPoint { attributes, ..Default::default() };
        [
            request(Data::Gauge(Gauge { data_points: vec![number; points] })),
            request(Data::Histogram(Histogram {
                data_points: vec![histogram; points],
                ..Default::default()
            })),
            request(Data::ExponentialHistogram(ExponentialHistogram {
                data_points: vec![wide; points],
                ..Default::default()
            })),
            request(Data::Summary(Summary { data_points: vec![summary; points] })),
        ]
    }

    #[test]
    fn points_and_attributes_of_every_kind_are_counted() {
        for body in requests(5_000, 6) {
            assert_eq!(check_protobuf(&body), Ok(()));
        }
        for body in requests(10_001, 0) {
            assert!(check_protobuf(&body).unwrap_err().contains("more than 10000 data points"));
        }
        for body in requests(1, 129) {
            assert!(check_protobuf(&body).unwrap_err().contains("more than 128 attributes"));
        }
        for body in requests(600, 120) {
            assert!(check_protobuf(&body).unwrap_err().contains("more than 65536 structures"));
        }
    }

    #[test]
    fn nested_and_empty_structures_are_counted() {
        let empty = [0x0a, 0].repeat(70_000);
        assert!(check_protobuf(&empty).unwrap_err().contains("more than 65536 structures"));
        let mut value = AnyValue::default();
        for _ in 0..20 {
            value = AnyValue { value: Some(Attribute::ArrayValue(ArrayValue { values: vec![value] })) };
        }
        let deep = KeyValue { value: Some(value), ..KeyValue::default() };
        let point = NumberDataPoint { attributes: vec![deep], ..Default::default() };
        let body = request(Data::Gauge(Gauge { data_points: vec![point] }));
        assert!(check_protobuf(&body).unwrap_err().contains("nested"));
    }

    #[test]
    fn what_breaks_off_is_left_to_the_decoder() {
        let whole = requests(3, 2)[0].clone();
        for length in 0..whole.len() {
            assert_eq!(check_protobuf(&whole[..length]), Ok(()), "{length} bytes");
        }
        assert_eq!(check_protobuf(b"hello"), Ok(()));
    }

    #[test]
    fn json_is_counted_by_its_punctuation() {
        assert_eq!(check_json(b"{\"resourceMetrics\":[{},{}]}"), Ok(()));
        assert!(check_json(&b"{},".repeat(70_000)).unwrap_err().contains("objects and lists"));
        assert!(check_json(&b"0,".repeat(140_000)).unwrap_err().contains("values"));
    }
}
