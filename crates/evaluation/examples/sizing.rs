//! Regret of reservation policies on public demand traces: `sizing --traces DIR [--rho 0.6]
//! [--json]`.

use std::{path::PathBuf, process::ExitCode};

use tidegate_evaluation::sizing::{RegretTable, SizingEvaluationError, TERMS, demand_cases, regret_table};

const USAGE: &str = "usage: sizing --traces DIR [--rho SHARE,...] [--json]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut traces, mut rhos, mut json) = (None, vec![0.6], false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--traces" => traces = arguments.next().map(PathBuf::from),
            "--rho" => {
                let list = arguments.next().unwrap_or_default();
                let Ok(list) = list.split(',').map(str::parse).collect() else {
                    eprintln!("--rho {list}: not a list of numbers\n{USAGE}");
                    return ExitCode::from(2);
                };
                rhos = list;
            }
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
    match run(&traces, &rhos) {
        Ok(tables) if json => print_json(&tables),
        Ok(tables) => tables.iter().for_each(print),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(3);
        }
    }
    ExitCode::SUCCESS
}

fn run(traces: &std::path::Path, rhos: &[f64]) -> Result<Vec<RegretTable>, SizingEvaluationError> {
    rhos.iter().map(|&rho| regret_table(&demand_cases(traces, rho)?, rho)).collect()
}

fn print_json(tables: &[RegretTable]) {
    match serde_json::to_string_pretty(tables) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("{error}"),
    }
}

fn print(table: &RegretTable) {
    let Some(first) = table.rows.first() else { return };
    println!(
        "regret %, break-even {}, {} series: a week, a day; totals: a week, a day",
        first.rho,
        table.series.len()
    );
    for row in table.rows.iter().filter(|row| row.term_hours == TERMS[0]) {
        let day = table.rows.iter().find(|other| other.policy == row.policy && other.term_hours == TERMS[1]);
        let of_day =
            |value: fn(&tidegate_evaluation::sizing::RegretRow) -> f64| day.map_or(f64::NAN, value) * 100.0;
        println!(
            "{:36} {:7.1} {:7.1}   {:7.1} {:7.1}",
            row.policy,
            row.regret * 100.0,
            of_day(|row| row.regret),
            row.regret_totals * 100.0,
            of_day(|row| row.regret_totals),
        );
    }
}
