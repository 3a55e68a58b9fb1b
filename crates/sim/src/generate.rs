//! Generators of synthetic arrivals, serving load and node faults, all drawn from a seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp, LogNormal, Normal};

use crate::{
    Checkpoint, DAY_US, Elastic, HOUR_US, JobSpec, MINUTE_US, PPM, SECOND_US, ServiceSpec, padded_estimate_us,
};

/// Sizes and run times of jobs: number of jobs, GPUs, mean and standard deviation of the logarithm
/// of seconds. From the 40,111 jobs of six Microsoft ITP clusters in
/// `ms_itp_jobs` (cut from `microsoft/elasticflow-traces`, MIT).
const SIZES: [(u32, u32, f64, f64); 7] = [
    (34_607, 1, 8.894, 1.137),
    (556, 2, 8.196, 1.552),
    (1_152, 4, 9.059, 1.608),
    (3_214, 8, 9.804, 1.382),
    (226, 16, 10.140, 2.101),
    (310, 32, 10.507, 1.767),
    (46, 64, 10.131, 1.574),
];

/// Parameters of generated jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrivals {
    /// Period in which jobs arrive.
    pub span_us: i64,
    /// Arriving work, as the GPUs it keeps busy on average.
    pub load_gpus: u32,
    /// Largest job.
    pub max_gpus: u32,
    /// Longest job.
    pub max_work_us: i64,
    /// Daily swing of the arrival rate: 0 is none, 1,000,000 goes down to zero at 02:00.
    pub tide_ppm: u32,
    /// Share of jobs of 8 GPUs and more that are elastic, between half and twice their size.
    pub elastic_ppm: u32,
    /// Share of jobs that write checkpoints (every half hour, 20 s each) and may run on borrowed
    /// nodes.
    pub loan_ppm: u32,
    /// Share of those that write one on notice.
    pub notice_ppm: u32,
    /// Number of teams, equally likely.
    pub teams: usize,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self {
            span_us: 7 * DAY_US,
            load_gpus: 200,
            max_gpus: 64,
            max_work_us: 2 * DAY_US,
            tide_ppm: 500_000,
            elastic_ppm: 300_000,
            loan_ppm: 800_000,
            notice_ppm: 700_000,
            teams: 1,
        }
    }
}

/// Generates jobs with the requested total work, sorted by submission. Submission times are
/// independent draws from the daily cycle, as in a Poisson process.
pub fn arrivals(of: &Arrivals, seed: u64) -> Vec<JobSpec> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let budget = i128::from(of.load_gpus) * i128::from(of.span_us);
    let (mut jobs, mut work) = (Vec::new(), 0i128);
    while work < budget {
        let job = draw_job(of, &mut rng);
        work += i128::from(job.gpus) * i128::from(job.work_us);
        jobs.push(job);
    }
    jobs.sort_by_key(|j| j.submit_us);
    jobs
}

fn draw_job(of: &Arrivals, rng: &mut ChaCha8Rng) -> JobSpec {
    let sizes: Vec<_> = SIZES.iter().filter(|s| s.1 <= of.max_gpus.max(1)).collect();
    let mut pick = rng.random_range(0..sizes.iter().map(|s| s.0).sum());
    let size = sizes.iter().find(|s| {
        let here = pick < s.0;
        pick = pick.saturating_sub(s.0);
        here
    });
    let (_, gpus, mean, deviation) = **size.expect("the draw is below the sum");
    let seconds: f64 = LogNormal::new(mean, deviation).expect("a deviation above 0").sample(rng);
    let work_us = ((seconds * SECOND_US as f64) as i64).clamp(MINUTE_US, of.max_work_us.max(MINUTE_US));
    let submit_us = draw_submit_us(of, rng);
    let loan = rng.random_range(0..PPM) < of.loan_ppm;
    let elastic = gpus >= 8 && rng.random_range(0..PPM) < of.elastic_ppm;
    let team = rng.random_range(0..of.teams.max(1));
    let on_notice = rng.random_range(0..PPM) < of.notice_ppm;
    JobSpec {
        estimate_us: padded_estimate_us(work_us),
        team,
        loan,
        elastic: elastic.then(|| Elastic { min_gpus: gpus / 2, max_gpus: gpus * 2, curve: 0 }),
        checkpoint: (loan || elastic).then_some(Checkpoint {
            every_us: HOUR_US / 2,
            cost_us: 20 * SECOND_US,
            on_notice,
        }),
        restart_us: 30 * SECOND_US,
        ..JobSpec::plain(submit_us, gpus, work_us)
    }
}

/// Draws a time from the daily cycle by rejection.
fn draw_submit_us(of: &Arrivals, rng: &mut ChaCha8Rng) -> i64 {
    loop {
        let at_us = rng.random_range(0..of.span_us.max(1));
        let accept = 1.0 - f64::from(of.tide_ppm) / f64::from(PPM) * (1.0 - tide(at_us));
        if rng.random::<f64>() < accept {
            return at_us;
        }
    }
}

/// The daily cycle: 0 at 02:00, 1 at 14:00.
fn tide(at_us: i64) -> f64 {
    let hours = at_us.rem_euclid(DAY_US) as f64 / HOUR_US as f64;
    0.5 - 0.5 * ((hours - 2.0) / 24.0 * std::f64::consts::TAU).cos()
}

