//! The price book and user-supplied GPU peaks, from the command line.

use std::path::Path;
use std::process::Command;

use crate::program::{Place, query, run, succeed, tidegate};

fn price(data: &Path, words: &[&str]) -> Command {
    let mut command = tidegate();
    command.arg("price").args(words).arg("--data").arg(data);
    command
}

const BOOK: &str = "SELECT pool, gpu_model, contract, price_micros_per_gpu_hour AS price, from_time, to_time FROM prices \
                    ORDER BY pool NULLS FIRST, from_time";

/// The shipped jobs' mapping names no pool, so the job of an hour and a GPU has the price of any
/// GPU: half an hour at 2.00, half an hour at 3.00, 2.50 together.
#[test]
fn prices_are_entered_corrected_ended_and_applied() {
    let place = Place::new();
    let data = place.data();
    let jobs = place.file("jobs.csv", crate::program::jobs(1));
    assert_eq!(place.import(jobs, "jobs_csv").status, Some(0));
    let of_all = ["set", "--cluster", "default", "--contract", "on_demand", "--currency", "EUR"];
    let set = |more: &[&str]| succeed(&mut price(&data, &[&of_all, more].concat()));
    set(&["--price", "9.99", "--from", "2024-03-01"]);
    set(&["--price", "2", "--from", "2024-03-01"]);
    set(&["--price", "3.00", "--from", "2024-03-01T02:30:00+01:00"]);
    let csv = "from_time,pool,contract,price_per_gpu_hour,currency,capital_per_gpu,depreciation_months,watts_per_gpu,energy_price_per_kwh\n\
               2024-03-01,h100,owned,,EUR,31500,48,1100,0.185\n";
    let import = |name: &str, text: &str| {
        let file = place.file(name, text);
        run(&mut price(&data, &["import", file.to_str().unwrap(), "--cluster", "default"]))
    };
    assert_eq!(import("prices.csv", csv).stdout, "1 prices entered\n");
    succeed(&mut price(&data, &["end", "--cluster", "default", "--pool", "h100", "--from", "2024-04-01"]));
    let expected = "pool,gpu_model,contract,price,from_time,to_time\n\
                    ,,on_demand,2000000,2024-03-01T00:00:00Z,2024-03-01T01:30:00Z\n\
                    ,,on_demand,3000000,2024-03-01T01:30:00Z,\n\
                    h100,,owned,1101857,2024-03-01T00:00:00Z,2024-04-01T00:00:00Z\n";
    assert_eq!(query(&data, BOOK), expected);
    let costs = query(&data, "SELECT job_id, currency, gpu_ms, cost_micros FROM job_costs");
    assert_eq!(costs, "job_id,currency,gpu_ms,cost_micros\n0,EUR,3600000,2500000\n");
    let listed = succeed(&mut price(&data, &["list"]));
    assert!(listed.contains("1101857") && listed.contains("h100"), "{listed}");

    // A file with a wrong line enters nothing, and says all that is wrong.
    let wrong = format!(
        "{csv}2024-03-01,h100,owned,2,EUR,,,,\n,a,spot,1,EUR,,,,\n2025-01-01,a,lease,1,EUR,,,,\n2025-01-01,b,spot,1.2345678,EUR,,,,\n"
    );
    import("wrong.csv", &wrong).refused(&[
        "nothing was entered",
        "wrong.csv:3: line 2 has a price",
        "wrong.csv:4: from_time is missing",
        "wrong.csv:5: contract is \"lease\"",
        "wrong.csv:6: price is \"1.2345678\"",
    ]);
    import("other.csv", "from_time,price\n").refused(&["other.csv:1", "\"price\" is not known"]);
    run(&mut price(&data, &[&of_all[..], &["--price", "1", "--from", "yesterday"]].concat()))
        .refused(&["yesterday"]);
    assert_eq!(query(&data, BOOK), expected);
}

#[test]
fn own_peaks_go_before_the_shipped_ones() {
    let place = Place::new();
    let jobs = place.file("jobs.csv", crate::program::jobs(1));
    assert_eq!(place.import(jobs, "jobs_csv").status, Some(0));
    let ask = |peaks: &Path| {
        let sql = "SELECT model, peak_gflop_per_second AS peak, is_own FROM gpu_peaks \
                   WHERE precision = 'bf16' AND (is_own = 1 OR model = 'NVIDIA L4') ORDER BY is_own DESC, model";
        let mut command = tidegate();
        command.args(["sql", "--format", "csv", sql, "--data"]).arg(place.data()).arg("--peaks").arg(peaks);
        command
    };
    let own = place.file("own.csv", "model,precision,peak_gflop_per_second,peak_source\nNVIDIA L4,bf16,100000,measured\nNew%,bf16,7,guess\n");
    assert_eq!(
        succeed(&mut ask(&own)),
        "model,peak,is_own\nNVIDIA L4,100000,1\nNew%,7,1\nNVIDIA L4,121000,0\n"
    );
    let wrong = place.file("wrong.csv", "model,precision,peak_gflop_per_second\nX,bf16,0.5\n");
    run(&mut ask(&wrong)).refused(&["wrong.csv:2", "\"0.5\""]);
    run(&mut ask(Path::new("/nowhere.csv"))).refused(&["/nowhere.csv"]);
}
