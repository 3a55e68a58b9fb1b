//! Sharing: pairs of jobs that could use one device by turns.
//!
//! Limits, to be shown with every pair. Sharing isolates neither memory nor faults: a fault of one
//! ends both, unless the device is sliced. The estimate sees hours, not milliseconds: two jobs that
//! burst within the same second collide unseen. Caches and the host are ignored. The result is a
//! list of candidates to try, never to act on.

use serde::Serialize;

use super::{AdviceError, error::parameter};

/// Hours of a profile.
const HOURS: usize = 24;
/// Most memory of both together.
const MEMORY_LIMIT: f64 = 0.9;
/// Most SMs of both together in any hour.
const SM_LIMIT: f64 = 0.9;
/// Most memory bandwidth of both in any hour; about 0.8 is the practical maximum.
const BANDWIDTH_LIMIT: f64 = 0.7;

/// A job on one device, as a candidate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Neighbour {
    /// Name.
    pub job: String,
    /// Owner. Only jobs of one owner are paired, because memory is not isolated.
    pub owner: String,
    /// 99.9 % quantile of memory held, share of the device: 0 to 1.
    pub memory_p999: f64,
    /// 95 % quantile of SMs active by hour of the day: 24 shares.
    pub sm_p95: Vec<f64>,
    /// The same for the memory interface.
    pub bandwidth_p95: Vec<f64>,
    /// The job spreads over devices; its slowest rank sets the pace, so it is never paired.
    pub collective: bool,
}

/// Two jobs that fit on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// One job.
    pub first: String,
    /// The other job.
    pub second: String,
    /// Largest share of SMs that both ask for in one hour of the day.
    pub peak_sm: f64,
    /// Memory of both, share of the device.
    pub memory: f64,
    /// How far the sum of the peaks exceeds the peak of the sum: 0 if both peak together, larger
    /// the more they take turns.
    pub complementarity: f64,
}

/// Pairs jobs, each at most once, best complementarity first. At most `limit` jobs are considered,
/// in order of name, because the work grows with their square.
///
/// # Errors
/// A share outside 0..=1, or a profile that does not have 24 hours.
pub fn sharing_pairs(jobs: &[Neighbour], limit: usize) -> Result<Vec<Pair>, AdviceError> {
    for job in jobs {
        check(job)?;
    }
    let mut alone: Vec<&Neighbour> = jobs.iter().filter(|job| !job.collective).collect();
    alone.sort_by(|one, other| one.job.cmp(&other.job));
    alone.truncate(limit);
    let mut pairs = Vec::new();
    for (at, one) in alone.iter().enumerate() {
        pairs.extend(alone[at + 1..].iter().filter_map(|other| fit(one, other)));
    }
    // Stable: of equals the first by name.
    pairs.sort_by(|one, other| {
        other.complementarity.total_cmp(&one.complementarity).then(one.peak_sm.total_cmp(&other.peak_sm))
    });
    let mut taken = std::collections::BTreeSet::new();
    pairs.retain(|pair| {
        let free = !taken.contains(&pair.first) && !taken.contains(&pair.second);
        if free {
            taken.insert(pair.first.clone());
            taken.insert(pair.second.clone());
        }
        free
    });
    Ok(pairs)
}

fn fit(one: &Neighbour, other: &Neighbour) -> Option<Pair> {
    let together = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).fold(0.0, f64::max);
    let peak = |shares: &[f64]| shares.iter().copied().fold(0.0, f64::max);
    let memory = one.memory_p999 + other.memory_p999;
    let peak_sm = together(&one.sm_p95, &other.sm_p95);
    let bandwidth = together(&one.bandwidth_p95, &other.bandwidth_p95);
    let fits = one.owner == other.owner
        && one.job != other.job
        && memory <= MEMORY_LIMIT
        && peak_sm <= SM_LIMIT
        && bandwidth <= BANDWIDTH_LIMIT;
    fits.then(|| Pair {
        first: one.job.clone(),
        second: other.job.clone(),
        peak_sm,
        memory,
        complementarity: peak(&one.sm_p95) + peak(&other.sm_p95) - peak_sm,
    })
}

fn check(job: &Neighbour) -> Result<(), AdviceError> {
    let range = "between 0 and 1";
    parameter("memory held", job.memory_p999, range, |share| (0.0..=1.0).contains(&share))?;
    for (what, shares) in
        [("SMs active by hour", &job.sm_p95), ("memory bandwidth by hour", &job.bandwidth_p95)]
    {
        if shares.len() != HOURS {
            return Err(AdviceError::Length { what, got: shares.len(), expected: HOURS });
        }
        for share in shares {
            parameter(what, *share, range, |share| (0.0..=1.0).contains(&share))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, busy: std::ops::Range<usize>, sm: f64) -> Neighbour {
        let sm_p95: Vec<f64> = (0..24).map(|hour| if busy.contains(&hour) { sm } else { 0.1 }).collect();
        Neighbour {
            job: name.to_owned(),
            owner: "team".to_owned(),
            memory_p999: 0.4,
            bandwidth_p95: sm_p95.iter().map(|share| share / 2.0).collect(),
            sm_p95,
            collective: false,
        }
    }

    #[test]
    fn complementary_jobs_are_paired() {
        let jobs = [
            job("day", 8..20, 0.7),
            job("night", 0..8, 0.7),
            job("noon", 8..20, 0.7),
            job("idle", 0..0, 0.1),
        ];
        let pairs = sharing_pairs(&jobs, 100).unwrap();
        assert_eq!((pairs[0].first.as_str(), pairs[0].second.as_str()), ("day", "night"));
        assert!((pairs[0].complementarity - 0.6).abs() < 1e-12);
        assert_eq!((pairs[1].first.as_str(), pairs[1].second.as_str()), ("idle", "noon"));
        assert_eq!(pairs.len(), 2);
    }

    #[test]
    fn limits_are_kept() {
        let fits = |change: &dyn Fn(&mut Neighbour)| {
            let mut night = job("night", 0..8, 0.7);
            change(&mut night);
            sharing_pairs(&[job("day", 8..20, 0.7), night], 100).unwrap().len()
        };
        assert_eq!(fits(&|_| ()), 1);
        assert_eq!(fits(&|job| job.memory_p999 = 0.6), 0);
        assert_eq!(fits(&|job| job.collective = true), 0);
        assert_eq!(fits(&|job| job.owner = "others".to_owned()), 0);
        assert_eq!(fits(&|job| job.sm_p95[9] = 0.3), 0);
        assert_eq!(fits(&|job| job.bandwidth_p95[9] = 0.5), 0);
        let mut short = job("x", 0..1, 0.1);
        short.sm_p95.pop();
        assert!(sharing_pairs(&[short], 100).is_err());
    }
}
