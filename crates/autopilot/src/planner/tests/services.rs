//! Services with a limit on request waiting time.

use super::*;
use crate::action::Change;
use crate::fixture::{cluster, gang, loan, pending};

/// A request takes a second, a GPU serves one at a time, and one request in a thousand may wait.
const SERVICE: &str = r#"services = [{ owner = "serving", pool = "serve", requests_per_gpu = 1.0, service_s = 1.0, slots_per_gpu = 1,
    wait_s = 0.0, late_share = 0.001 }]"#;

#[test]
fn a_service_keeps_what_its_requests_need_and_gets_it_back() {
    let mut state = cluster();
    state.jobs.extend((0..25).map(|at| (format!("w{at:02}"), pending(8, 60))));
    let policy = without_margin(SERVICE);
    // At 50 erlangs 1.45 in a thousand wait with 73 servers, 0.95 with 74. 128 less 74 leaves 54,
    // six nodes; without the promise 70 could be spared, and 64 per step.
    let (made, _) = plan(&policy, &state, &FixedForecast::highest(50.0), None, NOW, 7);
    let Change::Lend { gpus, .. } = of_kind(&made, Kind::Lend)[0].action.change else { panic!() };
    assert_eq!(gpus, 48);
    let reason = &of_kind(&made, Kind::Lend)[0].reason;
    assert!(
        reason.contains("74 are kept back (74 of them for its promise to requests, Erlang C)"),
        "{reason}"
    );
    let (made, _) = planned(&state, &FixedForecast::highest(50.0));
    let Change::Lend { gpus, .. } = of_kind(&made, Kind::Lend)[0].action.change else { panic!() };
    assert_eq!(gpus, 64);
    // With eight nodes lent it has 64, enough for 50 but not for the promise: ten more are two
    // nodes.
    loan(&mut state, &["s00", "s01", "s02", "s03", "s04", "s05", "s06", "s07"]);
    state.jobs.insert("a".into(), gang(&["s02", "s03"]));
    let (made, _) = plan(&policy, &state, &FixedForecast::highest(50.0), None, NOW, 7);
    let Change::Reclaim { from_gpus, to_gpus, .. } = of_kind(&made, Kind::Reclaim)[0].action.change else {
        panic!()
    };
    assert_eq!((from_gpus, to_gpus), (64, 48));
    assert!(of_kind(&planned(&state, &FixedForecast::highest(50.0)).0, Kind::Reclaim).is_empty());
}
