//! Every reason to reject a row, and the dead letter of each.

use std::collections::BTreeMap;

use crate::support::{Imported, MemoryLog, run, text};
use tidegate_import::{ImportSummary, Mapping, RejectCode};

const HEADER: &str = "job_id,gpus,submit_time,start_time,end_time,state";

fn imported(rows: &str) -> (MemoryLog, ImportSummary) {
    run(text("jobs.csv", format!("{HEADER}\n{rows}")), &Mapping::load("jobs_csv").unwrap()).unwrap()
}

/// Imports the row between two good ones, and returns the reason of its rejection.
fn refused(row: &str, code: RejectCode) -> String {
    let good =
        |id: &str| format!("{id},1,2024-01-01T00:00:00Z,2024-01-01T00:00:00Z,2024-01-01T01:00:00Z,COMPLETED");
    let (log, summary) = imported(&format!("{}\n{row}\n{}\n", good("a"), good("b")));
    assert_eq!(
        summary.rows_rejected,
        BTreeMap::from([(code.as_str(), 1)]),
        "{row}: {:?}",
        log.dead_letters()
    );
    assert_eq!((summary.rows_read, summary.rows_accepted), (3, 2));
    let letters = log.dead_letters();
    let [letter] = &letters[..] else { panic!("one dead letter for {row}") };
    assert_eq!(
        (letter.origin.as_str(), letter.line, letter.code.as_str()),
        ("jobs.csv", Some(3), code.as_str())
    );
    assert_eq!(String::from_utf8_lossy(&letter.raw), row);
    letter.reason.clone()
}

#[test]
fn bad_rows_are_rejected_with_their_code() {
    let times = "2024-01-01T00:00:00Z,2024-01-01T01:00:00Z,2024-01-01T02:00:00Z";
    let cases = [
        (format!(",1,{times},COMPLETED"), RejectCode::MissingValue),
        (format!("x,,{times},COMPLETED"), RejectCode::MissingValue),
        ("x,1,,,,PENDING".into(), RejectCode::MissingValue),
        ("x,1,2024-01-01T00:00:00Z,2024-01-01T00:00:00Z,,COMPLETED".into(), RejectCode::MissingValue),
        ("x,1,2024-01-01T00:00:00Z,,,RUNNING".into(), RejectCode::MissingValue),
        (format!("x,four,{times},COMPLETED"), RejectCode::BadNumber),
        (format!("x,1e300,{times},COMPLETED"), RejectCode::BadNumber),
        (format!("x,-2,{times},COMPLETED"), RejectCode::NegativeGpus),
        (format!("x,1000001,{times},COMPLETED"), RejectCode::TooManyGpus),
        (format!("x,1,{times},EXPLODED"), RejectCode::UnknownState),
        (format!("x,1,{times}"), RejectCode::FieldCount),
        (format!("x,1,{times},COMPLETED,more"), RejectCode::FieldCount),
        ("x,1,2024-13-01T00:00:00Z,,,PENDING".into(), RejectCode::BadTime),
        ("x,1,2024-02-30T00:00:00Z,,,PENDING".into(), RejectCode::BadTime),
        ("x,1,2024-01-01T25:00:00Z,,,PENDING".into(), RejectCode::BadTime),
        ("x,1,2024-01-01T00:00:00+99:00,,,PENDING".into(), RejectCode::BadTime),
        ("x,1,9999-01-01T00:00:00Z,,,PENDING".into(), RejectCode::BadTime),
        ("x,1,yesterday,,,PENDING".into(), RejectCode::BadTime),
        ("x,1,2024-01-01T00:00:00,,,PENDING".into(), RejectCode::TimeZoneMixed),
        ("x,1,1704067200,,,PENDING".into(), RejectCode::TimeZoneMixed),
        (format!("x,1,{},COMPLETED", times.replace("T02", "T00")), RejectCode::EndBeforeStart),
        ("x,1,2024-01-01T05:00:00Z,,2024-01-01T04:00:00Z,CANCELLED".into(), RejectCode::EndBeforeStart),
        (
            format!("x,1,{},COMPLETED", times.replacen("T00", "T03", 1).replace("T02", "T04")),
            RejectCode::StartBeforeSubmit,
        ),
        (format!("a,2,{times},COMPLETED"), RejectCode::DuplicateId),
    ];
    for (row, code) in cases {
        let reason = refused(&row, code);
        assert!(reason.len() > 20, "{code:?} says what is wrong: {reason}");
    }
}

#[test]
fn the_reason_names_the_value() {
    assert!(refused("x,four,2024-01-01T00:00:00Z,,,PENDING", RejectCode::BadNumber).contains("four"));
    assert!(refused("x,1,2024-01-01T00:00:00Z,,,ODD", RejectCode::UnknownState).contains("ODD"));
    assert!(refused("x,1,2024-13-01T00:00:00Z,,,PENDING", RejectCode::BadTime).contains("2024-13-01"));
}

#[test]
fn rows_that_are_not_utf8_are_rejected() {
    let mut content = format!("{HEADER}\n").into_bytes();
    content
        .extend_from_slice(b"caf\xe9,1,2024-01-01T00:00:00Z,,,PENDING\nb,1,2024-01-01T00:00:00Z,,,PENDING\n");
    let (log, summary) = run(text("x", content), &Mapping::load("jobs_csv").unwrap()).unwrap();
    assert_eq!((summary.rows_accepted, summary.rejected()), (1, 1));
    assert_eq!(log.dead_letters()[0].code, "BAD_ENCODING");
    assert!(log.dead_letters()[0].reason.contains("byte 4 "), "{}", log.dead_letters()[0].reason);
}

#[test]
fn bad_slurm_ids_are_rejected() {
    for (id, hint) in [
        ("abc", "Slurm job id"),
        ("12_x", "Slurm job id"),
        ("5_[1-3", "Slurm job id"),
        ("5_[1-9...]", "SLURM_BITSTR_LEN"),
    ] {
        let content = format!(
            "JobID|Submit|Start|End|State|ReqTRES\n{id}|2024-01-01T00:00:00|Unknown|Unknown|PENDING|gres/gpu=1\n"
        );
        let (log, _) = run(text("x", content), &Mapping::load("sacct").unwrap()).unwrap();
        let letters = log.dead_letters();
        assert_eq!(letters[0].code, "BAD_JOB_ID", "{id}");
        assert!(letters[0].reason.contains(hint), "{}", letters[0].reason);
    }
}

#[test]
fn equal_rows_are_duplicates_and_not_rejected() {
    let row = "a,1,2024-01-01T00:00:00Z,2024-01-01T00:00:00Z,2024-01-01T01:00:00Z,COMPLETED\n";
    let (log, summary) = imported(&row.repeat(3));
    assert_eq!((summary.rows_accepted, summary.rows_duplicate, summary.rejected()), (1, 2, 0));
    assert_eq!(log.jobs().len(), 3);
}

#[test]
fn long_raw_rows_are_cut_in_the_dead_letter() {
    let (log, _) = imported(&format!("{},x,2024-01-01T00:00:00Z,,,PENDING\n", "n".repeat(10_000)));
    assert_eq!(log.dead_letters()[0].raw.len(), 4096);
}
