use std::path::PathBuf;

use tidegate_insight::straggler::{Blame, Stage, Verdict};
use tidegate_testing::needs;

use super::*;

/// The folder of public traces named by `TIDEGATE_SHARED_DATA`; without one the test is skipped.
fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("TIDEGATE_SHARED_DATA").map(PathBuf::from).filter(|folder| folder.is_dir());
    if folder.is_none() {
        needs::note("TIDEGATE_SHARED_DATA names no folder of public traces");
    }
    folder
}

#[test]
fn bytedance_blames_only_the_slow_worker() {
    let Some(folder) = folder() else { return };
    let jobs = bytedance(&folder).unwrap();
    assert_eq!(jobs.iter().map(|job| job.job.as_str()).collect::<Vec<_>>(), ["AR", "SE", "ST"]);
    for job in &jobs {
        eprintln!("{job:?}");
    }
    for job in &jobs {
        // Goal A8: within 4 % of the authors' full simulator.
        assert!(job.error.unwrap().abs() < 0.04, "{} {:?}", job.job, job.error);
    }
    let verdicts: Vec<Verdict> = jobs.iter().map(|job| job.found.unwrap().verdict).collect();
    // Regimes A and B of the generator are based on these.
    for (job, noise) in jobs.iter().zip([0.0043, 0.109, 0.0034]) {
        assert!((job.peer_noise / noise - 1.0).abs() < 0.05, "{} {}", job.job, job.peer_noise);
    }
    assert_eq!(verdicts[0], Verdict::Worker { replica: 0, stage: 0 });
    assert_eq!(verdicts[1], Verdict::SequenceImbalance);
    assert!(matches!(verdicts[2], Verdict::LongStage { .. }));
}

#[test]
fn pai_blames_only_the_published_worker() {
    let Some(folder) = folder() else { return };
    let jobs = pai(&folder).unwrap();
    eprintln!("{:?}", jobs.iter().map(|job| job.peer_noise).collect::<Vec<_>>());
    let confirmed: Vec<Vec<&Blame>> = jobs
        .iter()
        .map(|job| {
            for (iteration, signal) in &job.signals {
                eprintln!("{} {iteration} {signal:?}", job.job);
            }
            let said = job.signals.iter().filter(|(_, signal)| signal.stage == Stage::Confirmed);
            said.map(|(_, signal)| &signal.blame).filter(|blame| **blame != Blame::Nobody).collect()
        })
        .collect();
    assert!(
        !confirmed[0].is_empty() && confirmed[0].iter().all(|blame| **blame == Blame::Rank(6)),
        "{:?}",
        confirmed[0]
    );
    assert!(confirmed[1].is_empty(), "{:?}", confirmed[1]);
}

#[test]
fn a_missing_folder_is_an_error() {
    let error = bytedance(std::path::Path::new("no-such-folder")).unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with("no-such-folder/bytedance") && said.contains("give the folder"), "{said}");
}
