//! The last sample of each step, as `last_over_time` has it.

use std::collections::BTreeMap;

use super::super::refusal::Refusal;
use super::message::Label;

/// Most values of an answer: as many as are held of an hour.
const MOST_VALUES: usize = 6_000_000;
/// What a scrape writes where a series is no more: a NaN of its own.
const STALE: u64 = 0x7ff0_0000_0000_0002;

/// A series, by step.
#[derive(Debug, PartialEq)]
pub(in crate::prometheus) struct StepSeries {
    pub labels: BTreeMap<String, String>,
    /// End of the step, ms since the epoch, and the value as the HTTP API writes it.
    pub values: Vec<(i64, String)>,
}

/// Takes samples in.
pub(super) struct Steps {
    from_ms: i64,
    to_ms: i64,
    step_ms: i64,
    labels: Option<Vec<Label>>,
    /// By end of the step: time of the sample, and its value.
    current: BTreeMap<i64, (i64, f64)>,
    all: Vec<StepSeries>,
    values: usize,
}

impl Steps {
    pub fn new((from_ms, to_ms, step_ms): (i64, i64, i64)) -> Self {
        let (labels, current, all) = Default::default();
        Self { from_ms, to_ms, step_ms, labels, current, all, values: 0 }
    }

    /// The samples that follow are of this series, which may be the same as before.
    ///
    /// # Errors
    /// There are too many values.
    pub fn begin(&mut self, labels: Vec<Label>) -> Result<(), Refusal> {
        if self.labels.as_ref() != Some(&labels) {
            self.end_series()?;
            self.labels = Some(labels);
        }
        Ok(())
    }

    /// Takes a sample. Chunks reach beyond what was asked for, and may overlap.
    pub fn add(&mut self, at_ms: i64, value: f64) {
        if at_ms <= self.from_ms - self.step_ms || at_ms > self.to_ms || value.to_bits() == STALE {
            return;
        }
        let end_ms =
            self.from_ms + (at_ms - self.from_ms + self.step_ms - 1).div_euclid(self.step_ms) * self.step_ms;
        let last = self.current.entry(end_ms).or_insert((at_ms, value));
        if last.0 <= at_ms {
            *last = (at_ms, value);
        }
    }

    /// All series.
    ///
    /// # Errors
    /// There are too many values.
    pub fn finish(mut self) -> Result<Vec<StepSeries>, Refusal> {
        self.end_series()?;
        Ok(self.all)
    }

    fn end_series(&mut self) -> Result<(), Refusal> {
        let Some(labels) = self.labels.take() else { return Ok(()) };
        let steps = std::mem::take(&mut self.current);
        self.values += steps.len();
        if self.values > MOST_VALUES {
            return Err(Refusal::TooMuch(format!("more than {MOST_VALUES} values")));
        }
        // The name is not among the labels of a function's result either.
        let labels = labels.into_iter().filter(|label| label.name != "__name__");
        let labels = labels.map(|Label { name, value }| (name, value)).collect();
        let values = steps.into_iter().map(|(end_ms, (_, value))| (end_ms, written(value))).collect();
        self.all.push(StepSeries { labels, values });
        Ok(())
    }
}

/// A number as Prometheus' HTTP API writes it.
fn written(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(name: &str, value: &str) -> Label {
        Label { name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn the_last_sample_of_each_step_is_kept() {
        let mut steps = Steps::new((1_000, 3_000, 1_000));
        let gpu = vec![label("__name__", "x"), label("gpu", "0")];
        steps.begin(gpu.clone()).unwrap();
        for (at_ms, value) in [(0, 9.0), (1, 1.5), (1_000, 2.0), (1_001, f64::NAN), (3_001, 9.0)] {
            steps.add(at_ms, value);
        }
        // The series goes on in the next frame, with an overlap that is not in order.
        steps.begin(gpu).unwrap();
        steps.add(2_500, f64::INFINITY);
        steps.add(2_400, 7.0);
        steps.add(2_600, f64::from_bits(STALE));
        steps.begin(vec![label("gpu", "1")]).unwrap();
        let all = steps.finish().unwrap();
        let text = |end_ms: i64, value: &str| (end_ms, value.to_owned());
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].labels, [("gpu".to_owned(), "0".to_owned())].into());
        assert_eq!(all[0].values, [text(1_000, "2"), text(2_000, "NaN"), text(3_000, "+Inf")]);
        assert_eq!(all[1].values, []);
    }
}
