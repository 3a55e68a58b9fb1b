//! Right-sizing: the smallest device slice that a job fits.

use serde::Serialize;

use super::{AdviceError, error::parameter};

/// Memory margin over the job's 99.9 % quantile: a job out of memory is lost.
const MEMORY_MARGIN: f64 = 1.15;
/// SM margin over the job's 95 % quantile: a job short of SMs is only slower.
const SM_MARGIN: f64 = 1.2;
/// Days and runs that must be measured.
const DAYS: f64 = 7.0;
const RUNS: u32 = 3;

/// A slice that a device can be split into.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slice {
    /// Its name, e.g. `2g.20gb`.
    pub name: String,
    /// Memory it offers, bytes.
    pub memory_bytes: u64,
    /// Share of the device's SMs, above 0, at most 1.
    pub sm_share: f64,
    /// Share of the device's cost, above 0, at most 1.
    pub cost_share: f64,
}

/// Usage of a job over all its devices and runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Usage {
    /// 99.9 % quantile of memory held, bytes ([`super::Histogram::quantile_above`]).
    pub memory_p999_bytes: f64,
    /// 95 % quantile of the share of active SMs, 0 to 1. Not of GPU utilisation, which one thread
    /// saturates.
    pub sm_p95: f64,
    /// Days measured.
    pub days: f64,
    /// Runs measured.
    pub runs: u32,
    /// The job spreads over devices that communicate, which slices cannot.
    pub collective: bool,
    /// GPU-hours a week.
    pub gpu_hours_weekly: f64,
}

/// Reason why no slice is advised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Less than a week or fewer than three runs.
    TooLittleSeen,
    /// The job needs devices that talk to each other.
    Collective,
    /// No slice smaller than a device fits.
    NeedsWholeDevice,
}

/// A slice that fits a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RightSize {
    /// The slice.
    pub slice: Slice,
    /// Its memory over the memory needed with margin; 1 is just enough.
    pub memory_room: f64,
    /// The same for SMs.
    pub sm_room: f64,
    /// GPU-hours saved a week: `(1 - cost share) * GPU-hours`.
    pub saved_gpu_hours_weekly: f64,
}

/// The cheapest of `slices` that fits `usage` with margin, or the reason why none is advised.
///
/// # Errors
/// Usage or slices out of range or not numbers; no slices.
pub fn right_size(usage: &Usage, slices: &[Slice]) -> Result<Result<RightSize, Refusal>, AdviceError> {
    check(usage, slices)?;
    if usage.collective {
        return Ok(Err(Refusal::Collective));
    }
    if usage.days < DAYS || usage.runs < RUNS {
        return Ok(Err(Refusal::TooLittleSeen));
    }
    let memory = usage.memory_p999_bytes * MEMORY_MARGIN;
    let sms = usage.sm_p95 * SM_MARGIN;
    let fits = |slice: &&Slice| {
        slice.cost_share < 1.0 && slice.memory_bytes as f64 >= memory && slice.sm_share >= sms
    };
    let cheapest = slices.iter().filter(fits).min_by(|one, other| {
        one.cost_share.total_cmp(&other.cost_share).then(one.memory_bytes.cmp(&other.memory_bytes))
    });
    let room = |has: f64, needs: f64| if needs > 0.0 { has / needs } else { f64::INFINITY };
    Ok(cheapest.ok_or(Refusal::NeedsWholeDevice).map(|slice| RightSize {
        memory_room: room(slice.memory_bytes as f64, memory),
        sm_room: room(slice.sm_share, sms),
        saved_gpu_hours_weekly: (1.0 - slice.cost_share) * usage.gpu_hours_weekly,
        slice: slice.clone(),
    }))
}

fn check(usage: &Usage, slices: &[Slice]) -> Result<(), AdviceError> {
    parameter("memory held in bytes", usage.memory_p999_bytes, "0 or more", |bytes| bytes >= 0.0)?;
    parameter("the share of SMs active", usage.sm_p95, "between 0 and 1", |share| {
        (0.0..=1.0).contains(&share)
    })?;
    parameter("days measured", usage.days, "0 or more", |days| days >= 0.0)?;
    parameter("GPU-hours a week", usage.gpu_hours_weekly, "0 or more", |hours| hours >= 0.0)?;
    if slices.is_empty() {
        return Err(AdviceError::Empty { what: "the list of slices" });
    }
    for slice in slices {
        parameter("a slice's SMs", slice.sm_share, "above 0 and at most 1", |share| {
            share > 0.0 && share <= 1.0
        })?;
        parameter("a slice's cost", slice.cost_share, "above 0 and at most 1", |share| {
            share > 0.0 && share <= 1.0
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn slices() -> Vec<Slice> {
        let slice = |name: &str, sevenths: u32, eighths: u64| Slice {
            name: name.to_owned(),
            memory_bytes: eighths * 10 * GB,
            sm_share: f64::from(sevenths) / 7.0,
            cost_share: f64::from(sevenths) / 7.0,
        };
        vec![slice("7g.80gb", 7, 8), slice("3g.40gb", 3, 4), slice("1g.10gb", 1, 1), slice("2g.20gb", 2, 2)]
    }

    const USAGE: Usage = Usage {
        memory_p999_bytes: 12e9,
        sm_p95: 0.2,
        days: 10.0,
        runs: 5,
        collective: false,
        gpu_hours_weekly: 70.0,
    };

    #[test]
    fn the_smallest_that_fits() {
        // 12 GB and a margin need 13.8 GB, 0.2 of the SMs 0.24: two sevenths do.
        let advice = right_size(&USAGE, &slices()).unwrap().unwrap();
        assert_eq!(advice.slice.name, "2g.20gb");
        assert!((advice.saved_gpu_hours_weekly - 50.0).abs() < 1e-9);
        assert!((advice.sm_room - 2.0 / 7.0 / 0.24).abs() < 1e-12);
        // 17.5 GB fit without the margin, but not with it.
        let tight = right_size(&Usage { memory_p999_bytes: 17.5e9, ..USAGE }, &slices()).unwrap().unwrap();
        assert_eq!(tight.slice.name, "3g.40gb");
    }

    #[test]
    fn and_when_none_is_advised() {
        let refusal = |usage| right_size(&usage, &slices()).unwrap().unwrap_err();
        assert_eq!(refusal(Usage { days: 6.9, ..USAGE }), Refusal::TooLittleSeen);
        assert_eq!(refusal(Usage { runs: 2, ..USAGE }), Refusal::TooLittleSeen);
        assert_eq!(refusal(Usage { collective: true, ..USAGE }), Refusal::Collective);
        assert_eq!(refusal(Usage { sm_p95: 0.9, ..USAGE }), Refusal::NeedsWholeDevice);
        assert!(right_size(&Usage { sm_p95: f64::NAN, ..USAGE }, &slices()).is_err());
        assert!(right_size(&USAGE, &[]).is_err());
    }
}
