//! Hourly demand as an exact integral over the jobs' claims.

/// A job's claim: `gpus` over `[start, end)`, seconds from the trace's start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Claim {
    /// GPUs asked for; shared GPUs are fractions.
    pub gpus: f64,
    /// Submission.
    pub start: f64,
    /// End.
    pub end: f64,
}

/// Time-weighted mean of GPUs claimed in each of `hours` hours from hour `first` on: `gpus ×
/// overlap / 1 h` for every job. Exact, in O(jobs + hours): whole hours go through a difference
/// array.
pub fn hourly(claims: &[Claim], first: usize, hours: usize) -> Vec<f64> {
    let mut part = vec![0.0; hours];
    let mut whole = vec![0.0; hours + 1];
    let end_of_time = hours as f64;
    for claim in claims.iter().filter(|c| c.end > c.start && c.gpus.is_finite()) {
        let from = (claim.start / 3600.0 - first as f64).max(0.0);
        let to = (claim.end / 3600.0 - first as f64).min(end_of_time);
        if from >= to {
            continue;
        }
        let (a, b) = (from as usize, to as usize);
        if a == b {
            part[a] += claim.gpus * (to - from);
            continue;
        }
        part[a] += claim.gpus * ((a + 1) as f64 - from);
        if b < hours {
            part[b] += claim.gpus * (to - b as f64);
        }
        whole[a + 1] += claim.gpus;
        whole[b.min(hours)] -= claim.gpus;
    }
    let mut covering = 0.0;
    part.iter()
        .zip(&whole)
        .map(|(part, change)| {
            covering += change;
            // Differences of fractions leave rounding below zero.
            (part + covering).max(0.0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn brute(claims: &[Claim], first: usize, hours: usize) -> Vec<f64> {
        (first..first + hours)
            .map(|hour| {
                let (from, to) = (hour as f64 * 3600.0, (hour + 1) as f64 * 3600.0);
                claims.iter().map(|c| c.gpus * (c.end.min(to) - c.start.max(from)).max(0.0) / 3600.0).sum()
            })
            .collect()
    }

    #[test]
    fn a_claim_counts_by_its_share_of_each_hour() {
        let claim = Claim { gpus: 8.0, start: 1800.0, end: 3.25 * 3600.0 };
        assert_eq!(hourly(&[claim], 0, 4), [4.0, 8.0, 8.0, 2.0]);
        assert_eq!(hourly(&[claim], 1, 2), [8.0, 8.0]);
    }

    proptest! {
        #[test]
        fn the_integral_is_that_of_brute_force(
            jobs in prop::collection::vec((0u32..64, -100_000i32..400_000, 0i32..300_000), 0..40),
            first in 0usize..20,
        ) {
            let claims: Vec<Claim> = jobs.iter().map(|&(gpus, start, length)| Claim {
                gpus: f64::from(gpus),
                start: f64::from(start),
                end: f64::from(start) + f64::from(length),
            }).collect();
            for (fast, slow) in hourly(&claims, first, 48).iter().zip(brute(&claims, first, 48)) {
                prop_assert!((fast - slow).abs() < 1e-6, "{fast} {slow}");
            }
        }
    }
}
