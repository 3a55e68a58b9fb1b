//! Online demand: request rates of ServeGen and instances of Alibaba's recommendation services.

use std::{collections::BTreeMap, path::Path};

use tidegate_sim::{
    DAY_US, MINUTE_US,
    generate::{self, Load},
};

use super::{RowCounts, TraceError};
use crate::columns::Columns;

/// A trace of online demand, by its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// `servegen_load_10min`: requests a second of each model over 14 days. Models count equally:
    /// each as a share of its own peak, summed. A model that covers less than half of the time is
    /// dropped.
    Servegen,
    /// `alibaba_dlrm_instances`: present GPU instances (role HN) over 31 days; in each step the
    /// maximum.
    Dlrm,
}

/// Demand over time, as a share. The absolute level has no meaning where only some services are in
/// the trace.
#[derive(Debug, Clone, PartialEq)]
pub struct DemandTrace {
    /// Name of the file.
    pub file: &'static str,
    /// Demand of each step relative to the trace's maximum, 0 to 1.
    pub shares: Vec<f64>,
    /// Length of a step, µs.
    pub step_us: i64,
    /// Rows by outcome.
    pub rows: RowCounts,
}

const STEP_S: f64 = 600.0;

impl Demand {
    /// All traces, with their names in commands.
    pub const NAMED: [(&str, Self); 2] = [("servegen", Self::Servegen), ("dlrm", Self::Dlrm)];

    /// Reads the trace from a folder of files named as published.
    ///
    /// # Errors
    /// [`TraceError`] for a file that is missing or has another form, or without usable rows.
    pub fn read(self, folder: &Path) -> Result<DemandTrace, TraceError> {
        let (file, levels, rows) = match self {
            Self::Servegen => servegen(folder),
            Self::Dlrm => dlrm(folder),
        }?;
        let peak = levels.iter().copied().fold(0.0, f64::max);
        if peak <= 0.0 {
            return Err(TraceError::Empty { file, rows });
        }
        let shares = levels.iter().map(|level| level / peak).collect();
        Ok(DemandTrace { file, shares, step_us: 10 * MINUTE_US, rows })
    }
}

