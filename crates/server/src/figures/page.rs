//! Rows as a page of gauges.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge as Series;
use prometheus_client::registry::Registry;
use serde_json::{Map, Value};
use tidegate_text::shown;

use super::{Figure, Rows};

/// Longest value of a label, characters: names come from outside.
const LABEL_CHARS: usize = 128;

type Labels = Vec<(String, String)>;
type Gauges = Family<Labels, Series<f64, AtomicU64>>;

/// The page in OpenMetrics: gauges of every figure that was answered, and of the page itself.
pub(super) fn text(
    prefix: &str,
    answered: &[(&Figure, Option<Rows>)],
    asked_s: f64,
    took: Duration,
) -> String {
    let mut registry = Registry::default();
    for (figure, rows) in answered {
        for gauge in figure.gauges {
            let family = Gauges::default();
            for row in rows.iter().flatten() {
                if let Some(value) = row.get(gauge.column).and_then(number) {
                    // Two names that are shown alike count together.
                    family.get_or_create(&labels(figure, row)).inc_by(value);
                }
            }
            registry.register(gauge.name, gauge.help, family);
        }
    }
    let of_page = registry.sub_registry_with_prefix(prefix);
    let (left_out, failed) = (Gauges::default(), Gauges::default());
    for (figure, rows) in answered {
        let name = vec![("figure".to_owned(), figure.name.to_owned())];
        failed.get_or_create(&name).set(if rows.is_none() { 1.0 } else { 0.0 });
        if let Some(rows) = rows {
            let of_all = rows.first().and_then(|row| row.get("of_all")).and_then(number);
            left_out.get_or_create(&name).set(of_all.map_or(0.0, |all| all - rows.len() as f64));
        }
    }
    let seconds = |value: f64| {
        let series = Series::<f64, AtomicU64>::default();
        series.set(value);
        series
    };
    let help = "Series that were left out, because there were more than the page may have";
    of_page.register("series_left_out", help, left_out);
    of_page.register("figure_failed", "1 if the query was not answered this time", failed);
    of_page.register(
        "asked_seconds",
        "When the figures were asked, seconds since the epoch",
        seconds(asked_s),
    );
    of_page.register("asking_seconds", "How long all queries took", seconds(took.as_secs_f64()));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes any text");
    text
}

/// An unknown label is empty, which is none to Prometheus.
fn labels(figure: &Figure, row: &Map<String, Value>) -> Labels {
    let label = |name: &&str| {
        let value = match row.get(*name) {
            Some(Value::String(text)) => shown(text).chars().take(LABEL_CHARS).collect(),
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        };
        ((*name).to_owned(), value)
    };
    figure.labels.iter().map(label).collect()
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).filter(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::super::{Figure, Gauge};
    use super::text;

    const HELD: Figure = Figure {
        name: "held",
        sql: "SELECT 1",
        labels: &["team", "pool"],
        gauges: &[Gauge { column: "gpus", name: "held_gpus", help: "GPUs that are held" }],
        most: 2,
    };

    fn rows(rows: Value) -> Vec<serde_json::Map<String, Value>> {
        serde_json::from_value(rows).unwrap()
    }

    #[test]
    fn rows_become_series_and_what_was_left_out_is_counted() {
        let long = "x".repeat(500);
        let rows = rows(json!([
            {"team": "a\"\n\u{1b}[2J", "gpus": 8.5, "of_all": 7},
            {"team": long, "pool": "p", "gpus": "3", "of_all": 7},
            {"team": "none", "of_all": 7},
        ]));
        let page = text("page", &[(&HELD, Some(rows))], 12.0, Duration::from_millis(1500));
        assert!(page.contains(r#"held_gpus{team="a\"\\n\\u{1b}[2J",pool=""} 8.5"#), "{page}");
        assert!(
            page.contains(&format!("held_gpus{{team=\"{}\",pool=\"p\"}} 3.0", "x".repeat(128))),
            "{page}"
        );
        assert!(!page.contains("team=\"none\""), "{page}");
        assert!(page.contains("page_series_left_out{figure=\"held\"} 4.0"), "{page}");
        assert!(page.contains("page_figure_failed{figure=\"held\"} 0.0"), "{page}");
        assert!(
            page.contains("page_asked_seconds 12.0") && page.contains("page_asking_seconds 1.5"),
            "{page}"
        );
    }

    #[test]
    fn a_figure_that_failed_has_no_series() {
        let page = text("page", &[(&HELD, None)], 0.0, Duration::ZERO);
        assert!(page.contains("page_figure_failed{figure=\"held\"} 1.0"), "{page}");
        assert!(!page.contains("held_gpus{") && !page.contains("left_out{"), "{page}");
    }

    #[test]
    fn the_bound_is_in_the_query() {
        let sql = "SELECT *, count(*) OVER () AS of_all FROM (SELECT 1) ORDER BY gpus DESC NULLS LAST, \"team\", \"pool\" LIMIT 2";
        assert_eq!(HELD.bounded_sql(), sql);
    }
}
