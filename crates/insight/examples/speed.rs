//! How fast the parts that run all the time are, on one core: `cargo run --release -p
//! tidegate-insight --example speed`.
//!
//! Reports of ranks through the straggler detector, forecasts of 1,000 series for a week of hours,
//! events through the job table, and one regression by coordinate descent for comparison. Times are
//! of the processor, where the system tells them (Linux), so that other work on the machine counts
//! little.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use linfa::{Dataset, traits::Fit};
use linfa_elasticnet::ElasticNet;
use ndarray::{Array1, Array2};
use tidegate_insight::forecast::{Config, Forecaster, JobEvent, JobTable, LEVELS};
use tidegate_insight::straggler::{Detector, JobShape, Settings, StepReport};

const HOUR_US: i64 = 3_600_000_000;

fn main() {
    rank_steps();
    forecasts();
    job_events();
    coordinate_descent();
}

/// Processor time of this thread, s; elsewhere than on Linux, wall time since the first call.
fn busy_s() -> f64 {
    static SINCE: OnceLock<Instant> = OnceLock::new();
    let since = SINCE.get_or_init(Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = told.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    ns.map_or_else(|| since.elapsed().as_secs_f64(), |ns| ns / 1e9)
}

/// A number in 0..1 that follows from `seed` alone.
fn chance(seed: u64) -> f64 {
    let mixed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0xD1B5_4A32_D192_ED03);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((mixed ^ (mixed >> 29)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A calm job of 512 ranks with noise of 0.3 %: 64 steps again and again, 13 million reports.
fn rank_steps() {
    const RANKS: u32 = 512;
    const STEP_US: i64 = 2_000_000;
    const ROUNDS: u64 = 400;
    let shape = JobShape {
        attempt: 1,
        node: (0..RANKS).map(|rank| rank / 8).collect(),
        role: vec![0; RANKS as usize],
        stages: 1,
        micro_batches: 1,
    };
    let told: Vec<Vec<StepReport>> =
        (0..64).map(|step| (0..RANKS).map(|rank| report(rank, step)).collect()).collect();
    let mut detector = Detector::new(shape, Settings::default());
    let began_s = busy_s();
    for round in 0..ROUNDS {
        for (step, reports) in (round * 64..).zip(&told) {
            let end_us = (step as i64 + 1) * STEP_US;
            for report in reports {
                detector.step(&StepReport { step, end_us, ..*report });
            }
            detector.advance(end_us + 1_000_000);
        }
    }
    let updates = ROUNDS * 64 * u64::from(RANKS);
    println!(
        "straggler detector: {:.1} million rank-steps/s ({updates} reports, {} signals)",
        updates as f64 / (busy_s() - began_s) / 1e6,
        detector.take().len()
    );
}

fn report(rank: u32, step: u64) -> StepReport {
    let compute_us = 1_400_000.0 * (1.0 + 0.01 * (chance(u64::from(rank) << 32 | step) - 0.5));
    StepReport {
        attempt: 1,
        rank,
        step,
        end_us: 0,
        duration_us: 2_000_000,
        compute_us: Some(compute_us as u64),
        communication_us: Some(2_000_000 - compute_us as u64),
        data_us: Some(10_000),
        tokens: None,
        squared_tokens: None,
    }
}

/// Twenty series of 1,008 hours, each forecast fifty times: every forecast fits anew. Then an
/// hour's observation, learning included.
fn forecasts() {
    const SERIES: usize = 20;
    const TIMES: usize = 50;
    let mut all: Vec<Forecaster> = (0..SERIES).map(|series| learned(series, 1_008)).collect();
    let mut taken_ms = Vec::with_capacity(SERIES * TIMES);
    for forecaster in &all {
        for _ in 0..TIMES {
            let began_s = busy_s();
            let forecast = black_box(forecaster.forecast(None)).expect("six weeks are enough");
            for hour in 1..=168 {
                black_box(LEVELS.map(|level| forecast.quantile(hour, level)));
            }
            taken_ms.push((busy_s() - began_s) * 1e3);
        }
    }
    let total_s = taken_ms.iter().sum::<f64>() / 1e3;
    taken_ms.sort_unstable_by(f64::total_cmp);
    println!(
        "forecast of 168 h at {} levels: median {:.2} ms, p99 {:.2} ms; 1,000 series {total_s:.2} s",
        LEVELS.len(),
        taken_ms[taken_ms.len() / 2],
        taken_ms[taken_ms.len() * 99 / 100],
    );
    const HOURS: usize = 25;
    let began_s = busy_s();
    for (series, forecaster) in all.iter_mut().enumerate() {
        for hour in 0..HOURS {
            forecaster.observe(Some(demand(series, 1_008 + hour)), None);
        }
    }
    let each_ms = (busy_s() - began_s) * 1e3 / (SERIES * HOURS) as f64;
    println!("observation of an hour, learning included: mean {each_ms:.2} ms");
}

fn learned(series: usize, hours: usize) -> Forecaster {
    let mut forecaster = Forecaster::new(Config::default()).expect("hours divide a day");
    (0..hours).for_each(|hour| forecaster.observe(Some(demand(series, hour)), None));
    forecaster
}

/// A day's wave with noise, GPUs.
fn demand(series: usize, hour: usize) -> f64 {
    let wave = (hour as f64 / 24.0 * std::f64::consts::TAU).sin();
    100.0 + 30.0 * wave + 20.0 * chance(((series as u64) << 32) | hour as u64)
}

/// 100,000 jobs over sixty days; survival is learned once a day, as in a pipeline.
fn job_events() {
    const JOBS: u64 = 100_000;
    let span_us = (60 * 24 * HOUR_US) as f64;
    let mut events = Vec::with_capacity(3 * JOBS as usize);
    for id in 0..JOBS {
        let at_us = (span_us * chance(id)) as i64;
        let started_us = at_us + (HOUR_US as f64 * chance(id + JOBS)) as i64;
        // Lengths over three powers of ten, from four minutes.
        let ended_us = started_us + (HOUR_US as f64 / 15.0 * 10_f64.powf(3.0 * chance(id + 2 * JOBS))) as i64;
        let gpus = [1.0, 2.0, 8.0, 64.0][(4.0 * chance(id + 3 * JOBS)) as usize];
        events.push((at_us, JobEvent::Submitted { id, at_us, gpus }));
        events.push((started_us, JobEvent::Started { id, at_us: started_us }));
        events.push((ended_us, JobEvent::Ended { id, at_us: ended_us }));
    }
    events.sort_by_key(|(at_us, _)| *at_us);
    let mut table = JobTable::new();
    let began_s = busy_s();
    for (at_us, event) in &events {
        table.apply(*event);
        table.learn(*at_us);
    }
    println!(
        "job table: {:.2} µs an event, learning included ({} events, {:.0} GPUs open at the end)",
        (busy_s() - began_s) * 1e6 / events.len() as f64,
        events.len(),
        table.demand().abs(),
    );
}

/// A regression as large as one horizon's (936 origins, 25 columns) by linfa's coordinate descent:
/// why the forecaster does not use it.
fn coordinate_descent() {
    let x = Array2::from_shape_fn((936, 25), |(row, column)| chance((row * 25 + column) as u64) - 0.5);
    let y = Array1::from_shape_fn(936, |row| x.row(row).sum() + chance(row as u64 + 99_999));
    let began_s = busy_s();
    let fitted = ElasticNet::params().l1_ratio(0.0).penalty(1.0).tolerance(1e-4).fit(&Dataset::new(x, y));
    let took_ms = (busy_s() - began_s) * 1e3;
    black_box(&fitted);
    println!("one regression by coordinate descent: {took_ms:.2} ms");
}
