//! Evaluates the straggler detector and its rivals: `stragglers [--seeds A..B] [--regimes ABC]
//! [--hours H] [--easy] [--no-rivals] [--threads N] [--evidence-lag SECONDS] [--json]`. `--list`
//! prints the events of each job and the detector's alarms in order of time.

use std::process::ExitCode;

use tidegate_evaluation::straggler::scene::{Noise, Regime};
use tidegate_evaluation::straggler::{Method, Options, Tidegate, alarm_outcome, run, run_job};

fn main() -> ExitCode {
    let asked = match parse(std::env::args().skip(1)) {
        Ok(parsed) => parsed,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    if asked.list {
        list(&asked.options);
        return ExitCode::SUCCESS;
    }
    let report = run(asked.options);
    match serde_json::to_string_pretty(&report) {
        Ok(text) if asked.json => println!("{text}"),
        Ok(_) => print!("{}", report.table()),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn list(options: &Options) {
    for (seed, regime) in (options.seeds.0..options.seeds.1)
        .flat_map(|seed| options.regimes.iter().map(move |&regime| (seed, regime)))
    {
        let mut methods: Vec<Box<dyn Method>> = vec![Box::new(Tidegate::new())];
        let (plan, truth, alarms) = run_job(seed, regime, options, &mut methods);
        let start_us = truth.attempts[0].from_us;
        let at = |us: i64| (us - start_us) as f64 / 1e6;
        println!(
            "{seed} {regime:?}: {} ranks, {} stages, step {:.1} s, {:.1} h, restarts {:.0?}, tokens {} {}",
            plan.ranks(),
            plan.stages,
            plan.step_s,
            truth.hours,
            plan.restarts_s,
            plan.tokens,
            plan.squared_tokens
        );
        let events = truth.events.iter().map(|event| {
            let (fault, ranks) = (&event.fault, truth.ranks_of(event.fault.place, event.start_us));
            let text = format!(
                "event {:?} {:?} ranks {ranks:?} to {:.0} size {:.2} slows {:.3} over {} steps: {:?}",
                fault.class,
                fault.place,
                at(event.end_us),
                fault.size,
                event.slowdown,
                event.steps,
                event.relevance
            );
            (event.start_us, text)
        });
        let alarms = alarms.iter().flatten().map(|alarm| {
            let node = match alarm.target {
                tidegate_evaluation::straggler::Target::Node(node) => {
                    truth.ranks_of_node(node, alarm.said_us)
                }
                _ => None,
            };
            let text = format!(
                "  {:?} {:?} {node:?} {:?} #{} {:?}",
                alarm.level,
                alarm.target,
                alarm.class,
                alarm.key,
                alarm_outcome(&truth, alarm)
            );
            (alarm.said_us, text)
        });
        let mut lines: Vec<(i64, String)> = events.chain(alarms).collect();
        lines.sort();
        for (us, text) in lines {
            println!("{:8.0} {text}", at(us));
        }
    }
}

struct Asked {
    options: Options,
    list: bool,
    json: bool,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let (mut options, mut list, mut json) = (Options::default(), false, false);
    options.threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--seeds" => {
                let value = value()?;
                let bounds =
                    value.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                options.seeds = bounds.ok_or(format!("--seeds takes A..B, not {value}"))?;
            }
            "--regimes" => {
                let value = value()?;
                let regimes = value.chars().map(|c| Regime::of(c).ok_or(format!("no regime {c}")));
                options.regimes = regimes.collect::<Result<_, _>>()?;
            }
            "--hours" => options.hours = Some(value()?.parse().map_err(|error| format!("--hours: {error}"))?),
            "--evidence-lag" => {
                options.evidence_lag_s =
                    value()?.parse().map_err(|error| format!("--evidence-lag: {error}"))?
            }
            "--threads" => {
                options.threads = value()?.parse().map_err(|error| format!("--threads: {error}"))?
            }
            "--easy" => options.noise = Noise::Easy,
            "--no-rivals" => options.rivals = false,
            "--json" => json = true,
            "--list" => list = true,
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    Ok(Asked { options, list, json })
}
