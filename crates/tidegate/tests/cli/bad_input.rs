//! Unusable input: message, exit status, and what stays untouched.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use datafusion::parquet::arrow::ArrowWriter;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::program::{
    GOOD_ROW, HEADER, Place, assert_same_tables, import, jobs, query, run, succeed, tables, tidegate,
};

fn parquet(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn rows_that_cannot_be_used_are_dead_letters() {
    let place = Place::new();
    let mut rows = format!(
        "{HEADER}{GOOD_ROW}\
         2,v,1,2024-03-01 00:00:00,,,\n\
         3,v,1,2024-03-01T00:00:00Z,2024-03-01T02:00:00Z,2024-03-01T01:00:00Z,FAILED\n\
         4,v,-2,2024-03-01T00:00:00Z,,,\n\
         5,v,lots,2024-03-01T00:00:00Z,,,\n\
         1,vision,2,2024-03-01T00:00:00Z,2024-03-01T01:00:00Z,2024-03-01T02:00:00Z,COMPLETED\n\
         6,v,1,yesterday,,,\n\
         7,v,1,2024-03-01T00:00:00Z,,\n\
         8,v,1,2024-03-01T00:00:00Z,2024-03-01T01:00:00Z,2024-03-01T02:00:00Z,EXPLODED\n\
         ,v,1,2024-03-01T00:00:00Z,,,\n\
         9,v,9999999,2024-03-01T00:00:00Z,,,\n\
         10,v,1,2024-03-01T00:00:00Z,2024-02-01T00:00:00Z,2024-03-01T01:00:00Z,FAILED\n{GOOD_ROW}"
    )
    .into_bytes();
    rows.extend(b"11,v\xff,1,2024-03-01T00:00:00Z,,,\n");
    let file = place.file("bad.csv", rows);

    let refused = place.import(&file, "jobs_csv");
    assert_eq!(refused.status, Some(3), "{}", refused.stderr);
    let account: Vec<Vec<&str>> =
        refused.stdout.lines().take(5).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        account,
        [
            vec!["rows", "read", "14"],
            vec!["rows", "accepted", "1"],
            vec!["rows", "repeated", "1"],
            vec!["rows", "rejected", "12"],
            vec!["BAD_ENCODING", "1"],
        ]
    );
    assert!(refused.stdout.contains("SELECT origin, line, code, reason FROM dead_letters"));
    let letters = query(&place.data(), "SELECT origin, line, code, reason FROM dead_letters ORDER BY line");
    let expected = r#"origin,line,code,reason
bad.csv,3,TIME_ZONE_MIXED,"2024-03-01 00:00:00 is written without a zone, but the first time of the file is with a UTC offset; write all times in one form"
bad.csv,4,END_BEFORE_START,the end is 3600000 ms before the start
bad.csv,5,NEGATIVE_GPUS,a job cannot have -2000 thousandths of a GPU
bad.csv,6,BAD_NUMBER,"gpus is lots, which is not a usable number"
bad.csv,7,DUPLICATE_ID,"an earlier row has the same id and other values; on_duplicate_id = ""attempt"" in the mapping makes such rows attempts of one job"
bad.csv,8,BAD_TIME,"yesterday is not a time between 1900 and 2200, such as 2024-03-01T12:00:00 or 1709294400"
bad.csv,9,FIELD_COUNT,"the line has 6 fields, the header has 7; is a delimiter inside a value?"
bad.csv,10,UNKNOWN_STATE,state EXPLODED is not in the mapping's [states]; add it there with a canonical state
bad.csv,11,MISSING_VALUE,"job_id has no value, and a row needs one"
bad.csv,12,TOO_MANY_GPUS,9999999 GPUs are more than any cluster has; is the unit right?
bad.csv,13,START_BEFORE_SUBMIT,the start is 2505600000 ms before the submission; allow_start_before_submit in the mapping admits it
bad.csv,15,BAD_ENCODING,"byte 5 of the line is not UTF-8; convert the file, e.g. with iconv"
"#;
    assert_eq!(letters, expected);
    assert_eq!(
        query(&place.data(), "SELECT job_id, gpu_ms_held FROM jobs"),
        "job_id,gpu_ms_held\n1,3600000\n"
    );

    let written = ["job_events", "jobs", "usage_1h", "dead_letters"];
    let before = tables(&place.data(), &written);
    let again = run(import(&file, "jobs_csv", &place.data()).arg("--allow-rejects"));
    assert_eq!(again.status, Some(0), "{}", again.stderr);
    assert_same_tables(&tables(&place.data(), &written), &before, "the same file again");
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    let place = Place::new();
    let text = |value: &str| Arc::new(StringArray::from(vec![value])) as ArrayRef;
    let typed = parquet(vec![
        ("job_id", text("1")),
        ("gpus", Arc::new(BooleanArray::from(vec![true])) as ArrayRef),
        ("submit_time", text("2024-03-01T00:00:00Z")),
        ("start_time", text("")),
        ("end_time", text("")),
    ]);
    let numbers = Arc::new(Int64Array::from_iter_values(0..10_000)) as ArrayRef;
    let whole = parquet(vec![("job_id", numbers)]);
    let columns = "it has: job_id, team, submit_time, start_time, end_time";
    let cases: &[(&str, &[u8], &[&str])] = &[
        (
            "no_gpus.csv",
            b"job_id,team,submit_time,start_time,end_time\n1,a,2024-03-01T00:00:00Z,,\n",
            &[
                "no_gpus.csv has no column gpus, which mapping jobs_csv needs",
                columns,
                "the columns are: job_id, gpus",
            ],
        ),
        (
            "twice.csv",
            b"job_id,gpus,gpus\n",
            &["twice.csv: the header (line 1)", "column gpus appears twice; rename one"],
        ),
        ("empty.csv", b"", &["empty.csv is empty: its first line must name the columns"]),
        (
            "jobs.json",
            b"{\"job_id\": 1, \"gpus\": 1}\n",
            &["jobs.json has no column job_id", "it has: {\"job_id\": 1"],
        ),
        (
            "typed.parquet",
            &typed,
            &["typed.parquet: column gpus is Boolean, but mapping jobs_csv needs", "for gpus"],
        ),
        (
            "cut.parquet",
            &whole[..whole.len() / 2],
            &["cut.parquet is not a readable Parquet file", "fetch or export it again"],
        ),
    ];
    for (name, content, words) in cases {
        place.import(place.file(name, content), "jobs_csv").refused(words);
    }
    let elsewhere = place.0.path().join("elsewhere");
    run(&mut import("no/such.csv", "jobs_csv", &elsewhere)).refused(&[
        "cannot open no/such.csv",
        "No such file",
        "check the path",
    ]);
    assert!(!elsewhere.exists(), "a file that is not there made a data folder");
    place.import(place.0.path(), "jobs_csv").refused(&["cannot open", "directory"]);
    let parquet_in = fs::File::open(place.file("typed.parquet", &typed)).unwrap();
    run(import("-", "jobs_csv", &place.data()).stdin(parquet_in))
        .refused(&["parquet cannot be read from standard input; give the file's path instead"]);
    let endless = fs::File::open(place.file("long.csv", vec![b'x'; 3 << 20])).unwrap();
    run(import("-", "jobs_csv", &place.data()).stdin(endless)).refused(&[
        "stdin: the header (line 1) cannot be used",
        "longer than 1048576 bytes",
        "line end missing?",
    ]);
    assert_eq!(query(&place.data(), "SELECT count(*) AS n FROM job_events"), "n\n0\n");
}

