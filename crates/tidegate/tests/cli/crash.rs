//! kill -9 at any instant of an import, pipeline run or backfill: after a restart the tables equal
//! those of an undisturbed run.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use chrono::DateTime;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_testing::needs;

use crate::program::{assert_same_tables, import, query, run, succeed, table_names, tables, tidegate};

const SEED: u64 = 2024;
const JOBS: usize = 2_000;
/// Small enough for many commits in one import, so that many instants lie between two of them.
const FLUSH_EVENTS: &str = "1300";
/// Each way to run the commands is killed once; in the long form, eight times.
const RUNS: u32 = 3;
const LONG_RUNS: u32 = 24;
const MIN_COMMITS: usize = 5;
const KILLS_PER_RUN: u32 = 3;
/// Maximum retries of a run that ended before its kill.
const TRIES: u32 = 50;

#[test]
fn killed_commands_end_with_the_tables_of_undisturbed_ones() {
    let runs: u32 = match std::env::var("TIDEGATE_CRASH_RUNS") {
        Ok(runs) => runs.parse().expect("TIDEGATE_CRASH_RUNS is a number"),
        Err(_) if needs::is_long() => LONG_RUNS,
        Err(_) => RUNS,
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.csv");
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    std::fs::write(&file, history(&mut rng)).unwrap();

    let undisturbed = folder.path().join("undisturbed");
    let whole = Step::timed(often_committed, &file, &undisturbed);
    let commits = commits(&undisturbed, "job_events");
    assert!(commits >= MIN_COMMITS, "{commits} commits");
    let names = table_names(&undisturbed);
    let expected = tables(&undisturbed, &names);
    assert_eq!(expected["jobs"].len(), JOBS + 1);
    for table in ["attempts", "job_events", "allocations", "usage_1h", "usage_1d", "queue_delay_1d"] {
        assert!(expected[table].len() > 50, "{table} has {} rows", expected[table].len());
    }

    // Where commits fall does not matter either.
    let apart = folder.path().join("apart");
    let steps = [append_only, run_often_committed, backfill].map(|step| Step::timed(step, &file, &apart));
    assert_same_tables(&tables(&apart, &names), &expected, "few commits");

    let mut kills = 0;
    for run in 0..runs {
        let data = folder.path().join(format!("killed-{run}"));
        // In turn: all in one command, tables apart from the log, and the tables once more.
        let steps = [std::slice::from_ref(&whole), &steps[..2], &steps[..]][run as usize % 3];
        let instants = killed_run(steps, &file, &data, &mut rng);
        kills += instants.len();
        assert_same_tables(&tables(&data, &names), &expected, &format!("run {run}, killed at {instants:?}"));
        std::fs::remove_dir_all(&data).unwrap();
    }
    println!("{runs} runs, {kills} kills, equal tables");
}

/// A command to be killed, and how long it takes undisturbed.
struct Step {
    command: fn(&Path, &Path) -> Command,
    length: Duration,
}

impl Step {
    /// Runs the command to its end.
    fn timed(command: fn(&Path, &Path) -> Command, file: &Path, data: &Path) -> Self {
        let begun = Instant::now();
        succeed(&mut command(file, data));
        Self { command, length: begun.elapsed() }
    }
}

/// Kills each step one to three times, then lets it end. Returns which step was killed after how
/// long.
fn killed_run(steps: &[Step], file: &Path, data: &Path, rng: &mut ChaCha8Rng) -> Vec<(usize, Duration)> {
    for _ in 0..TRIES {
        let mut killed = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            for _ in 0..rng.random_range(1..=KILLS_PER_RUN) {
                let instant = step.length.mul_f64(rng.random());
                let stderr = data.with_extension("stderr");
                if !killed_at(&mut (step.command)(file, data), instant, &stderr) {
                    break;
                }
                assert_readable(data);
                killed.push((number, instant));
            }
            succeed(&mut (step.command)(file, data));
        }
        if !killed.is_empty() {
            return killed;
        }
        std::fs::remove_dir_all(data).unwrap();
    }
    panic!("none of {TRIES} runs was still going on at its instant");
}

