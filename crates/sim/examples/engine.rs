//! How many jobs a minute the engine simulates, on one core: `cargo run --release -p tidegate-sim
//! --example engine [jobs]`.

use std::time::Instant;

use tidegate_sim::{Backfill, ClusterSpec, DAY_US, Sim, generate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted: usize = std::env::args().nth(1).map_or(Ok(300_000), |text| text.parse())?;
    for (name, backfill, nodes, load_gpus) in [
        ("fifo, 50 nodes, load 75 %", Backfill::Off, 50, 300),
        ("fifo, 1,000 nodes, load 90 %", Backfill::Off, 1_000, 7_200),
        ("easy backfill, 1,000 nodes, load 90 %", Backfill::Easy { depth: 100 }, 1_000, 7_200),
        ("fifo, 50 nodes, load 105 %, queue grows", Backfill::Off, 50, 420),
        ("easy backfill, 50 nodes, load 105 %, queue grows", Backfill::Easy { depth: 100 }, 50, 420),
    ] {
        let week = generate::Arrivals { load_gpus, ..Default::default() };
        let a_week = generate::arrivals(&week, 1).len();
        let span_us = DAY_US * 7 * (wanted / a_week + 1) as i64;
        let mut jobs = generate::arrivals(&generate::Arrivals { span_us, ..week }, 2);
        jobs.truncate(wanted);
        let count = jobs.len();
        let mut spec = ClusterSpec::uniform(&[nodes], 8);
        spec.schedule.backfill = backfill;
        let start = Instant::now();
        let mut sim = Sim::new(spec, jobs, vec![])?;
        sim.run_to_end(i64::MAX / 4);
        let seconds = start.elapsed().as_secs_f64();
        let days = sim.now_us() as f64 / DAY_US as f64;
        println!(
            "{name}: {count} jobs, {} happenings, {days:.0} days in {seconds:.2} s: {:.1} million jobs a minute",
            sim.ticks(),
            count as f64 / seconds * 60.0 / 1e6,
        );
    }
    Ok(())
}
