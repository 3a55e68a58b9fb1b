//! `tidegate sql` on a data folder made by `tidegate import`.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use arrow::ipc::reader::StreamReader;
use tempfile::TempDir;

const JOBS: &str = "\
job_id,team,gpus,submit_time,start_time,end_time,state
1,vision,1,2024-03-01T00:00:00Z,2024-03-01T01:00:00Z,2024-03-01T02:00:00Z,COMPLETED
2,vision,0.5,2024-03-01T00:00:00Z,2024-03-01T00:00:00Z,2024-03-01T00:00:01Z,FAILED
3,text,8,2024-03-01T03:00:00Z,,,
";

fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).env_remove("TIDEGATE_DATA").env_remove("TIDEGATE_PIPELINES").stdin(Stdio::null());
    command
}

fn data() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.csv");
    std::fs::write(&file, JOBS).unwrap();
    let data = folder.path().join("data");
    let import = tidegate(&["import", "jobs", file.to_str().unwrap(), "--map", "jobs_csv", "--cluster", "c"])
        .arg("--data")
        .arg(&data)
        .output()
        .unwrap();
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
    folder
}

fn sql(folder: &Path, args: &[&str]) -> Output {
    tidegate(&["sql"]).arg("--data").arg(folder.join("data")).args(args).output().unwrap()
}

fn out(output: &Output) -> &str {
    assert!(output.status.success(), "{}", err(output));
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn answers_in_every_format() {
    let folder = data();
    let query = "SELECT job_id, gpu_ms_held, end_time FROM jobs WHERE team = 'vision' ORDER BY job_id";
    let csv = "job_id,gpu_ms_held,end_time\n1,3600000,2024-03-01T02:00:00Z\n2,500,2024-03-01T00:00:01Z\n";
    assert_eq!(out(&sql(folder.path(), &["--format", "csv", query])), csv);
    let jsonl = "{\"job_id\":\"1\",\"gpu_ms_held\":3600000,\"end_time\":\"2024-03-01T02:00:00Z\"}\n\
                 {\"job_id\":\"2\",\"gpu_ms_held\":500,\"end_time\":\"2024-03-01T00:00:01Z\"}\n";
    assert_eq!(out(&sql(folder.path(), &["--format", "jsonl", query])), jsonl);
    assert!(out(&sql(folder.path(), &[query])).contains("| 1      | 3600000     | 2024-03-01T02:00:00Z |"));
    let file = folder.path().join("out.arrow");
    let written = sql(folder.path(), &["--format", "arrow", "--output", file.to_str().unwrap(), query]);
    assert_eq!(out(&written), "");
    let rows: usize = StreamReader::try_new(std::fs::File::open(file).unwrap(), None)
        .unwrap()
        .map(|b| b.unwrap().num_rows())
        .sum();
    assert_eq!(rows, 2);
    assert!(out(&sql(folder.path(), &["describe jobs"])).contains("GPU x ms held, over all attempts."));
}

#[test]
fn sums_over_hours_are_read_from_days() {
    let folder = data();
    let sum = "SELECT team, sum(gpu_ms_held) AS held FROM usage_1h WHERE team = 'vision' GROUP BY team";
    assert_eq!(out(&sql(folder.path(), &["--format", "csv", sum])), "team,held\nvision,3600500\n");
    let explained = sql(folder.path(), &["--format", "csv", &format!("EXPLAIN {sum}")]);
    assert!(out(&explained).contains("lake/usage_1d/"), "{}", out(&explained));
    assert!(!out(&explained).contains("lake/usage_1h/"), "{}", out(&explained));
}

#[test]
fn reads_the_query_from_standard_input() {
    let folder = data();
    let mut child = tidegate(&["sql", "--format", "csv", "-", "--data"])
        .arg(folder.path().join("data"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"SELECT count(*) AS jobs\nFROM jobs;\n").unwrap();
    assert_eq!(out(&child.wait_with_output().unwrap()), "jobs\n3\n");
}

#[test]
fn failures_say_what_to_do_and_leave_nothing_behind() {
    let folder = data();
    let wrong = sql(folder.path(), &["SELECT gpu_milliseconds FROM jobs"]);
    assert_eq!((wrong.status.code(), wrong.stdout.len()), (Some(1), 0));
    assert!(
        err(&wrong).contains("no column named gpu_milliseconds") && err(&wrong).contains("hint: "),
        "{}",
        err(&wrong)
    );

    let file = folder.path().join("out.csv");
    let many = [
        "--format",
        "csv",
        "--max-rows",
        "20000",
        "--output",
        file.to_str().unwrap(),
        "SELECT * FROM generate_series(1, 50000)",
    ];
    let cut = sql(folder.path(), &many);
    assert_eq!(cut.status.code(), Some(1));
    assert!(err(&cut).contains("more than 20000 rows") && err(&cut).contains("--max-rows"), "{}", err(&cut));
    let left: Vec<_> = folder.path().read_dir().unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(left.iter().all(|f| !f.to_string_lossy().contains("out.csv")), "{left:?}");

    let slow = sql(
        folder.path(),
        &[
            "--timeout",
            "300ms",
            "SELECT count(*) FROM generate_series(1, 3000000) a, generate_series(1, 3000000) b WHERE a.value <> b.value + 1",
        ],
    );
    assert_eq!(slow.status.code(), Some(1));
    assert!(err(&slow).contains("time limit") && err(&slow).contains("--timeout"), "{}", err(&slow));

    let nowhere =
        tidegate(&["sql", "--data"]).arg(folder.path().join("nowhere")).arg("SELECT 1").output().unwrap();
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(
        err(&nowhere).contains("tidegate import") && err(&nowhere).contains("nowhere"),
        "{}",
        err(&nowhere)
    );
    assert!(!folder.path().join("nowhere").exists());
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let folder = data();
    let mut child =
        tidegate(&["sql", "--format", "csv", "SELECT * FROM generate_series(1, 900000)", "--data"])
            .arg(folder.path().join("data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut head = [0; 16];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut head).unwrap();
    drop(stdout);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", err(&ended));
    assert_eq!(err(&ended), "");
}
