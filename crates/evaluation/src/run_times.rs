//! Expected ends on real traces: jobs of the past give the distribution, later ones are the truth.

use std::path::Path;

use tidegate_events::JobFamily;
use tidegate_facts::RunTimes;

use crate::trace::Jobs;

/// What came of the estimates for jobs that run at regular times.
#[derive(Debug, Default)]
struct Score {
    asked: usize,
    answered: usize,
    /// Ends within the two quantiles 0.1 and 0.9.
    within: usize,
    /// Ends before the median.
    below: usize,
}

/// At each full day, asks for the end of all jobs that run then, by what had ended until then. The
/// first half of the trace only teaches.
fn score(trace: Jobs) -> Score {
    const DAY_US: i64 = 86_400_000_000;
    let mut jobs = trace.read(Path::new("../tidegate/demo")).unwrap().arrivals;
    jobs.retain(|job| job.work_us > 0);
    let end_us = |at: usize, jobs: &[tidegate_sim::scenario::Arrival]| jobs[at].submit_us + jobs[at].work_us;
    let mut by_end: Vec<usize> = (0..jobs.len()).collect();
    by_end.sort_by_key(|at| end_us(*at, &jobs));
    let last_us = jobs.iter().map(|job| job.submit_us).max().unwrap();
    let family = |team: &str| JobFamily { team: Some(team.to_owned()), ..JobFamily::default() };
    let (mut times, mut score, mut ended) = (RunTimes::default(), Score::default(), 0);
    for now_us in (0..last_us).step_by(DAY_US as usize) {
        while ended < by_end.len() && end_us(by_end[ended], &jobs) <= now_us {
            let job = &jobs[by_end[ended]];
            times.add(&family(&job.team), job.gpus, job.work_us / 1_000);
            ended += 1;
        }
        if now_us < last_us / 2 {
            continue;
        }
        for job in jobs.iter().filter(|job| (job.submit_us..job.submit_us + job.work_us).contains(&now_us)) {
            let (age_ms, left_ms) =
                ((now_us - job.submit_us) / 1_000, (job.submit_us + job.work_us - now_us) / 1_000);
            score.asked += 1;
            let Some(left) = times.remaining(&family(&job.team), job.gpus, age_ms, None) else { continue };
            score.answered += 1;
            score.within += usize::from((left.low_ms..=left.high_ms).contains(&left_ms));
            score.below += usize::from(left_ms <= left.median_ms);
        }
    }
    score
}

#[test]
fn eight_of_ten_jobs_end_within_the_interval_that_is_stated() {
    for trace in [Jobs::Itp, Jobs::PhillyAttempts] {
        let Score { asked, answered, within, below } = score(trace);
        let share = |count: usize| count as f64 / answered as f64;
        println!(
            "{trace:?}: {asked} asked, {answered} answered, {:.3} within, {:.3} below",
            share(within),
            share(below)
        );
        assert!(answered > 200 && answered * 10 > asked * 8, "{trace:?}: {answered} of {asked}");
        assert!((0.7..0.9).contains(&share(within)), "{trace:?}: {:.3} within", share(within));
        assert!((0.35..0.65).contains(&share(below)), "{trace:?}: {:.3} below the median", share(below));
    }
}
