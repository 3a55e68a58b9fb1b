use super::fact::{Facts, Node, Quota, Wait};
use super::sweep::{Piece, pieces};

const END: i64 = 1_000;

fn wait(job: &'static str, from: i64, to: Option<i64>) -> Wait<'static> {
    Wait {
        row: 0,
        job,
        pool: "p",
        team: None,
        qos: None,
        reason: None,
        reason_constraint: None,
        is_open: true,
        in_line: true,
        gpus: 4_000,
        nodes: Some(1),
        per_node: Some(4_000),
        priority: None,
        waited_from: from,
        eligible_from: None,
        from,
        to,
        known_to: to.unwrap_or(END + 500),
    }
}

fn node(free: i64, from: i64, to: Option<i64>) -> Node<'static> {
    Node { pools: "p", gpus: 8_000, free, assumed: 0, is_usable: true, from, to }
}

/// Job by row, since, end, whether it lasts, and constraint; sorted.
fn shown<'a>(facts: &'a Facts<'a>, begin: i64) -> Vec<(usize, i64, i64, bool, &'a str)> {
    let row =
        |piece: Piece<'a>| (piece.row, piece.since, piece.end, piece.lasts, piece.constraint.unwrap_or("?"));
    let mut rows: Vec<_> = pieces(facts, begin, END).into_iter().map(row).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn a_piece_lasts_while_its_constraint_binds_and_has_the_numbers_of_its_end() {
    let facts = Facts {
        waits: vec![wait("a", 100, Some(700))],
        // 2 free, from 200 on 3, from 400 on 8.
        nodes: vec![node(2_000, 0, Some(200)), node(3_000, 200, Some(400)), node(8_000, 400, None)],
        ..Facts::default()
    };
    let found = shown(&facts, 0);
    assert_eq!(found, [(0, 100, 400, false, "capacity_taken"), (0, 400, 700, false, "?")]);
    let taken = pieces(&facts, 0, END).into_iter().find(|piece| piece.since == 100).unwrap();
    let fit = taken.fit.unwrap();
    assert_eq!((fit.free, fit.largest, fit.fitting, fit.free_nodes), (3_000, 3, 0, 1), "as before 400");
    // A part of the time has the same pieces, cut where it begins.
    assert_eq!(shown(&facts, 300)[0], (0, 300, 400, false, "capacity_taken"));
}

#[test]
fn waits_reach_the_end_of_the_time_or_of_what_was_observed() {
    let seen = Wait { row: 1, known_to: 600, ..wait("b", 200, None) };
    let whole = Wait { row: 2, ..wait("c", 300, Some(END)) };
    let facts = Facts { waits: vec![wait("a", 100, None), seen, whole], ..Facts::default() };
    let expected = [(0, 100, END, true, "?"), (1, 200, 600, true, "?"), (2, 300, END, false, "?")];
    assert_eq!(shown(&facts, 0), expected);
    assert_eq!(pieces(&facts, 0, END).iter().find(|piece| piece.row == 1).unwrap().until, None);
}

#[test]
fn the_line_is_by_priority_and_begins_when_a_job_is_eligible() {
    let late = Wait { row: 1, priority: Some(9), eligible_from: Some(300), ..wait("b", 150, Some(500)) };
    let facts = Facts {
        waits: vec![wait("a", 100, Some(700)), late],
        nodes: vec![node(8_000, 0, None)],
        ..Facts::default()
    };
    let expected = [
        (0, 100, 300, false, "?"),
        (0, 300, 500, false, "behind_others"),
        (0, 500, 700, false, "?"),
        (1, 150, 300, false, "not_eligible"),
        (1, 300, 500, false, "?"),
    ];
    assert_eq!(shown(&facts, 0), expected);
}

#[test]
fn the_tightest_of_several_quotas_is_shown() {
    let quota = |gpus, held, from, to| Quota { owner: "t", pool: None, gpus, held, from, to };
    let facts = Facts {
        waits: vec![Wait { team: Some("t"), ..wait("a", 100, Some(700)) }],
        quotas: vec![
            quota(8_000, 5_000, 0, Some(400)),
            quota(8_000, 4_000, 400, None),
            quota(6_000, 5_000, 0, Some(300)),
        ],
        ..Facts::default()
    };
    assert_eq!(shown(&facts, 0), [(0, 100, 400, false, "quota"), (0, 400, 700, false, "?")]);
    let of_quota = pieces(&facts, 0, END).into_iter().find(|piece| piece.since == 100).unwrap();
    assert_eq!(of_quota.quota, Some((8_000, 5_000)), "the other one was gone");
    let earlier = pieces(&facts, 0, 200).into_iter().next().unwrap();
    assert_eq!(earlier.quota, Some((6_000, 5_000)));
}

#[test]
fn a_pool_without_nodes_is_known_if_it_had_one() {
    let facts =
        Facts { waits: vec![wait("a", 100, Some(700))], known: vec![("q,p", 400)], ..Facts::default() };
    let expected = [(0, 100, 400, false, "?"), (0, 400, 700, false, "not_provisioned")];
    assert_eq!(shown(&facts, 0), expected);
}

#[test]
fn stretches_with_one_reason_are_one_piece() {
    let stretch = |row, from, to, reason| Wait {
        row,
        reason: Some(reason),
        waited_from: 100,
        ..wait("a", from, Some(to))
    };
    let waits = vec![stretch(0, 100, 300, "x"), stretch(1, 300, 400, "x"), stretch(2, 400, 500, "y")];
    let facts = Facts { waits, ..Facts::default() };
    assert_eq!(shown(&facts, 0), [(1, 100, 400, false, "?"), (2, 400, 500, false, "?")]);
}

/// Nobody checks the GPU counts in events, so a huge one must not take memory or overflow a sum.
#[test]
fn absurd_numbers_of_gpus_cost_nothing() {
    let absurd = |gpus, free, from, to| Node { gpus, free, assumed: gpus, ..node(0, from, to) };
    let (most, least) = (i64::MAX, i64::MIN);
    let asks = Wait { per_node: Some(most), gpus: most, ..wait("a", 100, Some(700)) };
    let facts = Facts {
        waits: vec![asks, Wait { row: 1, ..wait("b", 100, Some(700)) }],
        nodes: vec![
            absurd(most, most, 0, Some(300)),
            absurd(most, most, 0, Some(300)),
            absurd(least, least, 0, Some(300)),
            node(2_000, 0, None),
        ],
        quotas: vec![Quota { owner: "t", pool: None, gpus: least, held: most, from: 0, to: None }],
        ..Facts::default()
    };
    let found = shown(&facts, 0);
    assert_eq!(found.last(), Some(&(1, 300, 700, false, "capacity_taken")), "taken away, they leave nothing");
}
