//! Asks for the values of some hours, and finds the device of each series.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_readings::dcgm::devices;
use tidegate_readings::dcgm::fields::Named;

use super::answer::Series;
use super::client::Client;
use super::refusal::Refusal;
use super::remote::SeriesQuery;
use super::remote::message::LabelMatcher;
use crate::error::{Reject, RejectCode};
use crate::rows::RAW_LIMIT_BYTES;
use crate::samples::held::{HeldSamples, NodeName};

/// Most values held at once; about 250 MiB.
const MOST_VALUES: usize = 6_000_000;
/// Longest label that names something, bytes.
const MOST_LABEL_BYTES: usize = 256;
/// Most bad series remembered of a window.
const MOST_BAD_SERIES: usize = 2_000;

/// What is asked of the server in each window.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub names: Vec<(String, Named)>,
    pub names_unused: Vec<String>,
    pub matchers: String,
    /// The same taken apart, where remote read is used.
    pub read_matchers: Option<Vec<LabelMatcher>>,
    pub step_ms: i64,
    pub node_label: Option<String>,
    pub cluster: String,
}

/// A series that names no device.
#[derive(Debug)]
pub(super) struct BadSeries {
    pub labels: String,
    pub reject: Reject,
    /// Its first time in the window.
    pub at_ms: i64,
}

/// Values of some hours.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub held: HeldSamples,
    pub values: u64,
    pub bad: Vec<BadSeries>,
}

impl Asked {
    /// Orders the names: fields in base units first, see [`HeldSamples::add_series`].
    pub(super) fn order(&mut self) {
        let is_base = |named: &Named| matches!(named, Named::Field(field) if field.base_unit);
        self.names.sort_by(|(one, a), (other, b)| (!is_base(a), one).cmp(&(!is_base(b), other)));
        self.names.dedup_by(|one, other| one.0 == other.0);
    }

    /// Asks for the values from `from_ms` up to, without, `to_ms`, and for those a step before.
    pub(super) fn window(&self, client: &mut Client, from_ms: i64, to_ms: i64) -> Result<Window, Refusal> {
        let mut window = Window::default();
        let span = (from_ms - self.step_ms, to_ms - self.step_ms, self.step_ms);
        for (name, named) in &self.names {
            let mut take = |series: Series<'_>| self.take(&mut window, name, *named, span, &series);
            match &self.read_matchers {
                Some(matchers) => {
                    client.read_last_values(&SeriesQuery { name, matchers, span }, &mut take)?;
                }
                None => {
                    let selector = format!("{name}{{{}}}", self.matchers);
                    client.last_values(&selector, span, &mut take)?;
                }
            }
        }
        Ok(window)
    }

    fn take(
        &self,
        window: &mut Window,
        name: &str,
        named: Named,
        (from_ms, to_ms, step_ms): (i64, i64, i64),
        series: &Series<'_>,
    ) -> Result<(), Refusal> {
        // A series of a single link.
        if series.label("nvlink").is_some() || series.values.is_empty() {
            return Ok(());
        }
        let mut values = Vec::with_capacity(series.values.len());
        for (seconds, text) in &series.values {
            let at_ms = (seconds * 1e3).round() as i64;
            let later = values.last().is_none_or(|(before, _)| *before < at_ms);
            if !(from_ms..=to_ms).contains(&at_ms) || at_ms % step_ms != 0 || !later {
                return Err(Refusal::Failed(format!(
                    "it answers with a time that was not asked for: {seconds}"
                )));
            }
            values.push((at_ms, *text));
        }
        let added = self.node_of(series).and_then(|node| {
            let scope = named.scope();
            let (device, _) = devices::device(|label| series.label(label), scope).map_err(str::to_owned)?;
            let texts = [Some(device.uuid.as_str()), Some(device.model.as_str()), device.mig_uuid.as_deref()];
            if texts.into_iter().flatten().any(|text| text.len() > MOST_LABEL_BYTES) {
                return Err(format!("a label that names the GPU has more than {MOST_LABEL_BYTES} bytes"));
            }
            let added = window.held.add_series(&node, &Arc::new(device), named, &values);
            added.map_err(|_| {
                format!("node {} has more than {} GPUs and MIG instances", node.1, devices::MAX_DEVICES)
            })
        });
        match added {
            Ok(()) => window.values += values.len() as u64,
            Err(reason) if window.bad.len() < MOST_BAD_SERIES => {
                let reject = Reject::new(RejectCode::BadSeries, reason);
                let at_ms = values[0].0.max(from_ms + step_ms);
                window.bad.push(BadSeries { labels: raw(name, &series.metric), reject, at_ms });
            }
            Err(_) => {}
        }
        if window.held.len() > MOST_VALUES {
            return Err(Refusal::TooMuch(format!("more than {MOST_VALUES} values in an hour")));
        }
        Ok(())
    }

    fn node_of(&self, series: &Series<'_>) -> Result<NodeName, String> {
        let node = match &self.node_label {
            Some(label) => series.label(label).ok_or_else(|| format!("it has no label {label}"))?,
            None => match series.label("Hostname").filter(|name| !name.is_empty()) {
                Some(name) => name,
                None => series
                    .label("instance")
                    .map(without_port)
                    .ok_or("it has neither Hostname nor instance")?,
            },
        };
        if node.is_empty() || node.len() > MOST_LABEL_BYTES {
            return Err(format!("its node's name is empty or has more than {MOST_LABEL_BYTES} bytes"));
        }
        Ok((self.cluster.clone(), node.to_owned()))
    }
}

fn without_port(instance: &str) -> &str {
    let port = |port: &str| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
    match instance.rsplit_once(':') {
        // An IPv6 address without brackets has no port.
        Some((host, end)) if port(end) && (!host.contains(':') || host.ends_with(']')) => host,
        _ => instance,
    }
}

/// The series as a person writes it, at most as long as the raw text of a dead letter.
fn raw(name: &str, labels: &BTreeMap<String, String>) -> String {
    let labels = labels.iter().filter(|(label, _)| *label != "__name__");
    let labels: Vec<_> = labels.map(|(label, value)| format!("{label}={value:?}")).collect();
    let mut text = format!("{name}{{{}}}", labels.join(","));
    text.truncate(text.floor_char_boundary(RAW_LIMIT_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_loses_its_port() {
        for (instance, host) in
            [("n1:9400", "n1"), ("n1", "n1"), ("[::1]:9400", "[::1]"), ("fe80::1", "fe80::1"), ("a:b", "a:b")]
        {
            assert_eq!(without_port(instance), host);
        }
    }
}