#[test]
fn a_truncated_gzip_is_refused_and_its_whole_mends_it() {
    let place = Place::new();
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    // Large enough that half of the events are already in the log.
    packer.write_all(jobs(12_000).as_bytes()).unwrap();
    let whole = packer.finish().unwrap();
    let file = place.file("jobs.csv.gz", &whole[..whole.len() / 2]);
    place.import(&file, "jobs_csv").refused(&[
        "jobs.csv.gz ends in the middle of its compressed data, after line ",
        "fetch or export it again",
    ]);
    place.file("jobs.csv.gz", &whole);
    let mended = succeed(&mut import(&file, "jobs_csv", &place.data()));
    assert!(mended.contains("already present        16,384"), "{mended}");

    let other = Place::new();
    succeed(&mut import(&file, "jobs_csv", &other.data()));
    let written = ["job_events", "jobs", "usage_1h"];
    let expected = tables(&other.data(), &written);
    assert_same_tables(&tables(&place.data(), &written), &expected, "the whole file after half of it");
}

#[test]
fn mappings_pipelines_and_zones_that_cannot_be_used_touch_nothing() {
    let place = Place::new();
    let jobs = place.file("jobs.csv", jobs(1));
    place
        .import(&jobs, "philly")
        .refused(&["no mapping named philly; shipped are alibaba_openb_nodes", "ending in .toml"]);
    place.import(&jobs, "no/such.toml").refused(&["cannot read mapping no/such.toml", "No such file"]);
    let mapping = |columns: &str| {
        let head = "name = \"mine\"\ndoc = \"Mine.\"\nkind = \"jobs\"\nsource = \"here\"\nassumptions = []\n";
        format!("{head}[columns]\njob_id = \"id\"\nsubmit_time = \"t\"\n{columns}\n")
    };
    let mappings = [
        ("name = \"mine\"\nkind = \n".to_owned(), ["mine.toml is not valid", "line 2"]),
        (mapping(""), ["mine.toml, key columns.gpus", "is required for this kind"]),
        (
            mapping("gpus = \"g\"\ngpu = \"g\""),
            ["mine.toml, key columns.gpu: no such field", "allowed are cluster, job_id"],
        ),
        (
            mapping("gpus = { column = \"g\", unit = \"h\" }"),
            ["mine.toml, key columns.gpus", "this unit is only for"],
        ),
        (
            mapping("gpus = \"g\"\n[time]\nzone = \"Mars\""),
            ["mine.toml, key time.zone", "Mars is not an IANA zone"],
        ),
    ];
    for (content, words) in &mappings {
        place.import(&jobs, place.file("mine.toml", content)).refused(words);
    }

    run(import(&jobs, "jobs_csv", &place.data()).args(["--timezone", "Mars/Olympus"]))
        .refused(&["unknown time zone \"Mars/Olympus\"; use an IANA name such as Europe/Berlin"]);

    let own = place.0.path().join("own");
    fs::create_dir(&own).unwrap();
    let pipeline = |sql: &str| {
        let head = "--! name = \"mine\"\n--! doc = \"Mine.\"\n--! sources = [\"usage_1h\"]\n--! window = \"1d\"\n\
                    --! extent = { time = \"window_start\" }\n--! key = [\"window_start\"]\n\
                    --! [columns]\n--! window_start = \"Day.\"\n--! n = \"Number.\"\n";
        format!("{head}SELECT window_start, {sql} GROUP BY window_start\n")
    };
    let pipelines = [
        ("SELECT 1\n".to_owned(), "the header (the `--!` lines at the top, in TOML) does not parse"),
        (
            pipeline("count(*) AS n FROM usage_1h WHERE window_start < now()"),
            "now() depends on when it is called; use the times of the rows",
        ),
        (
            pipeline("sum(gpu_ms_held / 1000.0) AS n FROM usage_1h"),
            "sum() over floats depends on the order of rows; sum integers",
        ),
        (pipeline("count(*) AS n FROM nowhere"), "nowhere"),
        (pipeline("count(* AS n FROM usage_1h"), "own/mine.sql:"),
    ];
    for (content, words) in &pipelines {
        let file = own.join("mine.sql");
        fs::write(&file, content).unwrap();
        run(import(&jobs, "jobs_csv", &place.data()).arg("--pipelines").arg(&own))
            .refused(&["own/mine.sql", words]);
        run(tidegate().args(["pipeline", "check"]).arg(&file)).refused(&["own/mine.sql", words]);
    }
    run(import(&jobs, "jobs_csv", &place.data()).arg("--pipelines").arg(place.0.path().join("gone")))
        .refused(&["read pipelines folder", "gone", "No such file"]);
    assert!(!place.data().exists(), "a command that was refused made a data folder");
}

