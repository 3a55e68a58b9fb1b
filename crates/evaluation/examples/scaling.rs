//! Errors of scaling curves, fitted on small sizes, on held-out sizes: `scaling --traces DIR [--fit
//! GPUS] [--json]`.

use std::{path::PathBuf, process::ExitCode};

use tidegate_evaluation::sizing::{ScalingRow, SizingEvaluationError, profiles, scaling_errors};

const USAGE: &str = "usage: scaling --traces DIR [--fit GPUS] [--json]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut traces, mut fit, mut json) = (None, 8, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--traces" => traces = arguments.next().map(PathBuf::from),
            "--fit" => match arguments.next().and_then(|gpus| gpus.parse().ok()) {
                Some(gpus) => fit = gpus,
                None => {
                    eprintln!("--fit wants a number of GPUs\n{USAGE}");
                    return ExitCode::from(2);
                }
            },
            "--json" => json = true,
            other => {
                eprintln!("{other}: unknown\n{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let Some(traces) = traces else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&traces, fit) {
        Ok(rows) if json => match serde_json::to_string_pretty(&rows) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("{error}"),
        },
        Ok(rows) => print(&rows),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(3);
        }
    }
    ExitCode::SUCCESS
}

fn run(traces: &std::path::Path, fit: u32) -> Result<Vec<ScalingRow>, SizingEvaluationError> {
    scaling_errors(&profiles(traces)?, fit)
}

fn print(rows: &[ScalingRow]) {
    println!("profile           fitted  held out  (GPUs)      median %  p90 %  linear %  covered %");
    for row in rows {
        println!(
            "{:16} {:7} {:9}  <={} to {:3} {:9.1} {:7.1} {:9.1} {:9.0}",
            row.name,
            row.fitted,
            row.held_out,
            row.fitted_gpus,
            row.held_out_gpus,
            row.error_median * 100.0,
            row.error_p90 * 100.0,
            row.linear_median * 100.0,
            row.covered * 100.0,
        );
    }
}
