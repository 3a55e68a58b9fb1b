//! Runs the forecast protocol: `forecast --traces DIR [--sets itp,helios] [--json] [--dump DIR]`.
//! `--sets classes` forecasts demand by size class instead.

use std::{error::Error, fs, path::PathBuf};

use tidegate_evaluation::forecast::{Options, load, run};

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options { traces: PathBuf::from("."), sets: Vec::new() };
    let (mut json, mut dump) = (false, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--traces" => options.traces = value()?.into(),
            "--sets" => options.sets = value()?.split(',').map(str::to_owned).collect(),
            "--dump" => dump = Some(PathBuf::from(value()?)),
            "--json" => json = true,
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    if let Some(folder) = dump {
        write_series(&options, &folder)?;
    }
    let report = run(&options)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

/// Writes the series for the rivals' script.
fn write_series(options: &Options, folder: &std::path::Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    for series in load(&options.traces)? {
        let shown = serde_json::json!({
            "set": series.set,
            "name": series.name,
            "values": series.values,
            "origins": series.origins().collect::<Vec<_>>(),
            "first_origin": series.first_origin,
            "horizon": series.horizon,
        });
        fs::write(folder.join(format!("{}-{}.json", series.set, series.name)), shown.to_string())?;
    }
    Ok(())
}
