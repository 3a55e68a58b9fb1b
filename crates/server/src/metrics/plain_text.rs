//! Converts OpenMetrics to Prometheus' older text format, for scrapers that do not ask for
//! OpenMetrics.

/// Converts a page. In the older format the help and type of a counter carry `_total`, as its
/// samples do, and no line marks the end.
pub(crate) fn as_plain_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        // The help of a family comes before its type.
        let next = lines.peek().copied().unwrap_or_default();
        let of_counter = |described: &str| {
            let (name, rest) = described.split_once(' ')?;
            let is_counter = rest == "counter" || next == format!("# TYPE {name} counter");
            is_counter.then(|| format!("{name}_total {rest}"))
        };
        let renamed = ["# HELP ", "# TYPE "].iter().find_map(|mark| {
            let described = line.strip_prefix(mark)?;
            Some(format!("{mark}{}", of_counter(described)?))
        });
        text.push_str(renamed.as_deref().unwrap_or(line));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::as_plain_text;

    #[test]
    fn counters_are_named_as_their_samples_are() {
        let open = "# HELP a Some.\n# TYPE a counter\na_total{x=\"# EOF\"} 1\n# HELP b Other.\n# TYPE b gauge\nb 2\n# EOF\n";
        let plain = "# HELP a_total Some.\n# TYPE a_total counter\na_total{x=\"# EOF\"} 1\n# HELP b Other.\n# TYPE b gauge\nb 2\n";
        assert_eq!(as_plain_text(open), plain);
    }
}