/// Parameters of a generated serving load.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Length of the load.
    pub span_us: i64,
    /// Length of a step.
    pub step_us: i64,
    /// GPUs at the peak of a working day, without noise.
    pub peak_gpus: u32,
    /// Share of the peak that remains at night. Below a half, as Runway reports of its inference
    /// (Borrowing the Night, 2026).
    pub trough_ppm: u32,
    /// Swing at the weekend, as a share of that on a working day.
    pub weekend_ppm: u32,
    /// Standard deviation of the noise, as a share of the load. The noise is autocorrelated with a
    /// time constant of an hour.
    pub noise_ppm: u32,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            span_us: 7 * DAY_US,
            step_us: 5 * MINUTE_US,
            peak_gpus: 100,
            trough_ppm: 400_000,
            weekend_ppm: 700_000,
            noise_ppm: 40_000,
        }
    }
}

/// Generates the demand of a pool's service: a daily cycle, weaker at weekends (days 5 and 6 of
/// each week), and autocorrelated noise.
pub fn load(of: &Load, pool: usize, seed: u64) -> ServiceSpec {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5e12_f1de);
    let normal = Normal::new(0.0, 1.0).expect("a deviation of 1");
    let keep = (-(of.step_us as f64) / HOUR_US as f64).exp();
    let share = |ppm: u32| f64::from(ppm) / f64::from(PPM);
    let mut noise = 0.0;
    let step = |step: i64| {
        let at_us = step * of.step_us;
        let weekend = at_us.div_euclid(DAY_US).rem_euclid(7) >= 5;
        let swing =
            (1.0 - share(of.trough_ppm)) * tide(at_us) * if weekend { share(of.weekend_ppm) } else { 1.0 };
        noise = keep * noise + (1.0 - keep * keep).sqrt() * normal.sample(&mut rng);
        let level = f64::from(of.peak_gpus) * (share(of.trough_ppm) + swing);
        (level * (1.0 + share(of.noise_ppm) * noise)).round().max(0.0) as u32
    };
    let demand_gpus = (0..of.span_us / of.step_us).map(step).collect();
    ServiceSpec { pool, demand_gpus, step_us: of.step_us }
}

/// A failure of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When it fails.
    pub at_us: i64,
    /// The node, by index.
    pub node: u32,
    /// Time to repair.
    pub repair_us: i64,
}

/// Generates node faults at the rate of `stepfun_node_faults` (`stepfun-ai/InfiniteHBD-Trace`,
/// Apache-2.0): 333 in 400 nodes and 200 days, so one in 240 node-days. Repairs take hours,
/// lognormal with a mean logarithm of 3.21 and a deviation of 2.49, as there; none takes more than
/// 30 days.
/// `times_ppm` scales the rate.
pub fn faults(nodes: u32, span_us: i64, times_ppm: u32, seed: u64) -> Vec<Fault> {
    const NODE_DAYS: f64 = 240.2;
    if nodes == 0 || times_ppm == 0 {
        return Vec::new();
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xfa17);
    let per_us = f64::from(nodes) * f64::from(times_ppm) / f64::from(PPM) / (NODE_DAYS * DAY_US as f64);
    let gap = Exp::new(per_us).expect("a rate above 0");
    let hours = LogNormal::new(3.21, 2.49).expect("a deviation above 0");
    let mut faults = Vec::new();
    let mut at_us = gap.sample(&mut rng) as i64;
    while at_us < span_us {
        let node = rng.random_range(0..nodes);
        let repair_us = ((hours.sample(&mut rng) * HOUR_US as f64) as i64).clamp(MINUTE_US, 30 * DAY_US);
        faults.push(Fault { at_us, node, repair_us });
        at_us += (gap.sample(&mut rng) as i64).max(1);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_carry_the_load_that_was_asked_for() {
        let of = Arrivals { load_gpus: 300, span_us: 10 * DAY_US, ..Arrivals::default() };
        let jobs = arrivals(&of, 7);
        let work: i128 = jobs.iter().map(|j| i128::from(j.gpus) * i128::from(j.work_us)).sum();
        let gpus = work as f64 / of.span_us as f64;
        // The last job drawn goes beyond by at most 64 GPUs for two days.
        assert!((300.0..313.0).contains(&gpus), "{gpus}");
        assert!(jobs.windows(2).all(|w| w[0].submit_us <= w[1].submit_us));
        let single = jobs.iter().filter(|j| j.gpus == 1).count() as f64 / jobs.len() as f64;
        assert!((single - 34_607.0 / 40_111.0).abs() < 0.02, "{single}");
        // With a swing of one half the rate at 14:00 is twice that at 02:00.
        let at = |hour: i64| jobs.iter().filter(|j| j.submit_us % DAY_US / HOUR_US == hour).count() as f64;
        let ratio = (at(13) + at(14)) / (at(1) + at(2));
        assert!((1.6..2.5).contains(&ratio), "{ratio}");
        assert_eq!(jobs, arrivals(&of, 7));
        assert_ne!(jobs, arrivals(&of, 8));
    }

    #[test]
    fn load_swings_between_trough_and_peak() {
        let service = load(&Load { noise_ppm: 0, ..Load::default() }, 1, 3);
        assert_eq!(service.demand_gpus.len(), 7 * 288);
        assert_eq!((service.demand_at(2 * HOUR_US), service.demand_at(14 * HOUR_US)), (40, 100));
        // Saturday's peak: 40 + 60 × 0.7.
        assert_eq!(service.demand_at(5 * DAY_US + 14 * HOUR_US), 82);
    }

    #[test]
    fn faults_are_as_frequent_as_in_the_trace() {
        // 1,000 nodes, 200 days: 832 expected, standard deviation 29.
        let found = faults(1_000, 200 * DAY_US, PPM, 1);
        assert!((740..925).contains(&found.len()), "{}", found.len());
        let mut hours: Vec<i64> = found.iter().map(|f| f.repair_us / HOUR_US).collect();
        hours.sort_unstable();
        // The median of the lognormal is e^3.21 = 24.8 hours.
        assert!((18..34).contains(&hours[hours.len() / 2]), "{}", hours[hours.len() / 2]);
    }
}
