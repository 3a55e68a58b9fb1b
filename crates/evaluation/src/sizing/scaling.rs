//! Accuracy of scaling curves: fitted on small sizes, tested on larger ones.

use serde::Serialize;
use tidegate_insight::advice::scaling::{Curve, Observations, Size};

use super::{Profile, SizingEvaluationError};

/// Errors of a curve on held-out sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScalingRow {
    /// Model and hardware.
    pub name: String,
    /// Largest fitted number of GPUs.
    pub fitted_gpus: u32,
    /// Fitted sizes.
    pub fitted: usize,
    /// Held-out sizes, all larger than any fitted.
    pub held_out: usize,
    /// Largest held-out number of GPUs.
    pub held_out_gpus: u32,
    /// Median and 90 % quantile of the relative error in throughput.
    pub error_median: f64,
    /// See `error_median`.
    pub error_p90: f64,
    /// The same for linear scaling from the largest fitted size of that batch.
    pub linear_median: f64,
    /// Share of held-out sizes within their 10 % to 90 % interval.
    pub covered: f64,
}

/// Fits each profile on sizes of at most `fitted_gpus` GPUs, with every second batch where a size
/// has many, and tests it on all larger ones. Profiles without larger sizes, or with fewer than
/// three smaller numbers of GPUs, are dropped.
///
/// # Errors
/// As the fit.
pub fn scaling_errors(
    profiles: &[Profile],
    fitted_gpus: u32,
) -> Result<Vec<ScalingRow>, SizingEvaluationError> {
    let mut rows = Vec::new();
    for profile in profiles {
        let (small, large): (Vec<_>, Vec<_>) =
            profile.steps.iter().copied().partition(|(size, _)| size.gpus <= fitted_gpus);
        if large.is_empty() || small.is_empty() {
            continue;
        }
        let mut observed = Observations::default();
        for &(size, step_s) in &small {
            observed.add(size, step_s, 1)?;
        }
        rows.push(score(profile, &Curve::fit(&observed)?, &small, &large)?);
    }
    Ok(rows)
}

fn score(
    profile: &Profile,
    curve: &Curve,
    small: &[(Size, f64)],
    large: &[(Size, f64)],
) -> Result<ScalingRow, SizingEvaluationError> {
    let throughput = |size: Size, step_s: f64| f64::from(size.gpus) * f64::from(size.local_batch) / step_s;
    let (mut errors, mut linear, mut covered) = (Vec::new(), Vec::new(), 0);
    for &(size, step_s) in large {
        let truth = throughput(size, step_s);
        let found = curve.throughput(size)?;
        errors.push((found.value / truth - 1.0).abs());
        covered += usize::from(found.low <= truth && truth <= found.high);
        let same_batch = small.iter().filter(|(fitted, _)| fitted.local_batch == size.local_batch);
        if let Some(&(largest, step_s)) = same_batch.max_by_key(|(fitted, _)| fitted.gpus) {
            let each = throughput(largest, step_s) / f64::from(largest.gpus);
            linear.push((each * f64::from(size.gpus) / truth - 1.0).abs());
        }
    }
    Ok(ScalingRow {
        name: profile.name.clone(),
        fitted_gpus: most(small),
        fitted: small.len(),
        held_out: large.len(),
        held_out_gpus: most(large),
        error_median: quantile(&mut errors, 0.5),
        error_p90: quantile(&mut errors, 0.9),
        linear_median: quantile(&mut linear, 0.5),
        covered: covered as f64 / large.len() as f64,
    })
}

fn most(steps: &[(Size, f64)]) -> u32 {
    steps.iter().map(|(size, _)| size.gpus).max().unwrap_or(0)
}

fn quantile(values: &mut [f64], level: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = (values.len().saturating_sub(1)) as f64 * level;
    values.get(at.round() as usize).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_of_the_form_is_predicted() {
        let step =
            |size: Size| 0.1 + 0.01 * f64::from(size.local_batch) + if size.gpus > 1 { 0.05 } else { 0.0 };
        let sizes = [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4), (32, 8)];
        let steps = sizes
            .into_iter()
            .flat_map(|(gpus, nodes)| [4, 8, 16].map(|local_batch| Size { gpus, nodes, local_batch }))
            .map(|size| (size, step(size)))
            .collect();
        let rows = scaling_errors(&[Profile { name: "made".to_owned(), steps }], 8).unwrap();
        assert_eq!((rows[0].fitted, rows[0].held_out), (12, 6));
        assert!(rows[0].error_median < 0.05, "{rows:?}");
    }
}
