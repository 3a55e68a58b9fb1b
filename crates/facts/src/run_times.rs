//! Run times of ended jobs, and from them how long a running one is likely to go on.
//!
//! A user's limit says little: most jobs end long before it. What a job of the same user and name
//! took before says more, and where there are too few of those, jobs of the same user and size, of
//! the same team and size, of the same size, of anybody. The distribution is taken as it is, given
//! that the job has already run for its age; nothing is fitted.
//!
//! A job that has outlasted all others is expected to go on for as long as it has run, within a
//! wide interval: what a scale-free prior says of a lifetime seen at a random moment (J. R. Gott,
//! Nature 363, 1993).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_autopilot::pairs;
use tidegate_events::JobFamily;

/// Bins per doubling of the run time: a bin is 19 % wide.
const PER_DOUBLING: f64 = 4.0;
/// Bins: up to 2^23 s, 97 days.
const BINS: usize = 92;
/// Ended jobs beyond an age that an estimate needs.
const ENOUGH: f64 = 10.0;
/// Sum of a distribution from which on older jobs fade: all counts are halved.
const FADES_AT: u32 = 2_048;
/// Least age at which a job without any like it gets an estimate, ms.
const LEAST_AGE_MS: i64 = 60_000;
/// Classes of jobs kept; beyond it those of fewer jobs than the median go.
const MAX_CLASSES: usize = 8_192;

/// How much longer a job is likely to run, ms: quantiles 0.1, 0.5 and 0.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// In one of ten cases it ends before.
    pub low_ms: i64,
    /// The median.
    pub median_ms: i64,
    /// In nine of ten cases it has ended.
    pub high_ms: i64,
}

/// Jobs that are alike: those with equal parts, where a part is stated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
struct Class(Option<String>, Option<String>, Option<String>, Option<u32>);

/// Distributions of run times by class of jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunTimes {
    #[serde(with = "pairs")]
    classes: BTreeMap<Class, Distribution>,
}

impl RunTimes {
    /// Probability that a job which has run for `age_ms` ends within the next `within_ms`.
    pub fn ends_within(&self, of: &JobFamily, gpus: u32, age_ms: i64, within_ms: i64) -> f64 {
        let known = |class: &Class| self.classes.get(class)?.ends_within(age_ms, within_ms);
        let scale_free = || within_ms as f64 / (age_ms.saturating_add(within_ms)).max(1) as f64;
        classes(of, gpus).iter().find_map(known).unwrap_or_else(scale_free)
    }

    /// Adds a job of `gpus` GPUs that ended after running for `ran_ms`.
    pub fn add(&mut self, of: &JobFamily, gpus: u32, ran_ms: i64) {
        for class in classes(of, gpus) {
            if !self.classes.contains_key(&class) && self.classes.len() >= MAX_CLASSES {
                self.drop_small();
            }
            self.classes.entry(class).or_default().add(ran_ms);
        }
    }

    fn drop_small(&mut self) {
        let mut sums: Vec<u32> = self.classes.values().map(|known| known.sum).collect();
        let half = sums.len() / 2;
        let (_, median, _) = sums.select_nth_unstable(half);
        let median = *median;
        self.classes.retain(|_, known| known.sum > median);
    }

    /// How much longer a job runs that has run for `age_ms`; the user's limit on its run time
    /// bounds it. `None`: it has just begun, and there are too few like it.
    pub fn remaining(
        &self,
        of: &JobFamily,
        gpus: u32,
        age_ms: i64,
        limit_ms: Option<i64>,
    ) -> Option<Remaining> {
        let known = |class: &Class| self.classes.get(class)?.remaining(age_ms);
        let found = classes(of, gpus).iter().find_map(known).or_else(|| outlasted(age_ms))?;
        let most_ms = limit_ms.map_or(i64::MAX, |limit| (limit - age_ms).max(0));
        Some(Remaining {
            low_ms: found.low_ms.min(most_ms),
            median_ms: found.median_ms.min(most_ms),
            high_ms: found.high_ms.min(most_ms),
        })
    }
}

/// P(remaining > r) = age / (age + r), so the quantiles are a ninth of the age, the age, and nine
/// times the age.
fn outlasted(age_ms: i64) -> Option<Remaining> {
    (age_ms >= LEAST_AGE_MS).then(|| Remaining {
        low_ms: age_ms / 9,
        median_ms: age_ms,
        high_ms: age_ms.saturating_mul(9),
    })
}

