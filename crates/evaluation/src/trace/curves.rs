//! Scaling curves of elastic jobs, from step times measured by Sia's authors.

use std::{collections::BTreeMap, path::Path};

use tidegate_autopilot::state::ScalingCurve;
use tidegate_insight::advice::scaling::Size;
use tidegate_sim::measured;

use super::TraceError;
use crate::sizing::{Profile, SizingEvaluationError, profiles};

/// GPUs that the global batch fills at the largest local batch.
const FILLS_GPUS: u32 = 8;

/// A curve for each model and kind of hardware in `sia_scaling_profiles`, by name, up to
/// `max_gpus`. The global batch is fixed at that of 8 GPUs with their largest local batch. More
/// GPUs have a smaller local batch, interpolated between measurements; fewer accumulate gradients
/// at the largest one. Of several placements the one on the fewest nodes counts. Profiles with
/// fewer than two such sizes are dropped.
///
/// # Errors
/// [`TraceError`] if the file is missing or has another form, or no profile is left.
pub fn curves(folder: &Path, max_gpus: u32) -> Result<Vec<(String, ScalingCurve)>, TraceError> {
    let profiles = profiles(folder).map_err(|error| match error {
        SizingEvaluationError::Read(error) => TraceError::Read(error),
        other => TraceError::Shape { what: other.to_string() },
    })?;
    let curve = |p: &Profile| Some((p.name.clone(), measured(&throughputs(p), max_gpus)?));
    let found: Vec<_> = profiles.iter().filter_map(curve).collect();
    match found.is_empty() {
        true => Err(TraceError::Shape {
            what: "sia_scaling_profiles has no model measured at two sizes; give the published file, or take Amdahl's law"
                .into(),
        }),
        false => Ok(found),
    }
}

/// GPUs, and samples a second at the fixed global batch.
fn throughputs(profile: &Profile) -> Vec<(u32, f64)> {
    // By number of GPUs: nodes, and step times by local batch.
    let mut sizes: BTreeMap<u32, (u32, BTreeMap<u32, Vec<f64>>)> = BTreeMap::new();
    for (Size { gpus, nodes, local_batch }, step_s) in &profile.steps {
        if *gpus == 0 || *local_batch == 0 || !(step_s.is_finite() && *step_s > 0.0) {
            continue;
        }
        let size = sizes.entry(*gpus).or_insert((*nodes, BTreeMap::new()));
        if *nodes < size.0 {
            *size = (*nodes, BTreeMap::new());
        }
        if *nodes == size.0 {
            size.1.entry(*local_batch).or_default().push(*step_s);
        }
    }
    let Some(largest) = sizes.values().filter_map(|(_, steps)| steps.keys().next_back()).max() else {
        return Vec::new();
    };
    let global = f64::from(*largest) * f64::from(FILLS_GPUS);
    let speed = |(gpus, (_, steps)): (&u32, &(u32, BTreeMap<u32, Vec<f64>>))| {
        let mean = |s: &Vec<f64>| s.iter().sum::<f64>() / s.len() as f64;
        let steps: Vec<(f64, f64)> = steps.iter().map(|(b, s)| (f64::from(*b), mean(s))).collect();
        let local = (global / f64::from(*gpus)).min(steps.last()?.0);
        Some((*gpus, f64::from(*gpus) * local / step_at(&steps, local)?))
    };
    sizes.iter().filter_map(speed).collect()
}

/// Step time at a local batch, interpolated; `None` below the smallest measured.
fn step_at(steps: &[(f64, f64)], local: f64) -> Option<f64> {
    let after = steps.iter().position(|(batch, _)| *batch >= local)?;
    let (batch, step_s) = steps[after];
    if batch == local {
        return Some(step_s);
    }
    let (before, before_s) = *steps.get(after.checked_sub(1)?)?;
    Some(before_s + (step_s - before_s) * (local - before) / (batch - before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_by_hand() {
        let at = |gpus, nodes, local_batch, step_s| (Size { gpus, nodes, local_batch }, step_s);
        let steps = vec![
            at(4, 1, 100, 1.0),
            at(4, 2, 100, 9.0),
            at(8, 1, 100, 1.25),
            at(16, 2, 40, 0.9),
            at(16, 2, 60, 1.1),
            at(64, 8, 40, 1.0),
        ];
        let profile = Profile { name: "made".into(), steps };
        // The global batch is 800: 4 GPUs do 400 a second (on one node), 8 do 640, 16 with 50 each
        // 16 × 50 / 1.0 = 800. 64 GPUs would have 12.5 each, below all measurements.
        assert_eq!(throughputs(&profile), [(4, 400.0), (8, 640.0), (16, 800.0)]);
    }
}
