//! A metrics page (OpenMetrics text, as our own registry writes it) as OpenTelemetry's metrics, so
//! that a collector gets the figures that a scraper gets.
//!
//! A counter becomes a cumulative sum under the name of its family, without `_total`, which
//! Prometheus adds again to what it receives. Gauges stay gauges.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum, metric::Data,
};

use crate::resource::text;

/// When counting began, and when it was read, nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub began_ns: u64,
    pub read_ns: u64,
}

/// The families of a page that have samples. Lines that are none of counters and gauges, which our
/// registry does not write, are left out.
pub(crate) fn metrics(page: &str, span: Span) -> Vec<Metric> {
    let mut all: Vec<Metric> = Vec::new();
    let (mut help, mut kind) = (("", ""), ("", ""));
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap_or((rest, ""));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            kind = rest.split_once(' ').unwrap_or((rest, ""));
        } else if let Some((name, point)) = sample(line) {
            let (family, data) = match kind {
                (family, "counter") if name.strip_suffix("_total") == Some(family) => (family, sum()),
                (family, "gauge") if name == family => (family, Data::Gauge(Gauge::default())),
                _ => continue,
            };
            if all.last().is_none_or(|last| last.name != family) {
                let description = if help.0 == family { unescaped(help.1, false) } else { String::new() };
                let name = family.to_owned();
                all.push(Metric { name, description, data: Some(data), ..Metric::default() });
            }
            match all.last_mut().and_then(|metric| metric.data.as_mut()) {
                Some(Data::Sum(sum)) => sum.data_points.push(NumberDataPoint {
                    start_time_unix_nano: span.began_ns,
                    time_unix_nano: span.read_ns,
                    ..point
                }),
                Some(Data::Gauge(gauge)) => {
                    gauge.data_points.push(NumberDataPoint { time_unix_nano: span.read_ns, ..point });
                }
                _ => {}
            }
        }
    }
    all
}

fn sum() -> Data {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    Data::Sum(Sum { aggregation_temporality, is_monotonic: true, ..Sum::default() })
}

/// Name and value of a line of a sample.
fn sample(line: &str) -> Option<(&str, NumberDataPoint)> {
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let (attributes, rest) = match rest.strip_prefix('{') {
        Some(labels) => labels_of(labels)?,
        None => (Vec::new(), rest),
    };
    let number = rest.split_whitespace().next()?;
    let value = match number.parse::<i64>() {
        Ok(whole) => Value::AsInt(whole),
        Err(_) => Value::AsDouble(number.parse().ok()?),
    };
    Some((name, NumberDataPoint { attributes, value: Some(value), ..NumberDataPoint::default() }))
}

/// Labels up to the closing brace, and what is behind it.
fn labels_of(mut rest: &str) -> Option<(Vec<KeyValue>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels, behind));
        }
        let (name, value) = rest.split_once("=\"")?;
        let mut escaped = false;
        let end = value.char_indices().find(|(_, letter)| {
            let ends = *letter == '"' && !escaped;
            escaped = *letter == '\\' && !escaped;
            ends
        })?;
        labels.push(text(name.trim_start_matches(','), unescaped(&value[..end.0], true)));
        rest = &value[end.0 + 1..];
    }
}

/// Text without its backslashes: before a backslash, the letter n, and in labels a quotation mark.
fn unescaped(text: &str, quotes: bool) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let known = match (letter, letters.peek()) {
            ('\\', Some('\\')) => Some('\\'),
            ('\\', Some('n')) => Some('\n'),
            ('\\', Some('"')) if quotes => Some('"'),
            _ => None,
        };
        if known.is_some() {
            letters.next();
        }
        plain.push(known.unwrap_or(letter));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { began_ns: 10, read_ns: 20 };

    fn points(metric: &Metric) -> &[NumberDataPoint] {
        match &metric.data {
            Some(Data::Sum(sum)) => &sum.data_points,
            Some(Data::Gauge(gauge)) => &gauge.data_points,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn counters_and_gauges_keep_their_labels_and_times() {
        let page = "# HELP taken Records taken\\nin.\n# TYPE taken counter\ntaken_total{topic=\"a\\\"b\\\\\",n=\"x,y}\"} 7\n\
                    taken_total{topic=\"c\",n=\"\"} 9007199254740993\n# HELP lag Behind.\n# TYPE lag gauge\nlag -1.5\n# EOF\n";
        let found = metrics(page, SPAN);
        let [taken, lag] = &found[..] else { panic!("{found:?}") };
        assert_eq!((taken.name.as_str(), taken.description.as_str()), ("taken", "Records taken\nin."));
        let [one, other] = points(taken) else { panic!("{taken:?}") };
        assert_eq!(one.attributes, [text("topic", "a\"b\\"), text("n", "x,y}")]);
        assert_eq!(
            (one.value, one.start_time_unix_nano, one.time_unix_nano),
            (Some(Value::AsInt(7)), 10, 20)
        );
        // Beyond what a float holds exactly.
        assert_eq!(other.value, Some(Value::AsInt(9_007_199_254_740_993)));
        let Some(Data::Sum(sum)) = &taken.data else { panic!("{taken:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        assert_eq!((lag.name.as_str(), points(lag)[0].value), ("lag", Some(Value::AsDouble(-1.5))));
        assert_eq!(points(lag)[0].start_time_unix_nano, 0);
    }

    #[test]
    fn lines_that_make_no_sense_are_left_out() {
        let page = "# TYPE a counter\na 1\na_total{x=\"1} 1\na_total x\na_total\n\nb_total 3\n# TYPE h histogram\nh_count 1\n";
        assert_eq!(metrics(page, SPAN), Vec::new());
    }
}