/// Classes of a job, the most specific first. A job without a team, user or name has fewer.
fn classes(of: &JobFamily, gpus: u32) -> Vec<Class> {
    let (team, user, name) = (of.team.clone(), of.user_name.clone(), of.job_name.clone());
    // Sizes of one power of two are alike.
    let size = Some(gpus.max(1).ilog2());
    let mut classes = Vec::new();
    if user.is_some() && name.is_some() {
        classes.push(Class(team.clone(), user.clone(), name, None));
    }
    if user.is_some() {
        classes.push(Class(team.clone(), user, None, size));
    }
    if team.is_some() {
        classes.push(Class(team, None, None, size));
    }
    classes.extend([Class(None, None, None, size), Class::default()]);
    classes
}

/// Counts by run time, in bins of equal width on a logarithmic scale; `(bin, jobs)`, ascending.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Distribution {
    bins: BTreeMap<u8, u32>,
    sum: u32,
}

impl Distribution {
    fn add(&mut self, ran_ms: i64) {
        *self.bins.entry(bin(ran_ms) as u8).or_default() += 1;
        self.sum += 1;
        if self.sum >= FADES_AT {
            self.bins.values_mut().for_each(|jobs| *jobs /= 2);
            self.bins.retain(|_, jobs| *jobs > 0);
            self.sum = self.bins.values().sum();
        }
    }

    /// Jobs that reached an age, by the bin of their run time. Of the bin in which the age lies,
    /// the part above it counts. `None`: too few.
    fn survivors(&self, age_ms: i64) -> Option<Vec<(usize, f64)>> {
        let (age_bin, part) = bin_and_part(age_ms);
        let above = |(at, jobs): (&u8, &u32)| {
            let kept = if usize::from(*at) == age_bin { 1.0 - part } else { 1.0 };
            (usize::from(*at), f64::from(*jobs) * kept)
        };
        let survivors: Vec<(usize, f64)> = self.bins.range(age_bin as u8..).map(above).collect();
        (sum(&survivors) >= ENOUGH).then_some(survivors)
    }

    fn ends_within(&self, age_ms: i64, within_ms: i64) -> Option<f64> {
        let survivors = self.survivors(age_ms)?;
        let ((first, skipped), (last, part)) =
            (bin_and_part(age_ms), bin_and_part(age_ms.saturating_add(within_ms)));
        let left = |(at, jobs): &(usize, f64)| match at.cmp(&last) {
            Ordering::Less => 0.0,
            // Of the bin of the age, only a part is there.
            Ordering::Equal if last == first => (jobs / (1.0 - skipped) * (1.0 - part)).min(*jobs),
            Ordering::Equal => jobs * (1.0 - part),
            Ordering::Greater => *jobs,
        };
        Some(1.0 - survivors.iter().map(left).sum::<f64>() / sum(&survivors))
    }

    fn remaining(&self, age_ms: i64) -> Option<Remaining> {
        let (age_bin, part) = bin_and_part(age_ms);
        let survivors = self.survivors(age_ms)?;
        let sum = sum(&survivors);
        let quantile = |level: f64| {
            let mut left = level * sum;
            for (at, jobs) in &survivors {
                if left <= *jobs {
                    let from = if *at == age_bin { part } else { 0.0 };
                    let within = from + (1.0 - from) * left / jobs.max(f64::MIN_POSITIVE);
                    return (time_ms(*at as f64 + within) - age_ms).max(0);
                }
                left -= jobs;
            }
            (time_ms(BINS as f64) - age_ms).max(0)
        };
        Some(Remaining { low_ms: quantile(0.1), median_ms: quantile(0.5), high_ms: quantile(0.9) })
    }
}

/// Position of a run time on the scale of bins; 0 is a second.
fn position(ran_ms: i64) -> f64 {
    (ran_ms.max(1_000) as f64 / 1e3).log2() * PER_DOUBLING
}

/// The bin of a run time, and how much of it lies below.
fn bin_and_part(ran_ms: i64) -> (usize, f64) {
    let bin = bin(ran_ms);
    let part = if ran_ms <= 1_000 { 0.0 } else { position(ran_ms) - bin as f64 };
    (bin, part.clamp(0.0, 1.0))
}

fn sum(jobs: &[(usize, f64)]) -> f64 {
    jobs.iter().map(|(_, jobs)| jobs).sum()
}

fn bin(ran_ms: i64) -> usize {
    (position(ran_ms) as usize).min(BINS - 1)
}

