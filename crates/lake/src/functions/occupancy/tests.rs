use super::fact::{Fact, Kind};
use super::minute::minute;
use super::stretches::stretches;

const MINUTE: i64 = 60_000;

fn fact(kind: Kind) -> Fact<'static> {
    let (node, job, pool, team, user, gpu, mig, word) = Default::default();
    let (gpus, a, b, c, d, e, from) = Default::default();
    Fact { kind, node, job, pool, team, user, gpu, mig, word, gpus, a, b, c, d, e, from, to: MINUTE }
}

fn node(name: &'static str, gpus: i64) -> Fact<'static> {
    Fact { node: name, word: "schedulable", gpus: gpus * 1_000, ..fact(Kind::Node) }
}

fn share(job: &'static str, nodes: &'static str, gpus: i64) -> Fact<'static> {
    Fact { job, node: nodes, gpus: gpus * 1_000, ..fact(Kind::Share) }
}

/// Asks for `nodes` with `each` GPUs; -1 if not known.
fn wait(job: &'static str, word: &'static str, gpus: i64, nodes: i64, each: i64) -> Fact<'static> {
    let b = if each < 0 { -1 } else { each * 1_000 };
    Fact { job, word, gpus: gpus * 1_000, a: nodes, b, ..fact(Kind::Wait) }
}

fn sample(node: &'static str, gpu: &'static str, active: i64) -> Fact<'static> {
    Fact { node, gpu, gpus: 7, a: active, b: MINUTE - active, d: MINUTE, ..fact(Kind::Sample) }
}

/// GPU-minutes by node, job and class; a tenth of one is `.1`.
fn ledger(mut facts: Vec<Fact<'static>>) -> Vec<String> {
    facts.sort_unstable();
    let mut sums = std::collections::BTreeMap::new();
    for row in minute(&facts, 0, MINUTE) {
        *sums.entry(format!("{} {} {}", row.node, row.job, row.class)).or_insert(0) += row.gpu_ms;
    }
    sums.into_iter().map(|(name, ms)| format!("{name} {}", ms as f64 / MINUTE as f64)).collect()
}

#[test]
fn a_limited_job_strands_what_it_asks_for() {
    let facts = vec![node("a", 8), node("b", 8), wait("w", "limited", 1, 1, 1)];
    assert_eq!(ledger(facts), ["a  no_demand 7", "a  quota_stranded 1", "b  no_demand 8"]);
}

#[test]
fn a_job_that_no_node_fits_is_fragmented_by_what_it_asks_for() {
    let facts =
        vec![node("a", 8), node("b", 8), share("x", "a", 4), share("y", "b", 4), wait("w", "open", 5, 1, 5)];
    let expected = ["a  fragmented 4", "a x unknown 4", "b  fragmented 1", "b  no_demand 3", "b y unknown 4"];
    assert_eq!(ledger(facts), expected);
}

#[test]
fn a_gang_waits_for_the_nodes_it_lacks() {
    let facts = vec![node("a", 8), node("b", 8), share("x", "b", 1), wait("w", "open", 32, 4, 8)];
    assert_eq!(ledger(facts), ["a  gang_wait 8", "b  no_demand 7", "b x unknown 1"]);
}

#[test]
fn priority_goes_before_age_and_each_gpu_is_claimed_once() {
    let high = Fact { job: "late", a: 9, ..fact(Kind::Priority) };
    let late = Fact { c: 5, ..wait("late", "limited", 6, 1, 6) };
    let facts = vec![node("a", 8), wait("early", "open", 4, 1, 4), late, high];
    assert_eq!(ledger(facts), ["a  no_demand 2", "a  quota_stranded 6"], "4 do not fit into 2");
}

#[test]
fn a_share_stays_on_nodes_where_no_device_is_known() {
    let device = Fact { job: "j", node: "a", gpu: "g0", gpus: 1_000, ..fact(Kind::Device) };
    let facts = vec![node("a", 4), node("b", 4), share("j", "a,b", 8), device, sample("b", "h0", MINUTE)];
    assert_eq!(ledger(facts), ["a j unknown 4", "b j active 1", "b j unknown 3"]);
}

#[test]
fn devices_of_an_uneven_gang_are_all_that_it_holds() {
    let device = |node, gpu| Fact { job: "j", node, gpu, gpus: 1_000, ..fact(Kind::Device) };
    let mut facts = vec![node("a", 4), node("b", 4), share("j", "a,b", 4)];
    facts.extend([device("a", "g0"), device("a", "g1"), device("a", "g2")]);
    assert_eq!(ledger(facts.clone()), ["a  no_demand 1", "a j unknown 3", "b  no_demand 3", "b j unknown 1"]);
    facts.push(device("b", "h0"));
    assert_eq!(ledger(facts), ["a  no_demand 1", "a j unknown 3", "b  no_demand 3", "b j unknown 1"]);
}

#[test]
fn a_process_shows_where_a_share_is_but_not_all_of_it() {
    let seen = Fact { job: "j", node: "a", gpu: "g3", word: "seen", gpus: 1_000, ..fact(Kind::Device) };
    let samples = ["g0", "g1", "g2", "g3"].map(|gpu| sample("a", gpu, if gpu == "g3" { MINUTE } else { 0 }));
    let mut facts = vec![node("a", 4), share("j", "a", 2), seen];
    facts.extend(samples);
    assert_eq!(ledger(facts), ["a  no_demand 2", "a j active 1", "a j idle_held 1"]);
}

