//! Batches with a purpose: whether they reach it.

use super::*;
use crate::fixture::{elastic, gang, loan, pending};

fn for_job<'a>(action: &'a Action, job: &'a JobId) -> Candidate<'a> {
    Candidate { makes_room_for: Some(job), ..plain(action) }
}

/// Half-used nodes: 16 GPUs come free, but no whole node.
#[test]
fn stops_that_do_not_let_their_job_start_are_refused_together() {
    let mut state = cluster();
    for at in 0..4 {
        let node = format!("t{at}");
        for part in ["x", "y"] {
            let placement = [(node.clone(), 4)].into();
            state.jobs.insert(format!("{part}{at}"), Job { gpus: 4, placement, ..gang(&[]) });
        }
    }
    state.jobs.insert("big".into(), Job { priority: 9, preemptible: false, ..pending(13, 900) });
    let big = "big".to_owned();
    let stops: Vec<Action> =
        ["x0", "x1", "x2", "x3"].map(|job| preempt(&format!("p-{job}"), &state, job)).into();
    let unrelated = drain("d", "s01");
    let mut batch: Vec<Candidate<'_>> = stops.iter().map(|it| for_job(it, &big)).collect();
    batch.push(plain(&unrelated));
    let outcome = run(&state, &batch);
    for stop in &stops {
        let why = "job big, for which it makes room, could not start with 13 GPUs all the same";
        assert_eq!(refused(&outcome, &stop.id), why);
    }
    goes_on(&outcome, "d");
    // Both halves of two nodes, and it starts.
    let stops: Vec<Action> =
        ["x0", "y0", "x1", "y1"].map(|job| preempt(&format!("p-{job}"), &state, job)).into();
    let batch: Vec<Candidate<'_>> = stops.iter().map(|it| for_job(it, &big)).collect();
    let outcome = run(&state, &batch);
    assert!(outcome.refused.is_empty(), "{outcome:?}");
    assert_eq!(goes_on(&outcome, "p-x0").starts, [("big".into(), 13)].into());
    // What stops may start again on what is left: only then is nothing claimed of it.
    assert_eq!(goes_on(&outcome, "p-x0").beside.len(), 3);
}

#[test]
fn a_job_that_asks_by_the_node_may_spread_and_then_nothing_is_claimed() {
    let mut state = cluster();
    for at in 0..4 {
        let placement = [(format!("t{at}"), 8 - 4 * u32::from(at < 3))].into();
        state.jobs.insert(format!("x{at}"), Job { gpus: 8, placement, ..gang(&[]) });
    }
    state.jobs.insert("big".into(), Job { priority: 9, ..pending(12, 900) });
    state.jobs.insert("y".into(), Job { gpus: 4, placement: [("t2".to_owned(), 4)].into(), ..gang(&[]) });
    let (big, stop) = ("big".to_owned(), preempt("p", &state, "y"));
    let outcome = run(&state, &[for_job(&stop, &big)]);
    assert!(outcome.refused.is_empty(), "three nodes with four GPUs each: {outcome:?}");
    assert!(goes_on(&outcome, "p").starts.is_empty() && goes_on(&outcome, "p").free_gpus.is_empty());
}

#[test]
fn nothing_is_stopped_for_a_job_that_waits_no_longer() {
    let mut state = cluster();
    state.jobs.insert("a".into(), gang(&["t0"]));
    let (gone, stop) = ("big".to_owned(), preempt("p", &state, "a"));
    let why = "job big, for which it makes room, waits no longer";
    assert_eq!(refused(&run(&state, &[for_job(&stop, &gone)]), "p"), why);
}

#[test]
fn a_job_that_stops_to_grow_gets_its_place_back_or_is_left_alone() {
    let mut state = cluster();
    state.jobs.insert("a".into(), grows_by(elastic(&["t0", "t1"], 900_000), GrowBy::Requeue));
    let grows = grow("g", &state, "a", 32);
    let outcome = run(&state, &[plain(&grows)]);
    assert_eq!(goes_on(&outcome, "g").jobs, [("a".into(), 32)].into());
    // A job that goes first takes what it had.
    state.jobs.insert("first".into(), Job { priority: 9, ..pending(8, 60) });
    let why = "job a stops to grow, and could not start again with 32 GPUs";
    assert_eq!(refused(&run(&state, &[plain(&grows)]), "g"), why);
    // One that goes last does not.
    state.jobs.get_mut("first").unwrap().priority = -1;
    assert!(run(&state, &[plain(&grows)]).refused.is_empty());
}