fn often_committed(file: &Path, data: &Path) -> Command {
    let mut command = import(file, "jobs_csv", data);
    command.args(["--flush-events", FLUSH_EVENTS]);
    command
}

fn append_only(file: &Path, data: &Path) -> Command {
    let mut command = import(file, "jobs_csv", data);
    command.arg("--no-run");
    command
}

fn run_often_committed(_file: &Path, data: &Path) -> Command {
    pipeline("run", data, &["--flush-events", FLUSH_EVENTS])
}

fn backfill(_file: &Path, data: &Path) -> Command {
    pipeline("backfill", data, &[])
}

fn pipeline(what: &str, data: &Path, args: &[&str]) -> Command {
    let mut command = tidegate();
    command.args(["pipeline", what, "--data"]).arg(data).args(args);
    command
}

/// Starts the command and kills it after a while. Returns whether it was still running; if not, it
/// must have succeeded.
fn killed_at(command: &mut Command, instant: Duration, stderr: &Path) -> bool {
    let mut child = command.stdout(Stdio::piped()).stderr(File::create(stderr).unwrap()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (end, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
        // The receiver may be gone.
        end.send(()).ok();
    });
    if ended.recv_timeout(instant).is_err() {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    reader.join().unwrap();
    let killed = status.signal() == Some(9);
    assert!(killed || status.success(), "{status}: {}", std::fs::read_to_string(stderr).unwrap());
    killed
}

/// Tables can be queried right after a crash, unless none existed yet.
fn assert_readable(data: &Path) {
    if data.join("FORMAT").exists() {
        let counts = query(data, "SELECT count(*) AS jobs FROM jobs");
        let jobs: usize = counts.trim().strip_prefix("jobs\n").unwrap().parse().unwrap();
        assert!(jobs <= JOBS, "{jobs} jobs");
    } else {
        let refused = run(tidegate().args(["sql", "--data"]).arg(data).arg("SELECT 1"));
        refused.refused(&["holds no data"]);
    }
}

/// Versions of a table, the first of which is empty.
fn commits(data: &Path, table: &str) -> usize {
    let versions =
        data.join("lake").join(table).read_dir().unwrap().map(|of_pipeline| of_pipeline.unwrap().path());
    let log =
        versions.flat_map(|v| v.join("_delta_log").read_dir().unwrap()).map(|file| file.unwrap().path());
    log.filter(|file| file.extension().is_some_and(|e| e == "json")).count()
}

/// Jobs of a week on two clusters; a fifth of them is retried, some wait or run at the end.
fn history(rng: &mut ChaCha8Rng) -> String {
    let mut csv = String::from(
        "cluster,job_id,team,user_name,pool,gpus,attempt,attempts,submit_time,start_time,end_time,state\n",
    );
    let time = |s: i64| DateTime::from_timestamp(1_709_251_200 + s, 0).unwrap().format("%FT%TZ");
    let mut submitted = 0;
    for job in 0..JOBS {
        submitted += rng.random_range(0..60);
        let attempts = if rng.random_bool(0.8) { 1 } else { rng.random_range(2..4) };
        let (cluster, team, user, pool) = (job % 2, job % 7, job % 50, job % 3);
        let gpus = ["0.5", "1", "8"][rng.random_range(0..3)];
        let mut free = submitted;
        for attempt in 0..attempts {
            let start = free + rng.random_range(0..600);
            let end = start + rng.random_range(0..36_000);
            free = end;
            let last = attempt + 1 == attempts;
            let (start, end, state) = match rng.random_range(0..20) {
                0 if last => (String::new(), String::new(), ""),
                1 if last => (time(start).to_string(), String::new(), ""),
                _ => (
                    time(start).to_string(),
                    time(end).to_string(),
                    if last { "COMPLETED" } else { "FAILED" },
                ),
            };
            let submit = time(submitted);
            writeln!(
                csv,
                "c{cluster},{job},t{team},u{user},p{pool},{gpus},{attempt},{attempts},{submit},{start},{end},{state}"
            )
            .unwrap();
        }
    }
    csv
}