#[test]
fn jobs_without_a_node_take_idle_gpus_and_the_rest_is_imbalance() {
    let facts = vec![node("a", 2), share("j", "", 3)];
    assert_eq!(ledger(facts), ["  imbalance -1", " j unknown 3"]);
}

#[test]
fn holds_beyond_capacity_are_imbalance() {
    assert_eq!(ledger(vec![node("a", 2), share("j", "a", 3)]), ["a  imbalance -1", "a j unknown 3"]);
}

#[test]
fn a_reservation_keeps_a_node_for_its_users_and_maintenance_drains_it() {
    let reserved = Fact { node: "a", user: "root", ..fact(Kind::Reserved) };
    let mine = Fact { user: "root", ..wait("w", "open", 4, 1, 4) };
    let other = Fact { user: "ann", ..wait("w", "open", 4, 1, 4) };
    assert_eq!(ledger(vec![node("a", 4), reserved, other]), ["a  no_demand 4"]);
    assert_eq!(ledger(vec![node("a", 4), reserved, mine]), ["a  unknown 4"]);
    let maintenance = Fact { word: "MAINT", ..reserved };
    assert_eq!(ledger(vec![node("a", 4), maintenance, mine]), ["a  drained 4"]);
}

#[test]
fn shared_devices_are_held_by_their_shares_and_never_busy_on_their_own() {
    let half = |job| Fact { job, node: "a", gpu: "g0", gpus: 300, ..fact(Kind::Device) };
    let facts = vec![node("a", 1), half("x"), half("y"), sample("a", "g0", MINUTE)];
    assert_eq!(ledger(facts), ["a  no_demand 0.4", "a x active 0.3", "a y active 0.3"]);
}

#[test]
fn slices_hold_their_sevenths() {
    let slice = |mig| Fact { mig, gpus: 3, ..sample("a", "g0", MINUTE) };
    let held = Fact { job: "j", node: "a", mig: "m1", gpus: 1_000, ..fact(Kind::Device) };
    let facts = vec![node("a", 1), slice("m1"), slice("m2"), share("j", "a", 1), held];
    let (three, rest) = (3 * MINUTE / 7, MINUTE - 2 * (3 * MINUTE / 7));
    let minutes = |ms: i64| ms as f64 / MINUTE as f64;
    let expected = [
        format!("a  no_demand {}", minutes(rest)),
        format!("a  unallocated_busy {}", minutes(three)),
        format!("a j active {}", minutes(three)),
    ];
    assert_eq!(ledger(facts), expected);
}

/// 3/7 of 2 ms and of 1 ms round to nothing, but 3/7 of 3 ms are one.
#[test]
fn unusable_time_of_a_slice_is_rounded_once() {
    let part = |word, from, to| Fact { word, from, to, ..node("a", 1) };
    let slice = Fact { mig: "m1", gpus: 3, ..sample("a", "g0", MINUTE) };
    let mut facts = vec![
        part("unhealthy", 0, 2),
        part("drained", 2, 3),
        part("schedulable", 3, MINUTE),
        Fact { from: 0, to: MINUTE, ..slice },
    ];
    facts.sort_unstable();
    let busy: i64 = minute(&facts, 0, MINUTE)
        .iter()
        .filter(|row| row.class == "unallocated_busy")
        .map(|row| row.gpu_ms)
        .sum();
    assert_eq!(busy, 3 * MINUTE / 7 - 1);
}

#[test]
fn steps_are_placed_where_gpus_were_active() {
    let steps = Fact { job: "j", node: "a", gpus: 30_000, a: 10_000, ..fact(Kind::Steps) };
    let facts = vec![
        node("a", 2),
        share("j", "a", 2),
        sample("a", "g0", 40_000),
        sample("a", "g1", 0),
        Fact { to: 0, ..steps },
    ];
    let mut sorted = facts;
    sorted.sort_unstable();
    let rows = minute(&sorted, 0, MINUTE);
    let rows: Vec<_> = rows.iter().map(|row| (row.gpu, row.class, row.gpu_ms)).collect();
    let expected = [
        ("g0", "active", 10_000),
        ("g0", "idle_held", 20_000),
        ("g0", "productive", 20_000),
        ("g0", "restore", 10_000),
        ("g1", "idle_held", 60_000),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn stretches_last_until_something_changes() {
    let mut facts = vec![
        node("a", 4),
        Fact { to: 10_000, ..wait("w", "limited", 1, 1, 1) },
        Fact { to: 20_000, ..share("j", "a", 2) },
    ];
    facts.sort_unstable();
    let made = |begin| -> Vec<_> {
        stretches(&facts, begin).iter().map(|s| (s.from, s.to, s.class, s.gpus_milli)).collect()
    };
    let expected = [
        (0, 10_000, "no_demand", 1_000),
        (0, 10_000, "quota_stranded", 1_000),
        (10_000, 20_000, "no_demand", 2_000),
        (20_000, MINUTE, "no_demand", 4_000),
    ];
    assert_eq!(made(0), expected);
    assert_eq!(made(15_000), [(15_000, 20_000, "no_demand", 2_000), expected[3]], "what holds at the start");
    assert_eq!(made(MINUTE), []);
}
