//! Trial of the straggler detector and its rivals: `stragglers [--seeds A..B] [--regimes ABC] [--hours H] [--easy] [--no-rivals]
//! [--threads N] [--json]`.

use std::process::ExitCode;

use tidegate_trial::straggler::scene::{Noise, Regime};
use tidegate_trial::straggler::{Options, run};

fn main() -> ExitCode {
    let (options, json) = match parse(std::env::args().skip(1)) {
        Ok(parsed) => parsed,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    let report = run(options);
    match serde_json::to_string_pretty(&report) {
        Ok(text) if json => println!("{text}"),
        Ok(_) => print!("{}", report.table()),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<(Options, bool), String> {
    let (mut options, mut json) = (Options::default(), false);
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
            "--threads" => {
                options.threads = value()?.parse().map_err(|error| format!("--threads: {error}"))?
            }
            "--easy" => options.noise = Noise::Easy,
            "--no-rivals" => options.rivals = false,
            "--json" => json = true,
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    Ok((options, json))
}
