//! Policies over a trace: `cargo run --release -p tidegate-sim --example backtest -- JOBS.csv DEMAND.csv STEP_S TRAIN SERVE PEAK DAYS SEEDS [POLICY.toml]`.
//!
//! `JOBS.csv` has rows `submit_s,run_s,gpus,team` and no header, `DEMAND.csv` a share of the peak for each step, as a number from
//! 0 to 1. `TRAIN` and `SERVE` are nodes of 8 GPUs, `PEAK` is the service's demand in GPUs where the share is 1.

use tidegate_autopilot::policy::Policy;
use tidegate_sim::{
    Backfill, ClusterSpec, DAY_US, MINUTE_US, SECOND_US, Schedule, ServiceSpec,
    backtest::{Arrival, Contender, Maker, Metric, Setting, Unknowns, backtest},
    gpu_hours,
    pilot::{Autopilot, Habits, Lender},
    policy::{Clairvoyant, Gfs, Lyra, Static, fluid_bound_gpu_us},
    target::Control,
};

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [jobs, demand, step_s, train, serve, peak, days, seeds, policy @ ..] = args.as_slice() else {
        return Err("usage: JOBS.csv DEMAND.csv STEP_S TRAIN SERVE PEAK DAYS SEEDS [POLICY.toml]".into());
    };
    let policy = match policy.first() {
        Some(path) => Policy::parse(&std::fs::read_to_string(path)?)?,
        None => Policy::auto(),
    };
    let arrivals = read_jobs(jobs)?;
    let peak: f64 = peak.parse()?;
    let gpus = |line: &str| line.trim().parse::<f64>().map(|share| (share * peak).ceil() as u32);
    let demand_gpus = std::fs::read_to_string(demand)?.lines().map(gpus).collect::<Result<_, _>>()?;
    let service = ServiceSpec { pool: 1, demand_gpus, step_us: step_s.parse::<i64>()? * SECOND_US };
    let spec = ClusterSpec::uniform(&[train.parse()?, serve.parse()?], 8);
    let span_us = days.parse::<i64>()? * DAY_US;
    let setting = |seed: u64| {
        Setting::from_trace(spec.clone(), &arrivals, service.clone(), &Unknowns::default(), span_us, seed)
    };
    let makers: [Maker<'_>; 7] = [
        &|_| Static::default().into(),
        &|_| Static { backfill: Some(100) }.into(),
        &|_| Lyra::default().into(),
        &|_| Gfs::default().into(),
        &|_| Clairvoyant::default().into(),
        &|_| Contender::Pilot {
            decider: Box::new(Lender::new(1)),
            control: Control::default(),
            habits: Habits::default(),
            schedule: Schedule { backfill: Backfill::Easy { depth: 100 }, ..Schedule::default() },
            every_us: 5 * MINUTE_US,
        },
        &|_| Contender::Pilot {
            decider: Box::new(Autopilot::new(policy.clone(), 1)),
            control: Control::default(),
            habits: Habits::default(),
            schedule: Schedule { backfill: Backfill::Easy { depth: 100 }, ..Schedule::default() },
            every_us: MINUTE_US,
        },
    ];
    let rows = backtest(&makers, 0..seeds.parse()?, &setting)?;
    print!("{:18}", "policy");
    rows.iter().for_each(|row| print!("{:>28}", row.policy));
    println!();
    for metric in Metric::ALL {
        print!("{:18}", format!("{metric:?}"));
        for row in &rows {
            let (v, r) = (row.values[metric as usize], row.ratios[metric as usize]);
            let value = format!("{:.2} [{:.2} {:.2}]", v.value, v.low, v.high);
            print!("{:>28}", r.map_or(value.clone(), |r| format!("{value} {:.2}x", r.value)));
        }
        println!();
    }
    let s = setting(0);
    let bound = fluid_bound_gpu_us(&s.spec, &s.jobs, &s.services, s.span_us);
    println!("fluid bound: {:.0} useful GPU-hours; {} jobs", gpu_hours(bound), s.jobs.len());
    Ok(())
}

fn read_jobs(path: &str) -> Result<Vec<Arrival>, Failed> {
    let row = |line: &str| -> Result<Arrival, Failed> {
        let fields: Vec<&str> = line.split(',').collect();
        let [submit_s, run_s, gpus, team] = fields.as_slice() else {
            return Err(format!("{path}: `{line}` is not submit_s,run_s,gpus,team").into());
        };
        Ok(Arrival {
            submit_us: submit_s.parse::<i64>()? * SECOND_US,
            work_us: run_s.parse::<i64>()? * SECOND_US,
            gpus: gpus.parse()?,
            team: (*team).to_owned(),
        })
    };
    std::fs::read_to_string(path)?.lines().map(row).collect()
}
