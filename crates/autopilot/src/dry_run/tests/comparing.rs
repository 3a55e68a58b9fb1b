//! What was expected, next to what was observed.

use super::*;
use crate::fixture::{gang, loan, pending};
use crate::state::JobState;

#[test]
fn an_observation_agrees_or_differs_by_numbers() {
    let mut state = cluster();
    state.jobs.insert("a".into(), gang(&["t0", "t1", "t2"]));
    state.jobs.insert("big".into(), Job { priority: 9, ..pending(32, 900) });
    let (big, stop) = ("big".to_owned(), preempt("preempt-1", &state, "a"));
    let candidate = Candidate { makes_room_for: Some(&big), ..plain(&stop) };
    let outcome = run(&state, &[candidate]);
    let expected = goes_on(&outcome, "preempt-1");
    assert_eq!(expected.free_gpus, [("train".into(), 0)].into());

    let mut after = state.clone();
    after.at_us += 30 * S;
    let stopped = JobState::Pending { since_us: NOW };
    after.jobs.insert("a".into(), Job { state: stopped, ..gang(&[]) });
    let still = expected.compare(&after, Vec::new());
    assert_eq!(
        still.to_string(),
        "32 GPUs of train are free, 0 were expected; job big still waits for 32 GPUs"
    );
    assert_eq!(expected.waiting(&after).count(), 1);
    assert!(still.differences.iter().all(|difference| !difference.is_own()));

    after.jobs.insert("big".into(), gang(&["t0", "t1", "t2", "t3"]));
    let agrees = expected.compare(&after, Vec::new());
    assert_eq!((agrees.differences.len(), agrees.to_string().as_str()), (0, "as expected"));

    // Somebody started it again by hand.
    after.jobs.insert("a".into(), gang(&["s00"]));
    let differs = expected.compare(&after, vec!["preempt-2".into()]);
    assert!(differs.differences[0].is_own());
    assert_eq!(
        differs.to_string(),
        "job a holds 8 GPUs, 0 were expected (pools were not compared: 1 actions of the batch were not done)"
    );
    after.jobs.remove("a");
    assert!(expected.compare(&after, Vec::new()).differences.is_empty(), "a job that ended says nothing");
}

#[test]
fn nodes_are_compared_by_who_may_use_them() {
    let state = cluster();
    let (loaned, drained) = (lend("l", &["s10"]), drain("d", "s00"));
    let outcome = run(&state, &[plain(&loaned), plain(&drained)]);
    let mut after = state.clone();
    loan(&mut after, &["s10"]);
    assert!(goes_on(&outcome, "l").compare(&after, vec!["d".into()]).differences.is_empty());
    assert_eq!(
        goes_on(&outcome, "d").compare(&after, vec!["l".into()]).to_string(),
        "node s00 is in service, expected was out of service (pools were not compared: 1 actions of the batch \
         were not done)"
    );
    after.nodes.remove("s10");
    let gone = goes_on(&outcome, "l").compare(&after, vec!["d".into()]);
    assert!(gone.to_string().starts_with("node s10 is gone, expected was in service, lent to research"));
}

#[test]
fn the_records_read_back_and_old_ones_have_no_expectation() {
    let state = cluster();
    let loaned = lend("l", &["s10"]);
    let outcome = run(&state, &[plain(&loaned)]);
    let text = serde_json::to_string(goes_on(&outcome, "l")).unwrap();
    assert_eq!(&serde_json::from_str::<Expected>(&text).unwrap(), goes_on(&outcome, "l"));
    let least: Expected = serde_json::from_str(r#"{"action":"a","kind":"lend","observed_us":1}"#).unwrap();
    assert!(least.beside.is_empty() && least.to_string() == "nothing is to be seen");
    let least: Compared = serde_json::from_str(r#"{"action":"a","kind":"lend","observed_us":1}"#).unwrap();
    assert_eq!(least.to_string(), "as expected");
}
