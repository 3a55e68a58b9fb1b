//! `tidegate bench stragglers` and `bench forecast`, in small.

use crate::program::{run, tidegate};

#[test]
fn a_trial_of_stragglers_is_the_same_twice() {
    let trial = || {
        let ended = run(tidegate()
            .args(["bench", "stragglers", "--seeds", "0..2", "--regimes", "AB"])
            .args(["--hours", "0.5", "--no-rivals", "--json"]));
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    let report = trial();
    assert!(serde_json::from_str::<serde_json::Value>(&report).unwrap().is_object());
    assert_eq!(report, trial());
}

#[test]
fn what_a_trial_cannot_do_is_said() {
    for (args, says) in [
        (["bench", "stragglers", "--seeds", "7..7"], "A below B"),
        (["bench", "stragglers", "--regimes", "AX"], "no regime"),
        (["bench", "forecast", "--traces", "/nowhere"], "/nowhere"),
    ] {
        let ended = run(tidegate().args(args));
        assert_ne!(ended.status, Some(0));
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}