#[test]
fn data_folders_that_cannot_be_used_are_left_alone() {
    let place = Place::new();
    let jobs = place.file("jobs.csv", jobs(1));
    let write = || import(&jobs, "jobs_csv", &place.data());
    let read = || {
        let mut command = tidegate();
        command.args(["sql", "--data"]).arg(place.data()).arg("SELECT 1");
        command
    };
    fs::create_dir(place.data()).unwrap();
    let format = place.data().join("FORMAT");
    let newer = ["data is written in format 99, this program reads up to format 1; use a newer tidegate"];
    fs::write(&format, "99\n").unwrap();
    run(&mut write()).refused(&newer);
    let refused = run(&mut read());
    refused.refused(&newer);
    assert!(!refused.stderr.contains("tidegate import"), "an import would not mend it: {}", refused.stderr);
    fs::write(&format, "one\n").unwrap();
    run(&mut write())
        .refused(&["data/FORMAT holds \"one\\n\", not a format number", "restore the data folder"]);
    assert!(!place.data().join("log").exists());

    fs::remove_dir_all(place.data()).unwrap();
    fs::write(place.data(), "a file").unwrap();
    run(&mut write()).refused(&["data is a file; data needs a folder of its own, name another path"]);
    assert_eq!(fs::read(place.data()).unwrap(), b"a file");
}
