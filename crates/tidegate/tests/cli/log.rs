//! `tidegate log verify`: a good log, a damaged one, and folders without a log.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::program::{Ended, Place, import, jobs, run, succeed, tidegate};

fn verify(data: &Path) -> Ended {
    run(tidegate().args(["log", "verify", "--data"]).arg(data))
}

/// Flips one bit in the byte at `at`.
fn flip(file: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_good_log_is_counted_and_a_flipped_byte_is_named() {
    let place = Place::new();
    let data = place.data();
    let said = succeed(&mut import(place.file("jobs.csv", jobs(50)), "jobs_csv", &data));
    let written = said.lines().find_map(|line| line.strip_prefix("events written")).unwrap().trim();
    let good = verify(&data);
    assert_eq!(good.status, Some(0), "{}", good.stderr);
    let records = good.stdout.lines().find(|line| line.starts_with("records")).unwrap();
    assert!(records.contains(&format!(" {written}  (all read and checked)")), "{said}{}", good.stdout);

    let journal = data.join("log/store/0.jnl");
    let used = fs::read(&journal).unwrap().iter().rposition(|byte| *byte != 0).unwrap() as u64;
    for quarter in 1..4 {
        flip(&journal, used * quarter / 4);
        let ended = verify(&data);
        ended.refused(&["corrupt", "restore the data folder from a backup, or import the sources again"]);
        let place = ended.stderr.contains("0.jnl is damaged at byte ") || ended.stderr.contains("at offset ");
        assert!(place, "which place? {}", ended.stderr);
        assert_eq!(ended.stdout, "");
        flip(&journal, used * quarter / 4);
    }
    assert_eq!(verify(&data).stdout, good.stdout, "undoing the damage brings all back");
}

#[test]
fn a_folder_without_a_log_is_no_good_log() {
    let place = Place::new();
    let words = ["holds no embedded log; name the data folder with --data"];
    verify(&place.data()).refused(&words);
    assert!(!place.data().exists(), "the misspelt folder is not created");
    fs::create_dir_all(place.data().join("log")).unwrap();
    verify(&place.data()).refused(&words);
}
