//! History of a series, with gaps filled and outages distinguished from lost demand.

use serde::{Deserialize, Serialize};

/// Values by step, without holes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct History {
    day: usize,
    /// Gaps and outages filled.
    values: Vec<f64>,
    /// As observed; gaps filled.
    raw: Vec<f64>,
    /// Number of observed steps.
    known: usize,
    peak: f64,
    outages: bool,
    outage: Option<Outage>,
    /// Steps near zero that were no outage.
    idle: usize,
}

/// A sudden drop to zero that has not ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Outage {
    start: usize,
    level: f64,
}

/// Share of the level that counts as zero.
const NOTHING: f64 = 0.02;

impl History {
    /// `day`: steps a day. `outages`: a sudden drop of the whole series to zero counts as an outage
    /// for up to two days.
    pub(super) fn new(day: usize, outages: bool) -> Self {
        Self { day, values: Vec::new(), raw: Vec::new(), known: 0, peak: 0.0, outages, outage: None, idle: 0 }
    }

    /// Adds a step. `None`, NaN, an infinite or negative value is a gap, filled with the value a
    /// day before.
    pub(super) fn push(&mut self, value: Option<f64>) {
        let Some(value) = value.filter(|v| v.is_finite() && *v >= 0.0) else {
            // A series starts with its first value.
            if self.known > 0 {
                let filler = self.filler();
                self.values.push(filler);
                self.raw.push(filler);
            }
            return;
        };
        self.known += 1;
        self.peak = self.peak.max(value);
        match self.outage {
            Some(outage) => self.during(outage, value),
            None if self.starts_outage(value) => {
                self.outage = Some(Outage { start: self.values.len(), level: self.level() });
                self.values.push(self.filler());
            }
            None => {
                self.idle += usize::from(value <= NOTHING * self.level());
                self.values.push(value);
            }
        }
        self.raw.push(value);
    }

    fn during(&mut self, outage: Outage, value: f64) {
        let down = value <= NOTHING * outage.level;
        let long = self.values.len() - outage.start >= 2 * self.day;
        if down && !long {
            self.values.push(self.filler());
            return;
        }
        self.outage = None;
        if down || value < 0.3 * outage.level {
            // Demand really went away, so the filled values were wrong.
            self.idle += self.values.len() - outage.start;
            self.values.truncate(outage.start);
            self.values.extend_from_slice(&self.raw[outage.start..]);
        }
        self.values.push(value);
    }

    /// Whether an outage starts: at once, from a steady level, in a series that is never idle.
    /// Small teams go idle every night, clusters do not.
    fn starts_outage(&self, value: f64) -> bool {
        let n = self.values.len();
        if !self.outages || n < 3 * self.day || value > NOTHING * self.level() || self.idle > 0 {
            return false;
        }
        let recent = &self.values[n - 3 * self.day..];
        let mean = recent.iter().sum::<f64>() / recent.len() as f64;
        let least = recent.iter().copied().fold(f64::INFINITY, f64::min);
        mean > 0.0 && least >= 0.3 * mean
    }

    fn level(&self) -> f64 {
        self.values.last().copied().unwrap_or(0.0)
    }

    fn filler(&self) -> f64 {
        let n = self.values.len();
        if n >= self.day { self.values[n - self.day] } else { self.level() }
    }

    /// Steps of the series.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Values with gaps and outages filled.
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Steps observed.
    pub(super) fn known(&self) -> usize {
        self.known
    }

    /// Largest value observed.
    pub(super) fn peak(&self) -> f64 {
        self.peak
    }

    /// Steps since the start of an outage that has not ended.
    pub(super) fn down_for(&self) -> Option<usize> {
        self.outage.map(|o| self.values.len() - o.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(history: &mut History, steps: usize, value: f64) {
        for _ in 0..steps {
            history.push(Some(value));
        }
    }

    #[test]
    fn an_outage_is_filled_and_a_level_shift_is_kept() {
        let mut history = History::new(24, true);
        steady(&mut history, 100, 50.0);
        steady(&mut history, 5, 0.0);
        assert_eq!(history.down_for(), Some(5));
        assert_eq!(history.values()[102], 50.0);
        steady(&mut history, 1, 45.0);
        assert_eq!(history.values()[104..], [50.0, 45.0]);
        assert_eq!(history.down_for(), None);

        let mut gone = History::new(24, true);
        steady(&mut gone, 100, 50.0);
        steady(&mut gone, 60, 0.0);
        assert_eq!(gone.down_for(), None);
        assert_eq!(gone.values()[101], 0.0);
        assert_eq!(gone.len(), 160);
    }

    #[test]
    fn gaps_take_the_day_before_and_nonsense_is_a_gap() {
        let mut history = History::new(2, true);
        history.push(None);
        assert_eq!(history.len(), 0);
        for value in [1.0, 2.0] {
            history.push(Some(value));
        }
        for value in [f64::NAN, -4.0, f64::INFINITY] {
            history.push(Some(value));
        }
        assert_eq!(history.values(), [1.0, 2.0, 1.0, 2.0, 1.0]);
        assert_eq!((history.known(), history.peak()), (2, 2.0));
    }
}
