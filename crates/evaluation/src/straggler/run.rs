//! Runner: many jobs, each observed by all methods at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::Rng;

use super::method::{Alarm, Level, Method};
use super::options::Options;
use super::random::child;
use super::report::{Group, Measures, Report};
use super::rivals;
use super::scene::{Plan, Regime, Relevance, Stream, Truth};
use super::score::{JobScore, score};
use super::tidegate::Tidegate;
use tidegate_insight::straggler::Settings;

#[derive(Debug)]
struct Job {
    seed: u64,
    regime: Regime,
    dont_care: usize,
    scores: Vec<(&'static str, Level, JobScore)>,
}

/// Runs Tidegate's detector with and without step reports, and the rivals if asked.
pub fn run(options: Options) -> Report {
    run_with(options, |options| {
        let mut methods: Vec<Box<dyn Method>> =
            vec![Box::new(Tidegate::with(settings(options))), Box::new(Tidegate::by_counters())];
        methods.extend(if options.rivals { rivals::all() } else { Vec::new() });
        methods
    })
}

fn settings(options: &Options) -> Settings {
    Settings { evidence_lag_us: (options.evidence_lag_s * 1e6) as i64, ..Settings::default() }
}

/// Runs other methods, made anew for each job.
pub fn run_with(options: Options, make: impl Fn(&Options) -> Vec<Box<dyn Method>> + Sync) -> Report {
    let wanted: Vec<(u64, Regime)> = (options.seeds.0..options.seeds.1)
        .flat_map(|seed| options.regimes.iter().map(move |&regime| (seed, regime)))
        .collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                while let Some(&(seed, regime)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let job = score_job(seed, regime, &options, make(&options));
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(job);
                }
            });
        }
    });
    let mut jobs = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    jobs.sort_by_key(|job: &Job| (job.seed, job.regime));
    gather(options, &jobs)
}

/// Runs all methods on one job and scores them.
fn score_job(seed: u64, regime: Regime, options: &Options, mut methods: Vec<Box<dyn Method>>) -> Job {
    let (_, truth, alarms) = run_job(seed, regime, options, &mut methods);
    let scores = methods.iter().zip(&alarms).flat_map(|(method, alarms)| {
        let levels =
            if method.suspects() { &[Level::Suspect, Level::Confirmed][..] } else { &[Level::Confirmed] };
        levels.iter().map(|&level| (method.name(), level, score(&truth, alarms, level))).collect::<Vec<_>>()
    });
    // The nameless entry counts a job's events, whatever methods run.
    let scores = scores.chain([("", Level::Confirmed, score(&truth, &[], Level::Confirmed))]).collect();
    let dont_care = truth.events.iter().filter(|event| event.relevance == Relevance::DontCare).count();
    Job { seed, regime, dont_care, scores }
}

/// Runs all methods on one job. Returns its plan, its truth and the alarms by method.
pub fn run_job(
    seed: u64,
    regime: Regime,
    options: &Options,
    methods: &mut [Box<dyn Method>],
) -> (Plan, Truth, Vec<Vec<Alarm>>) {
    const TICK_US: i64 = 1_000_000;
    let lag_us = (options.lag_s * 1e6) as i64;
    let mut stream = Stream::draw(seed, regime, options.hours, options.noise);
    let mut alarms = vec![Vec::new(); methods.len()];
    let (mut next_us, mut now_us) = (i64::MIN, 0);
    let mut listen = |methods: &mut [Box<dyn Method>], now_us: i64| {
        for (method, alarms) in methods.iter_mut().zip(&mut alarms) {
            alarms.extend(method.take().into_iter().map(|alarm| Alarm { heard_us: now_us, ..alarm }));
        }
    };
    for message in &mut stream {
        now_us = message.arrival_us;
        if now_us >= next_us {
            methods.iter_mut().for_each(|method| method.advance(now_us - lag_us));
            next_us = now_us + TICK_US;
        }
        methods.iter_mut().for_each(|method| method.observe(&message));
        listen(methods, now_us);
    }
    methods.iter_mut().for_each(|method| method.advance(now_us + lag_us));
    listen(methods, now_us + lag_us);
    let plan = stream.plan().clone();
    (plan, stream.into_truth(), alarms)
}

/// Whether a job is in a group.
type Keep = fn(&Job) -> bool;

/// Groups of jobs: each regime, and their published mixes. In the mixes, sequences are uneven in
/// 21.4 % of the homogeneous jobs (OSDI'25), and 40 % of all jobs are heterogeneous; the jobs are
/// drawn by seed.
fn groups(regimes: &[Regime]) -> Vec<(&'static str, Keep)> {
    const B_OF_A: f64 = 0.214 / 0.786;
    const C_OF_A: f64 = (1.0 + B_OF_A) * 0.4 / 0.6;
    fn in_mix(job: &Job) -> bool {
        let draw: f64 = child(job.seed, job.regime.letter(), "mix").random();
        draw < match job.regime {
            Regime::A => 1.0,
            Regime::B => B_OF_A,
            Regime::C => C_OF_A,
        }
    }
    let all: [(&str, &[Regime], Keep); 5] = [
        ("A", &[Regime::A], |job| job.regime == Regime::A),
        ("B", &[Regime::B], |job| job.regime == Regime::B),
        ("C", &[Regime::C], |job| job.regime == Regime::C),
        ("A+B as mixed", &[Regime::A, Regime::B], |job| job.regime != Regime::C && in_mix(job)),
        ("A+B+C as mixed", &[Regime::A, Regime::B, Regime::C], in_mix),
    ];
    let there = |needed: &[Regime]| needed.iter().all(|regime| regimes.contains(regime));
    all.into_iter().filter(|(_, needed, _)| there(needed)).map(|(name, _, keep)| (name, keep)).collect()
}

fn gather(options: Options, jobs: &[Job]) -> Report {
    let (mut all, mut measures) = (Vec::new(), Vec::new());
    for (name, keep) in groups(&options.regimes) {
        let jobs: Vec<&Job> = jobs.iter().filter(|job| keep(job)).collect();
        let Some(first) = jobs.first() else { continue };
        for (at, &(method, level, _)) in first.scores.iter().enumerate() {
            let scores: Vec<&JobScore> = jobs.iter().map(|job| &job.scores[at].2).collect();
            if method.is_empty() {
                all.push(Group {
                    name,
                    jobs: jobs.len(),
                    job_hours: scores.iter().map(|score| score.hours).sum(),
                    gpu_hours: scores.iter().map(|score| score.gpu_hours).sum(),
                    events: scores.iter().map(|score| score.hits.len()).sum(),
                    dont_care: jobs.iter().map(|job| job.dont_care).sum(),
                });
            } else {
                measures.push(Measures::of(method, level, name, &scores));
            }
        }
    }
    Report { options, groups: all, measures }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_does_not_depend_on_threads() {
        let options = |threads| Options {
            seeds: (0, 3),
            regimes: vec![Regime::A, Regime::B],
            hours: Some(0.4),
            threads,
            ..Options::default()
        };
        let (one, two) = (run(options(1)), run(options(2)));
        assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&two).unwrap());
        assert_eq!(one.groups.len(), 3);
        assert!(one.table().contains("sliding window"));
    }
}
