//! The SQL tables and the library give the same results on the same input: the cases of
//! `pipelines/tests`, whose expected rows `tidegate pipeline test` checks against the SQL.

use tidegate_insight::advice::{Neighbour, Refusal, Slice, Usage, right_size, sharing_pairs};

/// Rows of a case (no quoted cells), each as column and value.
struct Rows(Vec<Vec<(String, String)>>);

impl Rows {
    fn read(csv: &str) -> Self {
        let mut lines = csv.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        let names = lines.next().expect("a line of names");
        Self(lines.map(|cells| names.iter().cloned().zip(cells).collect()).collect())
    }
}

fn cell<'a>(row: &'a [(String, String)], name: &str) -> &'a str {
    &row.iter().find(|(known, _)| known == name).expect("a column of the case").1
}

fn number(row: &[(String, String)], name: &str) -> f64 {
    cell(row, name).parse().expect("a number")
}

/// Profiles of a GPU model as shares of the device, and the whole device.
fn slices(model: &str) -> Vec<Slice> {
    let table = include_str!("../../../schemas/mig_profiles.csv");
    let mut slices = Vec::new();
    for line in table.lines().filter(|line| line.starts_with(&format!("{model},"))) {
        // Only the last column, which is not read here, is quoted.
        let cells: Vec<&str> = line.split(',').collect();
        let number = |at: usize| cells[at].parse::<f64>().expect("a number");
        let milli = |part: f64, of: f64| (1_000.0 * part / of).ceil();
        slices.push(Slice {
            name: cells[1].to_owned(),
            memory_bytes: number(5) as u64,
            sm_share: number(4) / number(8),
            cost_share: milli(number(2), number(6)).max(milli(number(3), number(7))) / 1_000.0,
        });
    }
    slices
}

#[test]
fn right_size_chooses_the_same_profile() {
    let rows = Rows::read(include_str!("../../../pipelines/tests/right_size/expected.csv"));
    let mut compared = Vec::new();
    for row in rows.0.iter().filter(|row| cell(row, "held") == "whole" && !cell(row, "sm_p95_ppm").is_empty())
    {
        let slices = slices(cell(row, "gpu_model"));
        if slices.is_empty() {
            continue;
        }
        // The table shows minutes and leaves it to the reader whether they suffice; the library
        // requires a week and three runs.
        let usage = Usage {
            memory_p999_bytes: number(row, "memory_p999_bytes"),
            sm_p95: number(row, "sm_p95_ppm") / 1e6,
            days: 7.0,
            runs: 3,
            collective: cell(row, "reason") == "several_devices",
            gpu_hours_weekly: 168.0,
        };
        let fits = match right_size(&usage, &slices).unwrap() {
            Ok(advice) => {
                let saved_milli = advice.saved_gpu_hours_weekly / 168.0 * 1e3;
                assert!((saved_milli - number(row, "saved_gpu_milli")).abs() < 1e-6, "{row:?}");
                advice.slice.name
            }
            Err(Refusal::NeedsWholeDevice) => "whole".to_owned(),
            Err(_) => String::new(),
        };
        assert_eq!(fits, cell(row, "fits"), "{row:?}");
        compared.push(fits);
    }
    compared.sort();
    assert_eq!(compared, ["", "1g.10gb", "1g.10gb", "1g.20gb", "1g.6gb", "whole"]);
}

/// The jobs of the case, by its comment.
fn neighbours() -> Vec<Neighbour> {
    let job = |name: &str, busy: std::ops::Range<usize>, memory_p999: f64| {
        let sm_p95: Vec<f64> = (0..24).map(|hour| if busy.contains(&hour) { 0.7 } else { 0.1 }).collect();
        let bandwidth_p95 = sm_p95.iter().map(|share| share / 2.0).collect();
        let owner = "alice".to_owned();
        Neighbour { job: name.to_owned(), owner, memory_p999, sm_p95, bandwidth_p95, collective: false }
    };
    vec![
        job("day", 8..20, 0.4),
        job("night", 0..8, 0.4),
        job("noon", 8..20, 0.4),
        job("idle", 0..0, 0.4),
        Neighbour { bandwidth_p95: vec![0.6; 24], ..job("wide", 0..0, 0.4) },
        job("large", 0..0, 0.6),
        Neighbour { owner: "bob".to_owned(), ..job("other", 0..0, 0.1) },
        Neighbour { collective: true, ..job("two", 0..0, 0.1) },
        job("short", 0..0, 0.1),
    ]
}

#[test]
fn sharing_finds_the_same_pairs() {
    let rows = Rows::read(include_str!("../../../pipelines/tests/sharing/expected.csv"));
    let jobs = neighbours();
    let input = |first: &str, second: &str| {
        let is_it = |row: &&Vec<(String, String)>| {
            cell(row, "first_job_id") == first && cell(row, "second_job_id") == second
        };
        rows.0.iter().find(is_it)
    };
    // Pair by pair, the library's result equals the row of the table.
    let mut fitting = 0;
    for one in &jobs {
        for other in jobs.iter().filter(|other| other.job > one.job) {
            let pair = sharing_pairs(&[one.clone(), other.clone()], 2).unwrap().pop();
            let row = input(&one.job, &other.job);
            assert_eq!(pair.is_some(), row.is_some(), "{} and {}", one.job, other.job);
            let Some((pair, row)) = pair.zip(row) else { continue };
            let found = [pair.memory, pair.peak_sm, pair.complementarity];
            let columns = ["memory_ppm", "peak_sm_ppm", "complementarity_ppm"];
            for (found, column) in found.into_iter().zip(columns) {
                assert!((found * 1e6 - number(row, column)).abs() < 1e-3, "{column}: {row:?}");
            }
            fitting += 1;
        }
    }
    assert_eq!((fitting, rows.0.len()), (12, 12));
    // For all jobs together, the library picks the best pairs of the table greedily.
    let taken: Vec<(String, String)> =
        sharing_pairs(&jobs, 100).unwrap().into_iter().map(|pair| (pair.first, pair.second)).collect();
    let best = rows.0.iter().filter(|row| cell(row, "is_best") == "1");
    let best: Vec<(String, String)> = best
        .map(|row| (cell(row, "first_job_id").to_owned(), cell(row, "second_job_id").to_owned()))
        .collect();
    assert!(best.len() == 2 && best.iter().all(|pair| taken.contains(pair)), "{best:?} of {taken:?}");
}