#[test]
fn a_reclaim_frees_what_it_takes_back_or_says_who_stays() {
    let mut state = cluster();
    loan(&mut state, &["s10", "s11"]);
    state.jobs.insert("guest".into(), gang(&["s10"]));
    state.jobs.insert("stays".into(), gang(&["s11"]));
    let home = Job { owner: "serving".into(), pool: "serve".into(), ..pending(8, 60) };
    for at in 0..10 {
        state
            .jobs
            .insert(format!("own-{at}"), Job { owner: "serving".into(), ..gang(&[&format!("s0{at}")]) });
    }
    for at in 12..16 {
        state.jobs.insert(format!("own-{at}"), Job { owner: "serving".into(), ..gang(&[&format!("s{at}")]) });
    }
    state.jobs.insert("waits".into(), home);
    let nodes = ["s10".to_owned(), "s11".to_owned()].into();
    let back = action("r", Change::Reclaim { loan: "lend-1".into(), from_gpus: 16, to_gpus: 0, nodes });
    let stop = preempt("p", &state, "guest");
    let outcome = run(&state, &[restoring(&back), restoring(&stop)]);
    assert!(outcome.refused.is_empty());
    let expected = goes_on(&outcome, "r");
    assert_eq!(expected.reports, ["8 GPUs of loan lend-1 stay held, by job stays"]);
    assert_eq!(expected.nodes, [("s10".into(), NodeUse { takes_jobs: true, lent_to: None })].into());
    assert_eq!(expected.starts, [("waits".into(), 8)].into(), "on the node that came back");
    assert!(expected.to_string().ends_with("but 8 GPUs of loan lend-1 stay held, by job stays"));
    // All leave.
    let other = preempt("p2", &state, "stays");
    let outcome = run(&state, &[restoring(&back), restoring(&stop), restoring(&other)]);
    assert!(goes_on(&outcome, "r").reports.is_empty());
    assert_eq!(goes_on(&outcome, "r").nodes.len(), 2);
}

#[test]
fn restoring_actions_are_reported_and_never_refused() {
    let mut state = cluster();
    state.jobs.insert("a".into(), gang(&["t0"]));
    let (first, second) = (preempt("p1", &state, "a"), preempt("p2", &state, "a"));
    let outcome = run(&state, &[restoring(&first), restoring(&second)]);
    assert!(outcome.refused.is_empty());
    assert_eq!(
        goes_on(&outcome, "p2").reports,
        ["job a holds no GPU any more: another action stops it, after p1"]
    );
}

#[test]
fn waiting_jobs_start_by_priority_and_age_within_limits() {
    let mut state = cluster();
    state.jobs.insert("old".into(), pending(8, 600));
    state.jobs.insert("new".into(), pending(8, 60));
    state.jobs.insert("high".into(), Job { priority: 5, ..pending(16, 10) });
    state.jobs.insert("small".into(), Job { priority: -1, ..pending(1, 900) });
    let starts = |state: &ClusterState| {
        goes_on(&run(state, &[plain(&drain("d", "t3"))]), "d").starts.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(starts(&state), ["high", "old"], "new does not fit, and holds back small");
    let limited = state.owners.get_mut("research").unwrap();
    limited.shares.get_mut("train").unwrap().limit_gpus = Some(16);
    state.jobs.insert("others".into(), Job { owner: "guest".into(), priority: -9, ..pending(8, 1) });
    assert_eq!(starts(&state), ["high", "others"], "an owner at its limit holds back only itself");
}

#[test]
fn what_the_guard_refuses_is_no_part_of_the_batch() {
    let mut state = cluster();
    state.jobs.insert("a".into(), elastic(&["t0"], 900_000));
    state.jobs.insert("b".into(), elastic(&["t1"], 900_000));
    let (first, second) = (grow("g1", &state, "a", 24), grow("g2", &state, "b", 24));
    let batch = [plain(&first), plain(&second)];
    let policy = policy();
    let outcome = try_batch(&policy, &state, &[], &batch, NOW, |it, _| it.action.id != "g1");
    assert!(outcome.refused.is_empty() && !outcome.expected.contains_key("g1"));
    assert!(goes_on(&outcome, "g2").beside.is_empty());
}