type Levels = (&'static str, Vec<f64>, RowCounts);

fn servegen(folder: &Path) -> Result<Levels, TraceError> {
    const FILE: &str = "servegen_load_10min";
    const STEPS: usize = 14 * 144;
    let file = Columns::read(folder, FILE)?;
    let (model, at, rate) = (file.texts("model")?, file.numbers("timestamp_s")?, file.numbers("rate_rps")?);
    let mut by_model: BTreeMap<&str, (usize, Vec<f64>)> = BTreeMap::new();
    let mut rows = RowCounts::default();
    for i in 0..at.len() {
        let step = (at[i] / STEP_S) as usize;
        if !(at[i] >= 0.0 && step < STEPS && rate[i].is_finite() && rate[i] >= 0.0) {
            rows.count("no time within 14 days or no rate");
            continue;
        }
        let (known, levels) = by_model.entry(&model[i]).or_insert_with(|| (0, vec![0.0; STEPS]));
        *known += 1;
        levels[step] += rate[i];
    }
    let last = by_model.values().flat_map(|(_, levels)| levels.iter().rposition(|rate| *rate > 0.0)).max();
    let steps = last.map_or(0, |last| last + 1);
    let mut sum = vec![0.0; steps];
    for (known, levels) in by_model.into_values() {
        let peak = levels.iter().copied().fold(0.0, f64::max);
        if known * 2 < steps || peak <= 0.0 {
            rows.add("of a model that covers less than half of the time", known);
            continue;
        }
        rows.add("used", known);
        sum.iter_mut().zip(&levels).for_each(|(sum, rate)| *sum += rate / peak);
    }
    Ok((FILE, sum, rows))
}

fn dlrm(folder: &Path) -> Result<Levels, TraceError> {
    const FILE: &str = "alibaba_dlrm_instances";
    const STEPS: usize = 31 * 144;
    let file = Columns::read(folder, FILE)?;
    let (role, gpus) = (file.texts("role")?, file.numbers("gpu_request")?);
    let (created, deleted) = (file.numbers("creation_time")?, file.numbers("deletion_time")?);
    let mut rows = RowCounts::default();
    // Changes by time, s; those of one time are merged.
    let mut changes: Vec<(i64, i64)> = Vec::new();
    for i in 0..role.len() {
        if role[i] != "HN" {
            rows.count("instances without a GPU");
            continue;
        }
        // Without a creation it existed before the trace; without a deletion, until after it.
        let from = if created[i].is_nan() { 0.0 } else { created[i] };
        let to = if deleted[i].is_nan() { STEPS as f64 * STEP_S } else { deleted[i] };
        if !(gpus[i] >= 1.0 && gpus[i] <= 1e6 && from >= 0.0 && to > from) {
            rows.count("no GPUs, or deleted before it was created");
            continue;
        }
        rows.count("used");
        changes.push((from as i64, gpus[i] as i64));
        changes.push((to.min(STEPS as f64 * STEP_S) as i64, -(gpus[i] as i64)));
    }
    changes.sort_unstable();
    Ok((FILE, most_in_steps(&changes, STEPS, STEP_S as i64), rows))
}

/// Maximum within each step of a level that starts at 0 and changes at the given times. Changes of
/// the same second are merged, so that an instance that replaces another does not count twice.
pub(super) fn most_in_steps(changes: &[(i64, i64)], steps: usize, step_s: i64) -> Vec<f64> {
    let (mut level, mut next) = (0i64, 0);
    let mut most = Vec::with_capacity(steps);
    for step in 0..steps as i64 {
        // Changes before the step only set its initial level.
        while next < changes.len() && changes[next].0 <= step * step_s {
            level += changes[next].1;
            next += 1;
        }
        let mut greatest = level;
        while next < changes.len() && changes[next].0 < (step + 1) * step_s {
            let at_s = changes[next].0;
            while next < changes.len() && changes[next].0 == at_s {
                level += changes[next].1;
                next += 1;
            }
            greatest = greatest.max(level);
        }
        most.push(greatest as f64);
    }
    most
}

impl DemandTrace {
    /// A month of artificial demand, always the same, for job traces without one.
    pub fn made_up() -> Self {
        let load = Load { span_us: 28 * DAY_US, peak_gpus: 10_000, ..Load::default() };
        let service = generate::load(&load, 0, 1);
        let peak = service.demand_gpus.iter().copied().max().unwrap_or(1).max(1);
        let shares = service.demand_gpus.iter().map(|gpus| f64::from(*gpus) / f64::from(peak)).collect();
        Self { file: "made-up", shares, step_us: service.step_us, rows: RowCounts::default() }
    }

    /// Length of the trace, µs.
    pub fn length_us(&self) -> i64 {
        self.step_us * self.shares.len() as i64
    }

    /// GPUs needed in each step of `[from_us, from_us + span_us)`, where the trace's maximum is
    /// `peak_gpus`. The trace repeats.
    pub fn window(&self, from_us: i64, span_us: i64, peak_gpus: u32) -> Vec<u32> {
        let (from, steps) = ((from_us / self.step_us) as usize, (span_us + self.step_us - 1) / self.step_us);
        let gpus = |share: &f64| (share * f64::from(peak_gpus)).ceil() as u32;
        self.shares.iter().cycle().skip(from % self.shares.len()).take(steps as usize).map(gpus).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_sim::SECOND_US;

    use super::*;

    #[test]
    fn the_most_in_a_step_counts_what_changes_within_it() {
        // 2 from the start; 3 at 50 s; 2 at 120 s, where one comes as another goes; none from 300 s
        // on.
        let changes = [(0, 2), (50, 1), (120, -1), (120, -1), (120, 1), (300, -2)];
        assert_eq!(most_in_steps(&changes, 4, 100), [3.0, 3.0, 2.0, 0.0]);
    }

    #[test]
    fn a_window_wraps_around() {
        let shares = vec![0.1, 0.5, 1.0];
        let trace = DemandTrace { file: "made", shares, step_us: 10 * SECOND_US, rows: RowCounts::default() };
        assert_eq!(trace.window(20 * SECOND_US, 40 * SECOND_US, 15), [15, 2, 8, 15]);
    }
}