fn time_ms(position: f64) -> i64 {
    ((position / PER_DOUBLING).exp2() * 1e3) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn of(team: &str, user: &str, name: &str) -> JobFamily {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        JobFamily { team: some(team), user_name: some(user), job_name: some(name), gpu_model: None }
    }

    #[test]
    fn a_job_goes_on_as_long_as_those_like_it_that_reached_its_age() {
        let mut times = RunTimes::default();
        let train = of("vision", "ann", "train");
        // Half of them fail within a minute, the others run for about ten hours.
        for n in 0..40 {
            times.add(&train, 8, 30_000 + n * 100);
            times.add(&train, 8, 10 * HOUR_MS + n * 60_000);
        }
        let new = times.remaining(&train, 8, 0, None).unwrap();
        assert!(new.low_ms < 60_000 && new.high_ms > 9 * HOUR_MS, "{new:?}");
        let old = times.remaining(&train, 8, HOUR_MS, None).unwrap();
        assert!(old.low_ms > 8 * HOUR_MS && old.high_ms < 11 * HOUR_MS, "{old:?}");
        assert!(old.low_ms <= old.median_ms && old.median_ms <= old.high_ms);
        let limited = times.remaining(&train, 8, HOUR_MS, Some(4 * HOUR_MS)).unwrap();
        assert_eq!((limited.low_ms, limited.high_ms), (3 * HOUR_MS, 3 * HOUR_MS));
        let outlasted = times.remaining(&train, 8, 18 * HOUR_MS, None).unwrap();
        let wide = (2 * HOUR_MS, 18 * HOUR_MS, 162 * HOUR_MS);
        assert_eq!((outlasted.low_ms, outlasted.median_ms, outlasted.high_ms), wide);
        assert_eq!(RunTimes::default().remaining(&train, 8, 0, None), None);
    }

    #[test]
    fn the_share_that_ends_soon_is_that_of_jobs_which_reached_the_age() {
        let mut times = RunTimes::default();
        let train = of("vision", "ann", "train");
        let within = |times: &RunTimes, age: i64, within: i64| {
            (times.ends_within(&train, 8, age * HOUR_MS, within * HOUR_MS) * 100.0).round()
        };
        assert_eq!(within(&times, 3, 1), 25.0, "of 3 hours, an hour more: scale-free");
        for n in 0..40 {
            times.add(&train, 8, HOUR_MS + n * 60_000);
            times.add(&train, 8, 10 * HOUR_MS + n * 60_000);
        }
        // Half of them end within two hours; of those that reached three, none before ten.
        assert_eq!((within(&times, 0, 3), within(&times, 3, 5), within(&times, 3, 9)), (50.0, 0.0, 100.0));
        // Within the bin from 77,936 to 92,682 s, a job ends after half of what is left of it.
        let mut long = RunTimes::default();
        (0..40).for_each(|_| long.add(&train, 8, 80_000_000));
        let soon = |age_s: i64, within_s: i64| long.ends_within(&train, 8, age_s * 1_000, within_s * 1_000);
        let half = soon(84_990, 3_700);
        assert!((0.45..0.55).contains(&half), "{half}");
    }

    #[test]
    fn the_most_specific_class_with_enough_jobs_counts() {
        let mut times = RunTimes::default();
        for _ in 0..20 {
            times.add(&of("vision", "ann", "short"), 8, HOUR_MS);
            times.add(&of("vision", "bob", "long"), 8, 30 * HOUR_MS);
        }
        let median = |job: &JobFamily, gpus| times.remaining(job, gpus, 0, None).unwrap().median_ms / HOUR_MS;
        assert!(median(&of("vision", "ann", "short"), 8) <= 1);
        // A new job of a user is like the user's others of its size, one of a new user like the
        // team's.
        assert!((25..=36).contains(&median(&of("vision", "bob", "new"), 8)));
        assert!((1..=30).contains(&median(&of("vision", "eve", "new"), 8)));
        assert!(median(&of("", "", ""), 64) >= 1, "anybody's, of whatever size");
    }

    #[test]
    fn classes_and_counts_stay_bounded() {
        let mut times = RunTimes::default();
        for n in 0..3 * MAX_CLASSES {
            times.add(&of("t", &format!("u{n}"), "x"), 1, HOUR_MS);
        }
        assert!(times.classes.len() <= MAX_CLASSES);
        assert!(times.classes[&Class::default()].sum < FADES_AT);
        assert_eq!(bin(i64::MAX), BINS - 1);
    }
}
