//! A trace of jobs beside a tide of demand, under several policies: `pairing --traces DIR [--jobs
//! NAME] [--serving NAME] [--days N] [--history N] [--seeds A..B] [--policy NAME]...`. What
//! `tidegate backtest --trace DIR` runs, with the numbers that are compared first.

use std::{ops::Range, path::PathBuf, process::ExitCode};

use tidegate_evaluation::trace::{
    Demand, Jobs, Pairing, SCHEDULER_NAMES, Shape, TraceError, curves, scheduler,
};
use tidegate_sim::backtest::{Contender, Interval, Metric, Setting, backtest};

const USAGE: &str = "usage: pairing --traces DIR [--jobs NAME] [--serving NAME] [--days N] [--history N] [--seeds A..B] [--policy NAME]...";
/// Sizes up to which scaling curves go.
const MOST_GPUS: u32 = 1_024;
const SHOWN: [Metric; 5] = [
    Metric::QueueHours,
    Metric::UsefulGpuHours,
    Metric::UnmetMinutes,
    Metric::ActionsPerDay,
    Metric::LostGpuHours,
];

struct Asked {
    traces: PathBuf,
    jobs: Jobs,
    serving: Demand,
    days: i64,
    history_days: i64,
    seeds: Range<u64>,
    policies: Vec<String>,
}

fn main() -> ExitCode {
    let asked = match decision_hours(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&asked) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}

fn decision_hours(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let (mut traces, mut policies) = (None, Vec::new());
    let (mut jobs, mut serving, mut seeds) = (Jobs::Itp, Demand::Servegen, 0..5);
    let (mut days, mut history_days) = (14, 0);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(format!("{argument}: a value is missing"))?;
        let unknown = || format!("{argument} {value}: unknown");
        match argument.as_str() {
            "--traces" => traces = Some(PathBuf::from(&value)),
            "--jobs" => jobs = named(&Jobs::NAMED, &value).ok_or_else(unknown)?,
            "--serving" => serving = named(&Demand::NAMED, &value).ok_or_else(unknown)?,
            "--days" => days = value.parse().map_err(|_| unknown())?,
            "--history" => history_days = value.parse().map_err(|_| unknown())?,
            "--seeds" => seeds = range(&value).ok_or_else(unknown)?,
            "--policy" if SCHEDULER_NAMES.contains(&&*value) => policies.push(value),
            _ => return Err(unknown()),
        }
    }
    if policies.is_empty() {
        policies = ["static", "autopilot", "clairvoyant"].map(str::to_owned).into();
    }
    Ok(Asked {
        traces: traces.ok_or("--traces DIR is missing")?,
        jobs,
        serving,
        days,
        history_days,
        seeds,
        policies,
    })
}

fn named<T: Copy>(of: &[(&str, T)], name: &str) -> Option<T> {
    of.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn range(text: &str) -> Option<Range<u64>> {
    let (from, to) = text.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

fn run(asked: &Asked) -> Result<(), TraceError> {
    let measured = curves(&asked.traces, MOST_GPUS)?.into_iter().map(|(_, curve)| curve).collect();
    let (jobs, demand) = (asked.jobs.read(&asked.traces)?, asked.serving.read(&asked.traces)?);
    let shape = Shape { days: asked.days, history_days: asked.history_days, ..Shape::default() };
    let pairing = Pairing::new(jobs, Some(demand), measured, shape)?;
    let makers: Vec<_> = asked.policies.iter().filter_map(|name| scheduler(name)).collect();
    let makers: Vec<&dyn Fn(&Setting) -> Contender> =
        makers.iter().map(|maker| maker.as_ref() as _).collect();
    let began = std::time::Instant::now();
    let rows = backtest(&makers, asked.seeds.clone(), &|seed| pairing.setting(seed))?;
    println!("{:?}, {:.1} s", pairing.about(), began.elapsed().as_secs_f64());
    println!(
        "{:24}{}share of gain",
        "",
        SHOWN.map(|metric| format!("{:>24}", format!("{metric:?}"))).concat()
    );
    for row in &rows {
        let cells = SHOWN.map(|metric| shown(row.values[metric as usize]));
        println!("{:24}{}{}", row.policy, cells.concat(), shown(row.gain));
    }
    Ok(())
}

fn shown(value: Option<Interval>) -> String {
    value.map_or(format!("{:>24}", "-"), |of| {
        format!("{:>24}", format!("{:.2} [{:.2} {:.2}]", of.value, of.low, of.high))
    })
}
